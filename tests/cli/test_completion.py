"""Completion in real shells: what a person would get who presses the tab key."""

import argparse
import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

from fusevlm.cli import COMMANDS, main
from fusevlm.cli.completion import SHELLS, Word, _zsh_specs, commands, keys, options_of, verb_of
from fusevlm.pipeline.run import STAGES


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The script of each shell, in a file."""
    home = tmp_path_factory.mktemp("completion")
    found = commands()
    for name, make in SHELLS.items():
        (home / name).write_text(make(found))
    return home


def need(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    return shell


# --- what the script knows ------------------------------------------------------------------------


def test_every_verb_and_option_of_the_parsers_is_known():
    found = {one.path: one for one in commands()}
    assert [path[0] for path in found if len(path) == 1] == list(COMMANDS)
    assert {("adapter", "train"), ("adapter", "apply")} <= set(found)
    for name in COMMANDS:
        parser = argparse.ArgumentParser(prog="fusevlm")
        verb_of(name).add_arguments(parser)
        flags = {flag for word in found[name,].flags for flag in word.flags}
        assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", parser.format_usage())) <= flags
        assert "--quiet" in flags


def test_what_follows_an_option():
    words = {flag: word for one in commands() if one.path == ("run",) for word in one.flags
             for flag in word.flags}  # fmt: skip
    assert words["--run"].kind == "folders"
    assert words["--dry-run"].kind == ""
    assert words["--limit"].kind == "value"
    assert words["--set"].kind == "keys"
    assert words["--set"].again
    assert words["--redo"].choices == tuple(STAGES)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_verb_prints_the_script(shell, scripts, capsys):
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == (scripts / shell).read_text()


def test_an_unknown_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "csh"])
    assert stopped.value.code == 2


# --- bash -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bash(scripts):
    """What bash would offer after some words, the last of which is being typed."""
    need("bash")

    def offered(*words, cwd=None):
        code = (
            f'source {scripts / "bash"}; COMP_WORDS=(fusevlm "$@"); COMP_CWORD=$#; _fusevlm; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        found = subprocess.run(
            ["bash", "--norc", "--noprofile", "-c", code, "bash", *words],
            capture_output=True, text=True, cwd=cwd, check=True,
        )  # fmt: skip
        assert found.stderr == ""
        return [line for line in found.stdout.splitlines() if line]

    return offered


def test_bash_completes_verbs(bash):
    assert bash("") == list(COMMANDS)
    assert bash("a") == ["ask", "apply", "adapter"]
    assert bash("--v") == ["--version"]
    assert bash("adapter", "") == ["train", "apply"]
    assert bash("completion", "") == ["bash", "zsh", "fish"]


def test_bash_completes_the_options_of_the_verb(bash):
    assert bash("ask", "--r") == ["--risk"]
    assert bash("run", "x.toml", "--re") == ["--redo", "--retry-failed", "--rehearse"]
    assert bash("adapter", "train", "--pre") == ["--preset"]
    assert bash("adapter", "train", "--preset", "") == ["default", "paper"]
    assert bash("ls", "--risk") == []


def test_bash_completes_stages_and_keys(bash):
    assert bash("run", "x", "--redo", "s") == ["sample", "semantics", "score"]
    assert bash("run", "x", "--only", "e") == ["embed", "evaluate"]
    assert bash("run", "x", "--set", "") == keys()
    assert bash("run", "x", "--set", "sample.t") == [
        "sample.temperature=", "sample.top_p=", "sample.top_k=",
    ]  # fmt: skip
    assert bash("fit", "t", "--from", "") == ["inspect", "lmms-eval"]


def test_bash_completes_files_and_folders(bash, tmp_path):
    (tmp_path / "my run").mkdir()
    (tmp_path / "my picture.png").touch()
    assert set(bash("ask", "my", cwd=tmp_path)) == {"my run", "my picture.png"}
    assert bash("verify", "my", cwd=tmp_path) == ["my run"]
    assert bash("ask", "--model", "my", cwd=tmp_path) == ["my run"]
    assert bash("ask", "--model", "e", cwd=tmp_path) == ["embedded"]
    assert bash("ask", "--risk", "", cwd=tmp_path) == []  # a number: nothing to offer
    assert set(bash("ask", "--table", "=", "", cwd=tmp_path)) == {"my run", "my picture.png"}
    assert set(bash("ask", "--table", "=", cwd=tmp_path)) == {"my run", "my picture.png"}


def typed(command, text, wanted, *, cwd):
    """Type into an interactive shell; what it wrote until ``wanted`` came, or a few seconds."""
    terminal, end = pty.openpty()
    own = os.environ | {"TERM": "dumb", "PS1": "$ ", "HISTFILE": "", "INPUTRC": os.devnull}
    child = subprocess.Popen(
        command, stdin=end, stdout=end, stderr=end, cwd=cwd, env=own, start_new_session=True
    )
    os.close(end)
    seen = ""
    try:
        for line in text:
            os.write(terminal, line.encode())
            until = time.monotonic() + (10 if line is text[-1] else 1.5)
            while time.monotonic() < until and wanted not in seen:
                if select.select([terminal], [], [], 0.1)[0]:
                    seen += os.read(terminal, 4096).decode(errors="replace")
    finally:
        child.kill()
        child.wait()
        os.close(terminal)
    return seen


def test_the_tab_key_in_bash(scripts, tmp_path):
    need("bash")
    (tmp_path / "a picture.png").touch()
    setup = f"source {scripts / 'bash'}; fusevlm() {{ printf '<%s>' got \"$@\"; }}\n"
    line = "fusevlm as\ta\t--ri\t.1\n"
    wanted = "<got><ask><a picture.png><--risk><.1>"
    seen = typed(["bash", "--norc", "--noprofile", "-i"], [setup, line], wanted, cwd=tmp_path)
    assert wanted in seen


# --- zsh and fish ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_read_it(shell, scripts):
    found = subprocess.run([need(shell), "-n", scripts / shell], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_tab_key_in_zsh(scripts, tmp_path):
    need("zsh")
    (tmp_path / "a picture.png").touch()
    setup = (
        f"autoload -U compinit; compinit -u -D; source {scripts / 'zsh'}; "
        "fusevlm() { printf '<%s>' got \"$@\"; }\n"
    )
    line = "fusevlm run a\t--onl\tevalu\t--set sample.temp\t1\n"
    wanted = "<got><run><a picture.png><--only><evaluate><--set><sample.temperature=1>"
    seen = typed(["zsh", "-i"], [setup, line], wanted, cwd=tmp_path)
    assert wanted in seen


def test_fish_completes(scripts, tmp_path):
    need("fish")
    (tmp_path / "picture.png").touch()

    def offered(line):
        code = f"source {scripts / 'fish'}; complete -C '{line}'"
        found = subprocess.run(
            ["fish", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
        )
        assert found.stderr == ""
        return [row.split("\t")[0] for row in found.stdout.splitlines()]

    assert offered("fusevlm as") == ["ask"]
    assert set(offered("fusevlm ")) == set(COMMANDS)
    assert offered("fusevlm ask --ri") == ["--risk"]
    assert offered("fusevlm ask pic") == ["picture.png"]
    assert set(offered("fusevlm adapter ")) == {"train", "apply"}
    assert set(offered("fusevlm run x --redo s")) == {"sample", "semantics", "score"}
    assert offered("fusevlm adapter apply --ri") == []
    assert offered("fusevlm apply --ri") == ["--risk"]
    assert offered("fusevlm run x --set sample.temp") == ["sample.temperature="]


def test_words_of_zsh_are_escaped():
    word = Word(("-a", "--all"), "x [1]: y", "files")
    command = commands()[0]
    first, second = _zsh_specs(word, command)
    assert first == r"(-a --all)-a[x \[1\]: y]:x [1]\: y:_files"
    assert second == r"(-a --all)--all[x \[1\]: y]:x [1]\: y:_files"


# --- did you mean ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["ask", "a.png", "what?", "--rsik", "0.1"], "--risk"),
        (["run", "x.toml", "--dryrun"], "--dry-run"),
        (["metrics", "x.csv", "--probabilty=p"], "--probability"),
        (["adapter", "train", "x", "--inducng", "3"], "--inducing"),
    ],
)
def test_a_mistyped_option_is_answered_with_the_nearest(words, meant, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert f"Did you mean '{meant}'?" in capsys.readouterr().err


def test_an_option_unlike_any_is_answered_with_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["ask", "a.png", "what?", "--frobnicate"])
    assert "--frobnicate. See fusevlm ask --help." in capsys.readouterr().err
    assert "--risk" in options_of("ask")
    with pytest.raises(SystemExit):
        main(["ls", "one", "two"])
    assert "unrecognized arguments: two." in capsys.readouterr().err
