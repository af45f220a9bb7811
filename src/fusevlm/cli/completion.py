"""``fusevlm completion bash|zsh|fish``: what the shell completes, from the verbs' own parsers.

The script stands on its own: nothing of fusevlm is started while somebody types.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from fusevlm.cli import COMMANDS, EXIT_OK, Verb, verb_of
from fusevlm.cli.terminal import tell

FILES, FOLDERS, KEYS, VALUE = "files", "folders", "keys", "value"
KINDS = {  # by what a value is called in the help
    "CONFIG": FILES, "CONFIG|RUN": FILES, "FILE": FILES, "NPY": FILES, "PAIRS": FILES,
    "TABLE": FILES, "[IMAGE] QUESTION": FILES, "file": FILES, "DIR": FOLDERS, "FIT": FOLDERS,
    "RUN": FOLDERS, "model": FOLDERS, "KEY=VALUE": KEYS,
}  # fmt: skip


@dataclass(frozen=True)
class Word:
    """An option, or an argument in its place.

    flags   how it is written; none of an argument
    about   what the help says of it
    kind    what its value is: files, folders, keys of a config, or anything; empty: it has none
    choices that it can be
    again   whether it can be given more than once
    """

    flags: tuple[str, ...]
    about: str
    kind: str
    choices: tuple[str, ...] = ()
    again: bool = False


@dataclass(frozen=True)
class Command:
    """A verb, or a verb and its action, with its words."""

    path: tuple[str, ...]
    about: str
    words: tuple[Word, ...]

    @property
    def flags(self) -> tuple[Word, ...]:
        """Its options."""
        return tuple(word for word in self.words if word.flags)

    @property
    def places(self) -> tuple[Word, ...]:
        """Its arguments."""
        return tuple(word for word in self.words if not word.flags)


def commands() -> list[Command]:
    """All that can be typed: every verb of the one table, with the options of its parser."""
    found: list[Command] = []
    for name, (about, _) in COMMANDS.items():
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("--quiet", action="store_true", help="print results and errors only")
        verb_of(name).add_arguments(parser)
        found += _walked(parser, (name,), about)
    return found


def _walked(parser: argparse.ArgumentParser, path: tuple[str, ...], about: str) -> list[Command]:
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    words = [_word(action) for action in parser._actions if action not in inner]
    found = [Command(path, about, tuple(words))]
    for action in inner:
        helps = {one.dest: one.help or "" for one in action._choices_actions}
        for name, sub in action.choices.items():
            found += _walked(sub, (*path, name), helps.get(name, ""))
    return found


def _word(action: argparse.Action) -> Word:
    called = action.metavar if isinstance(action.metavar, str) else action.dest
    choices = tuple(map(str, action.choices)) if action.choices else named(action.dest, called)
    kind = "" if action.nargs == 0 else KINDS.get(called, VALUE)
    again = isinstance(action, argparse._AppendAction) or action.nargs == "*"
    about = re.sub(r"\s+", " ", action.help or "")
    return Word(tuple(action.option_strings), about, kind, choices, again)


def named(dest: str, called: str) -> tuple[str, ...]:
    """Words that the parser itself leaves to those who know them."""
    from fusevlm.data.correctness import CRITERIA
    from fusevlm.data.sampled import FORMS
    from fusevlm.pipeline.run import STAGES

    known: dict[str, Iterable[str]] = {
        "STAGE": STAGES, "TOOL": FORMS, "criterion": CRITERIA, "model": ("embedded",),
    }  # fmt: skip
    return tuple(known.get(called, known.get(dest, ())))


def keys() -> list[str]:
    """Every key of a config, as --set takes it."""
    from fusevlm.settings import SECTIONS

    return [f"{name}.{one.name}=" for name, kind in SECTIONS.items() for one in fields(kind)]


# --- bash -----------------------------------------------------------------------------------------

BASH = r"""# completion of fusevlm in bash: fusevlm completion bash
_fusevlm() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  local at= i word flags= words= kind=
  if [[ $cur == "=" ]]; then cur=; fi
  if [[ $prev == "=" ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    case "$at $word" in
@PATHS@) at="$at $word" ;;
    esac
  done
  case "$at" in
@FLAGS@
  esac
  case "$at $prev" in
@VALUES@
    *) [[ $cur == -* ]] && words=$flags && kind= ;;
  esac
  COMPREPLY=()
  while IFS= read -r word; do COMPREPLY+=("$word"); done < <(
    [[ -n $words ]] && compgen -W "$words" -- "$cur"
    [[ $kind == files ]] && compgen -f -- "$cur"
    [[ $kind == folders ]] && compgen -d -- "$cur"
  )
  [[ $kind == files || $kind == folders ]] && compopt -o filenames 2>/dev/null
  [[ $kind == keys ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -F _fusevlm fusevlm
"""


def bash(found: Sequence[Command]) -> str:
    """One function; case statements tell the options of each command, and what follows each."""
    paths, flags = [], []
    after: dict[tuple[str, str], list[str]] = {}  # (words, kind): the options they follow
    for one in found:
        paths.append(_at(one.path))
        own = " ".join(flag for word in one.flags for flag in word.flags)
        inner = [other.path[-1] for other in found if other.path[:-1] == one.path]
        kind, choices = _next(one)
        words = " ".join([*choices, *inner])
        flags.append(f"    {_at(one.path)}) flags={_q(own)} words={_q(words)} kind={kind} ;;")
        for word in one.flags:
            if word.kind:
                options = " ".join(keys() if word.kind == KEYS else word.choices)
                where = [_at((*one.path, flag)) for flag in word.flags]
                after.setdefault((options, word.kind), []).extend(where)
    values = [
        f"    {'|'.join(where)}) words={_q(options)} kind={kind} ;;"
        for (options, kind), where in after.items()
    ]
    verbs = " ".join(one.path[0] for one in found if len(one.path) == 1)
    first = f"    '') flags='-h --help --version' words={_q(verbs)} ;;"
    return _filled(
        BASH, PATHS="|".join(paths), FLAGS="\n".join([first, *flags]), VALUES="\n".join(values)
    )


def _at(path: Sequence[str]) -> str:
    """A path as the function keeps it."""
    return _q("".join(f" {word}" for word in path))


def _next(command: Command) -> tuple[str, tuple[str, ...]]:
    """What comes in the place of an argument: the first kind that can be completed."""
    kinds = [word.kind for word in command.places if word.kind != VALUE]
    choices = tuple(choice for word in command.places for choice in word.choices)
    if FILES in kinds:
        return FILES, choices
    return (kinds[0] if kinds else VALUE), choices


# --- zsh ------------------------------------------------------------------------------------------

ZSH = r"""#compdef fusevlm
# completion of fusevlm in zsh: fusevlm completion zsh
_fusevlm_keys() {
  compadd -S '' -- @KEYS@
}

_fusevlm() {
  local curcontext=$curcontext state line
  local -a verbs
  _arguments -C '(- *)'{-h,--help}'[show help]' '(- *)--version[show the version]' \
    '1:command:->verb' '*::argument:->rest' && return 0
  case $state in
    verb)
      verbs=(
@VERBS@
      )
      _describe -t commands command verbs ;;
    rest)
      case $words[1] in
@CASES@
      esac ;;
  esac
}

if [[ $funcstack[1] == _fusevlm ]]; then _fusevlm "$@"; else compdef _fusevlm fusevlm; fi
"""
ZSH_INNER = """        @NAME@)
          _arguments -C '1:action:(@ACTIONS@)' '*::argument:->inner' && return 0
          case $words[1] in
@CASES@
          esac ;;"""


def zsh(found: Sequence[Command]) -> str:
    """``_arguments`` of each command."""
    top = [one for one in found if len(one.path) == 1]
    verbs = [f"        {_q(f'{one.path[0]}:{_colon(one.about)}')}" for one in top]
    cases = []
    for one in top:
        inner = [other for other in found if other.path[:-1] == one.path]
        if inner:
            cases.append(
                _filled(ZSH_INNER, NAME=one.path[0],
                        ACTIONS=" ".join(other.path[-1] for other in inner),
                        CASES="\n".join(_zsh_case(other, "            ") for other in inner))
            )  # fmt: skip
        else:
            cases.append(_zsh_case(one, "        "))
    return _filled(
        ZSH, KEYS=" ".join(map(_q, keys())), VERBS="\n".join(verbs), CASES="\n".join(cases)
    )


def _zsh_case(command: Command, space: str) -> str:
    lines = [_q(spec) for word in command.words for spec in _zsh_specs(word, command)]
    body = f" \\\n{space}    ".join(["_arguments", *lines])
    return f"{space}{command.path[-1]})\n{space}  {body} ;;"


def _zsh_specs(word: Word, command: Command) -> Iterator[str]:
    """A word as ``_arguments`` wants it."""
    action = {FILES: "_files", FOLDERS: "_files -/", KEYS: "_fusevlm_keys"}.get(word.kind, "")
    if word.choices:
        words = f"({' '.join(word.choices)})"
        action = f'{{_alternative "w:word:{words}" "f:folder:_files -/"}}' if action else words
    value = f":{_colon(word.about) or 'value'}:{action}" if word.kind else ""
    if not word.flags:
        number = "*" if word.again else str(command.places.index(word) + 1)
        yield f"{number}{value}"
        return
    for flag in word.flags:
        apart = "*" if word.again else f"({' '.join(word.flags)})" if len(word.flags) > 1 else ""
        yield f"{apart}{flag}[{_bracket(word.about)}]{value}"


def _colon(text: str) -> str:
    return text.replace(":", r"\:")


def _bracket(text: str) -> str:
    return re.sub(r"([\[\]])", r"\\\1", text)


# --- fish -----------------------------------------------------------------------------------------

FISH = r"""# completion of fusevlm in fish: fusevlm completion fish
function __fusevlm_at
    set -l given
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; or set -a given $word
    end
    test "$given[1]" = "$argv[1]"; or return 1
    test (count $argv) -lt 2; or test "$given[2]" = "$argv[2]"
end

complete -c fusevlm -f
complete -c fusevlm -s h -l help -d 'show help'
complete -c fusevlm -n '__fusevlm_at ""' -l version -d 'show the version'
@LINES@
"""


def fish(found: Sequence[Command]) -> str:
    """A ``complete`` line for each word."""
    lines: list[str] = []
    for one in found:
        *before, name = one.path
        where = _q(" ".join(["__fusevlm_at", *before, '""']))
        lines.append(f"complete -c fusevlm -n {where} -a {name} -d {_fish(one.about)}")
        here = _q(f"__fusevlm_at {' '.join(one.path)}")
        for word in one.words:
            if "--help" not in word.flags:
                lines.append(f"complete -c fusevlm -n {here} {_fish_word(word)}")
    return _filled(FISH, LINES="\n".join(dict.fromkeys(lines)))


def _fish_word(word: Word) -> str:
    names = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in word.flags]
    choices = {FOLDERS: ("(__fish_complete_directories)",), KEYS: tuple(keys())}
    values = (*word.choices, *choices.get(word.kind, ()))
    needs = ["-r"] * bool(word.flags and word.kind)
    takes = ["-F"] if word.kind == FILES else ["-f"] * bool(needs)
    offered = ["-a", _fish(" ".join(values))] if values else []
    about = ["-d", _fish(word.about)] if word.flags else []
    return " ".join([*names, *needs, *takes, *offered, *about])


def _fish(text: str) -> str:
    """Quoted for fish, where a backslash in single quotes is one before a quote or another."""
    quoted = text.replace("\\", "\\\\").replace("'", r"\'")
    return f"'{quoted}'"


# --- the verb -------------------------------------------------------------------------------------

SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
EPILOG = """\
examples:
  fusevlm completion bash > ~/.local/share/bash-completion/completions/fusevlm
  fusevlm completion zsh > ~/.zfunc/_fusevlm      # with fpath+=(~/.zfunc) before compinit
  fusevlm completion fish > ~/.config/fish/completions/fusevlm.fish

it completes verbs, options, files, stages, and keys of a config after --set; make it again after an
update of fusevlm. To try it: source <(fusevlm completion bash)"""


def _filled(template: str, **parts: str) -> str:
    return re.sub(r"@([A-Z]+)@", lambda found: parts[found[1]], template)


def _q(text: str) -> str:
    return shlex.quote(text)


def options_of(name: str) -> list[str]:
    """The options of a verb, its actions' included, to name the nearest to a mistyped one."""
    every = [one for one in commands() if one.path[0] == name]
    flags = [flag for one in every for word in one.flags for flag in word.flags]
    return [flag for flag in dict.fromkeys(flags) if flag.startswith("--")]


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads it")


def _run(args: argparse.Namespace) -> int:
    tell(SHELLS[args.shell](commands()).rstrip("\n"))
    return EXIT_OK


VERBS = {"completion": Verb(EPILOG, _add, _run)}
