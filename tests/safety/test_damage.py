"""What is damaged is refused by name, or provably not used: 300 damages of a finished run.

Each is one change to one file. After it every command that may read that file is given: it must
refuse and name the file, or say and write what it says and writes of the undamaged run.
"""

import json
import random
import shutil
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as unpack
from safetensors.numpy import save as pack
from tests.safety.small import results

from fusevlm.cli import main
from fusevlm.errors import FuseError
from fusevlm.fuse.estimator import Fuse
from fusevlm.pipeline.run import STAGES
from fusevlm.store.files import checksum, digest, read_sealed, remove, save_sealed
from fusevlm.store.objects import NAME as ARRAYS

pytestmark = pytest.mark.slow
DAMAGES = 300
PRACTICAL = "calibrate/practical"


# ---------------------------------------------------------------------------------- the damages


def flip(path, rng, files):
    whole = bytearray(path.read_bytes())
    whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(whole))


def cut(path, rng, files):
    whole = path.read_bytes()
    path.write_bytes(whole[: rng.randrange(1, len(whole))])


def empty(path, rng, files):
    path.write_bytes(b"")


def lose(path, rng, files):
    path.unlink()


def swap(path, rng, files):
    """In the place of a file stands another one of its kind, whole in itself."""
    whole = path.read_bytes()
    others = [p for p in files if p.read_bytes() != whole]
    alike = [p for p in others if p.suffix == path.suffix]
    path.write_bytes(rng.choice(alike or others).read_bytes())


def digit(path, rng, files):
    """Another digit in the numbers of a JSON file: it stays JSON."""
    text = path.read_text()
    places = [k for k, c in enumerate(text) if c.isdigit() and _in_number(text, k)]
    at = rng.choice(places)
    other = rng.choice([d for d in "123456789" if d != text[at]])
    path.write_text(text[:at] + other + text[at + 1 :])


def _in_number(text, at):
    before = text[:at].rstrip("0123456789.-")
    return before[-1:] in " [:,\n" or text[at - 1] in " :[,-"


def word(path, rng, files):
    """Another letter in the texts of a JSON file: it stays JSON."""
    text = path.read_text()
    at = rng.choice([k for k, c in enumerate(text) if c.islower() and text[k - 1] != "\\"])
    path.write_text(text[:at] + rng.choice([c for c in "abcxyz" if c != text[at]]) + text[at + 1 :])


def not_a_number(path, rng, files):
    """NaN in arrays, all checksums around them made to match."""
    arrays = unpack(path.read_bytes())
    name = rng.choice([n for n, a in arrays.items() if a.dtype.kind == "f" and a.size])
    spoilt = np.array(arrays[name])
    spoilt.flat[rng.randrange(spoilt.size)] = np.nan
    payload = pack({**arrays, name: spoilt})
    if ARRAYS.fullmatch(path.name):
        forge_object(path, payload)
    else:
        forge_part(path, payload)


def forge_object(path, payload):
    (manifest,) = path.parent.glob("*.json")
    head = json.loads(manifest.read_text())
    name = f"arrays-{digest(payload)[:12]}.safetensors"
    head |= {"arrays": name, "arrays_sha256": digest(payload)}
    del head["sha256"]
    path.unlink()
    (path.parent / name).write_bytes(payload)
    manifest.write_text(json.dumps({**head, "sha256": checksum(head)}))


def forge_part(path, payload):
    note = path.with_suffix(".json")
    part = read_sealed(note, "")
    path.write_bytes(payload)
    save_sealed(note, {**part, "sha256": {**part["sha256"], "safetensors": digest(payload)}})


KINDS = {"flip": flip, "cut": cut, "empty": empty, "lose": lose, "swap": swap, "digit": digit,
         "word": word, "nan": not_a_number}  # fmt: skip


def can(kind, path, run):
    """Whether a file can be damaged so."""
    if kind in ("digit", "word"):
        return path.suffix == ".json" and path.stat().st_size > 20
    if kind == "nan":
        return path.suffix == ".safetensors" and any(
            a.dtype.kind == "f" and a.size for a in unpack(path.read_bytes()).values()
        )
    return path.stat().st_size > 1


def drawn(run, seed=0):
    """(kind, file) of all damages: each kind in each stage, then at random; notes too."""
    rng = random.Random(seed)
    files = [p for p in sorted(run.rglob("*")) if p.is_file() and p.name != ".lock"]
    by_stage = {s: [p for p in files if p.is_relative_to(run / s)] for s in STAGES}
    by_stage["run.json"] = [run / "run.json"]
    found = []
    while len(found) < DAMAGES:
        for kind in KINDS:
            for own in by_stage.values():
                fit = [p for p in own if can(kind, p, run)]
                # pictures of the data are many and all alike
                fit = [p for p in fit if p.suffix != ".png"] or fit
                if fit:
                    found.append((kind, rng.choice(fit).relative_to(run)))
    return found[:DAMAGES]


# ---------------------------------------------------------------------------------- the commands


def readers(stage):
    """Stages that read this one directly."""
    return [name for name, made in STAGES.items() if stage in made.after]


def commands(run, name, aside, picture):
    """What may read the file ``name``, as words of the command line."""
    stage = name.parts[0]
    found = [["run", str(run), "--quiet"]]
    after = readers(stage)
    if after:
        found.append(["run", str(run), "--quiet", "--redo", after[0]])
        found.append(["run", str(run), "--quiet", "--redo", after[-1]])
    if stage in ("run.json", "train", "adapter", "calibrate", "score"):
        found.append(["ask", str(picture), "what color is the shape?", "--model", str(run), "-n",
                      "3", "--json", "--quiet"])  # fmt: skip
    if stage in ("evaluate", "data", "sample", "run.json"):
        found.append(["report", str(run), str(aside), "--out", f"{run}.html", "--quiet"])
    if stage == "embed":
        found.append(["adapter", "apply", str(aside / "train/model"), str(run), "--out",
                      f"{run}.csv", "--quiet"])  # fmt: skip
    if stage == "pairs":
        found.append(["adapter", "train", str(run), "--out", f"{run}.adapter", "--inducing", "6",
                      "--latent", "2", "--steps", "2", "--quiet", "--fresh"])  # fmt: skip
    return found


def told(words, run, capsys):
    """(exit code, standard output, standard error, what was written beside the run)."""
    capsys.readouterr()
    try:
        code = main(words)
    except Exception as error:
        code, trace = 99, traceback.format_tb(error.__traceback__)[-1]
        sys.stderr.write(f"{type(error).__name__}: {error} {trace}")
    out, err = capsys.readouterr()
    written = {}
    for ending in (".html", ".csv"):
        path = Path(f"{run}{ending}")
        if path.exists():
            written[ending] = path.read_bytes()
            path.unlink()
    shutil.rmtree(f"{run}.adapter", ignore_errors=True)
    passing = ("seconds:", "steps", "page:")
    lines = [line for line in out.splitlines() if not line.startswith(passing)]
    return code, lines, err, written


def fits_of(folder):
    """The fit as its file has it; or why it cannot be loaded."""
    try:
        again = Fuse.load(folder)
    except FuseError as error:
        return str(error)
    again.save(folder.parent.parent / "loaded")
    (file,) = (folder.parent.parent / "loaded").glob("fuse.json")
    found = file.read_bytes()
    shutil.rmtree(folder.parent.parent / "loaded")
    return found


def named(path, text):
    """Whether a message names the file; of a part its number, of a lost manifest its stage."""
    lost = path.name == "stage.json" and not path.exists()
    part = path.name.startswith("part-") and path.name[:10] in text
    return path.name in text or part or (lost and f"stage {path.parent.name}" in text)


def stats(folder):
    """Size and times of every file, by name."""
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    known = {p.relative_to(folder).as_posix(): p.stat() for p in paths if p.is_file()}
    return {name: (s.st_size, s.st_mtime_ns, s.st_ino) for name, s in known.items()}


@dataclass
class Bench:
    """A run to damage, a whole copy to restore it from, and one to compare it with."""

    whole: Any
    home: Path
    capsys: Any
    usual: dict[str, Any] = field(default_factory=dict)  # what commands tell of the whole run
    counts: Counter = field(default_factory=Counter)
    wrong: list[Any] = field(default_factory=list)

    def __post_init__(self):
        self.run, self.pristine, self.aside = (self.home / n for n in ("run", "whole", "aside"))
        for copy in (self.run, self.pristine, self.aside):
            shutil.copytree(self.whole.run, copy)
        self.before = stats(self.run)
        self.fit = fits_of(self.run / PRACTICAL)

    def restore(self):
        """Put back what is not as it was."""
        for path in self.run.iterdir():
            if not (self.pristine / path.name).exists():
                remove(path)
        now = stats(self.run)
        for name in [n for n in now if n not in self.before]:
            remove(self.run / name)
        for name, known in self.before.items():
            path = self.run / name
            if now.get(name) != known:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.pristine / name, path)
                self.before[name] = stats(path)["."]

    def usually(self, words):
        key = " ".join(words)
        if key not in self.usual:
            code, out, err, written = told(words, self.run, self.capsys)
            assert code == 0, err
            self.usual[key] = (out, written)
            self.restore()
        return self.usual[key]

    def try_out(self, kind, name, number):
        """One damage, before each command that may meet it."""
        path = self.run / name
        todo = commands(self.run, name, self.aside, self.whole.picture)
        for words in [["verify", str(self.run)], *todo]:
            usual = None if words[0] == "verify" else self.usually(words)
            files = [p for p in sorted(self.run.rglob("*")) if p.is_file()]
            KINDS[kind](path, random.Random(number), files)
            now = stats(self.run)
            spoilt = {str(name), *(n for n in now if now[n] != self.before.get(n))}
            if usual is None and name.as_posix().startswith(PRACTICAL):
                self.load_fit(kind, name)
            found = told(words, self.run, self.capsys)
            verb = "run --redo" if "--redo" in words else words[0]
            verdict = self.judge([self.run / n for n in spoilt], found, usual)
            if verdict:
                self.counts[f"{verb}: {verdict}"] += 1
            else:
                self.wrong.append((kind, str(name), verb, found[0], found[1][-3:], found[2][-300:]))
            self.restore()

    def load_fit(self, kind, name):
        now = fits_of(self.run / PRACTICAL)
        if now == self.fit or isinstance(now, str):
            self.counts["Fuse.load: refused" if isinstance(now, str) else "Fuse.load: same"] += 1
        else:
            self.wrong.append((kind, str(name), "Fuse.load", "another fit"))

    def judge(self, spoilt, found, usual):
        """What a command did about it, if that is well."""
        code, out, err, written = found
        told_of = "\n".join([*out, err]) if usual is None else err
        by_name = code == 1 and any(named(path, told_of) for path in spoilt)
        if usual is None:  # verify, which must find it
            return "named" if by_name else ""
        if by_name:
            return "refused"
        if code == 0 and (out, written) == usual and self.same(spoilt):
            return "not used"
        return ""

    def same(self, spoilt):
        """Whether all results are those of the whole run, but for what was damaged itself."""
        names = {path.relative_to(self.run).as_posix() for path in spoilt}
        now, before = results(self.run), self.whole.results
        return all(now.get(n) == before.get(n) for n in {*now, *before} - names)


def test_damage_is_refused_by_name_or_not_used(whole, tmp_path, capsys, tally):
    bench = Bench(whole, tmp_path, capsys)
    for number, (kind, name) in enumerate(drawn(bench.run)):
        bench.try_out(kind, name, number)
    with capsys.disabled():
        for line in bench.wrong:
            print(*line)
    assert bench.wrong == []
    told_ = ", ".join(f"{what} {count}" for what, count in sorted(bench.counts.items()))
    tally(f"{DAMAGES} damages: 0 silently used ({told_})")
