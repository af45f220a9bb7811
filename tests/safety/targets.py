"""What reads files and texts that come from outside, each with good inputs and ways to spoil them.

A target reads one input, its bytes: a file, or one file of a folder that is whole otherwise. Where
seals and checksums stand before a reader, there are targets with the input as it is, and others
(``sealed``) for which they are made good, so that what lies behind them is reached.
"""

import argparse
import functools
import gzip
import io
import json
import resource
import shutil
import signal
import sqlite3
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save as packed
from tests.data.test_sampled import LOGS
from tests.safety import mutations as m
from tests.safety.pictures import encoded, noise
from tests.safety.prepared import ADAPTER, CHECKPOINT, Prepared

from fusevlm import Fuse, Samples
from fusevlm.checks import vector
from fusevlm.cli.tables import score_columns
from fusevlm.config import as_toml, change_config, demo_config, read_config
from fusevlm.data.captions import read_captions
from fusevlm.data.hub import FIELDS, _queries
from fusevlm.data.images import load_image
from fusevlm.data.problems import Problems
from fusevlm.data.sampled import read_sampled
from fusevlm.data.tables import read_queries
from fusevlm.data.vqa import read_vqa
from fusevlm.errors import FuseError
from fusevlm.fuse import thresholds
from fusevlm.fuse.neighbours import Neighbours
from fusevlm.fuse.rounds import Rounds
from fusevlm.metrics import summary
from fusevlm.models import calls, completions
from fusevlm.models.completions import Gives
from fusevlm.models.openai import noted_gives
from fusevlm.models.protocol import Decoding
from fusevlm.pipeline import bench, calibrate, compare, evaluate, score, verify
from fusevlm.pipeline.adapter import read_statistics
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.methods import load_method
from fusevlm.pipeline.run import states
from fusevlm.pipeline.sample import read_server, spent
from fusevlm.pipeline.semantics import read_semantics
from fusevlm.pipeline.validate import validate
from fusevlm.priors.activations import ActivationPrior
from fusevlm.priors.distances import KnnPrior, MahalanobisPrior
from fusevlm.priors.gp.pairs import read_pairs, saved_widths
from fusevlm.priors.interface import check_pairs
from fusevlm.render.text import results_text
from fusevlm.scorer import Scorer
from fusevlm.store import read_table
from fusevlm.store.cache import PairCache
from fusevlm.store.files import SEAL, checksum, digest, digest_file
from fusevlm.store.generations import KIND, read_embeddings, read_generations, read_views
from fusevlm.store.journal import Journal
from fusevlm.store.objects import NAME as ARRAYS
from fusevlm.store.parts import Parts
from fusevlm.store.runs import digest_of, read_manifest, read_run

Read = Callable[[bytes], Any]
CORPUS = Path(__file__).parent / "corpus"  # a folder for each target, of inputs that once broke it
PATIENCE = 60.0  # seconds for one input, of which a busy machine may give us few
MEMORY = 3_000_000_000  # bytes that one may take


class Hang(BaseException):
    """Not an Exception, which a reader might catch."""


def tried(read: Read, payload: bytes) -> bool:
    """Whether an input was read; else it was refused in words. Anything else is an AssertionError.

    An input that would take all memory is broken off where it asks for it.
    """

    def stop(*_):
        raise Hang

    # pytest's own alarm rings on afterwards
    before, (left, _) = signal.signal(signal.SIGALRM, stop), signal.getitimer(signal.ITIMER_REAL)
    begun = time.monotonic()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_taken() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, 1.0)  # again, where a callback swallowed it
    try:
        read(payload)
        return True
    except FuseError as error:
        if len(str(error)) < 10:
            raise AssertionError(f"{type(error).__name__} says nothing: {error}") from error
        return False
    except Hang:
        raise AssertionError(f"still at it after {PATIENCE:g} s: {shown(payload)}") from None
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}; of {shown(payload)}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.1, left - (time.monotonic() - begun)))
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _taken() -> int:
    """Bytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def shown(payload: bytes) -> str:
    """The input, or where it is long its ends."""
    if len(payload) <= 2000:
        return repr(payload)
    return f"{payload[:1000]!r} … {payload[-500:]!r} ({len(payload)} bytes)"


@dataclass(frozen=True)
class Target:
    """One way in.

    make   of what is prepared, and an empty folder: good inputs, a strategy for others, and what
           reads one
    most   how many are tried
    """

    make: Callable[[Prepared, Path], tuple[list[bytes], st.SearchStrategy[bytes], Read]]
    most: int = 400


# --------------------------------------------------------------------------------------- tables


def rows_of_queries():
    return [
        {"id": "a", "question": "what?", "image": "a.png", "references": ["x", "y"], "n": 1},
        {"id": "b", "question": "é", "image": "a.png", "references": [], "n": None},
        {"id": "c", "question": "how", "images": ["a.png", "b.png"], "history": [["user", "hi"]],
         "split": "x"},
    ]  # fmt: skip


def rows_of_samples():
    return [
        {"id": "a", "question": "what?", "samples": ["x", "y", "x"], "wrong": 0, "p": 0.1},
        {"id": "b", "question": "who", "samples": ["x", "y"], "logprobs": [[-0.1, -0.2], [-1.0]],
         "answer": "x", "answer_logprobs": [-0.5], "references": ["x"], "p": "0.5"},
        {"id": "c", "question": "q", "samples": [{"text": "x", "logprobs": [-0.1]}], "wrong": True},
        {"id": "d", "question": "q", "samples": ["x", "y"], "wrong": [0, 1], "p": None},
    ]  # fmt: skip


def rows_of_scores():
    return [{"u": k / 10, "wrong": int(k > 6), "p": 0.1, "unit": f"i{k % 3}"} for k in range(10)]


def cells(rows):
    """The same as a table of cells, lists as JSON; the header first."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    found = [[row.get(name) for name in names] for row in rows]
    return [names] + [[json.dumps(c) if isinstance(c, list) else c for c in row] for row in found]


def arrow(rows):
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: m._column([row.get(name) for row in rows]) for name in names})


def tables(rows, read):
    """A target for each format that tables come in."""
    forms = {
        "csv": (cells, m.to_csv), "jsonl": (list, m.to_json_lines), "parquet": (arrow, m.to_parquet)
    }  # fmt: skip

    def target(ending):
        def make(prepared, home):
            shape, write = forms[ending]
            seed = write(shape(rows()))
            path = home / f"a.{ending}"
            if ending == "parquet":
                return [seed], m.parquet_changes([seed]), in_file(path, read)
            changed = m.trees([shape(rows())]).map(write)
            ways = st.one_of(changed, changed, m.byte_changes([seed]))
            return [seed], ways, in_file(path, read)

        return Target(make)

    return {ending: target(ending) for ending in forms}


def in_file(path, read):
    """What reads an input that is written to a file."""

    def reading(payload):
        path.write_bytes(payload)
        return read(path)

    return reading


def read_samples(path):
    for row in read_sampled(path):
        row.number("p")


def read_scores(path):
    args = argparse.Namespace(file=str(path), score="u", wrong="wrong")
    u, wrong, table = score_columns(args)
    p = vector(table["p"], "p") if "p" in table else None
    summary(u, wrong, p, units=table.get("unit"), n_boot=3)
    for rule in (thresholds.learn_then_test, thresholds.clopper_pearson, thresholds.paper_bound):
        rule(u, wrong, risk=0.2, delta=0.1)
    thresholds.risk_table(u, wrong, delta=0.1, n_rows=3)


# ------------------------------------------------------------------------------------- pictures


def pictures(prepared, home):
    small, animated = noise((9, 7)), io.BytesIO()
    small.save(animated, "GIF", save_all=True, append_images=[noise((9, 7), "L")])
    exif = Image.Exif()
    exif[0x0112] = 6
    seeds = [
        encoded(small, kind)
        for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
        if kind in Image.SAVE or (Image.init() and kind in Image.SAVE)
    ]
    seeds += [animated.getvalue(), encoded(small, "JPEG", exif=exif.tobytes())]
    seeds += [encoded(small.convert(mode), "PNG") for mode in ("P", "LA", "L", "1")]
    pngs = [seed for seed in seeds if seed.startswith(b"\x89PNG")]
    ways = st.one_of(m.byte_changes(seeds), m.byte_changes(pngs).map(m.mended_png))
    return seeds, ways, in_file(home / "a.png", load_image)


# ---------------------------------------------------------------------------------- annotations


def vqa_questions():
    rows = [{"image_id": 1 + k // 2, "question": f"what {k}?", "question_id": k} for k in range(3)]
    return {"info": {"year": 2017}, "questions": rows, "license": {"url": "x"}}


def vqa_annotations():
    ten = [{"answer": "yes", "answer_id": k} for k in range(10)]
    rows = [
        {"image_id": 1 + k // 2, "question_id": k, "answers": ten, "answer_type": "other"}
        for k in range(3)
    ]
    return {"annotations": rows}


def vqa(part):
    """One of the two files; read strictly and leniently, with pictures and without."""

    def make(prepared, home):
        trees = {"questions": vqa_questions(), "annotations": vqa_annotations()}
        paths = {name: home / f"{name}.json" for name in trees}
        for name, tree in trees.items():
            paths[name].write_bytes(m.to_json(tree))
        for k in (1, 2):
            (home / f"COCO_val2014_{k:012d}.jpg").write_bytes(b"")

        def read(path):
            for strict, images in ((False, home), (True, None)):
                list(read_vqa(paths["questions"], paths["annotations"], images, strict=strict))

        changed = m.trees([trees[part]]).map(m.to_json)
        seed = m.to_json(trees[part])
        ways = st.one_of(changed, changed, m.byte_changes([seed]))
        return [seed], ways, in_file(paths[part], read)

    return Target(make)


def vqa_packed(prepared, home):
    seeds = [gzip.compress(m.to_json(vqa_questions()), mtime=0)]
    read = partial(read_vqa, annotations=None, images=None, strict=False)
    return seeds, m.byte_changes(seeds), in_file(home / "q.json.gz", lambda p: list(read(p)))


COCO = {
    "images": [{"id": k, "file_name": f"{k}.jpg"} for k in range(2)],
    "annotations": [{"image_id": k, "id": k, "caption": f"a {k}"} for k in range(2)],
}
KARPATHY = {
    "images": [
        {"filepath": "val2014", "filename": "0.jpg", "split": "test", "sentences": [{"raw": "a"}]},
        {"filename": "1.jpg", "split": "train", "sentences": [{"raw": "b"}, {"raw": "c"}]},
    ]
}


def captions_json(tree, form):
    def make(prepared, home):
        _two_pictures(home)
        changed = m.trees([tree]).map(m.to_json)
        seed = m.to_json(tree)
        ways = st.one_of(changed, changed, m.byte_changes([seed]))
        return [seed], ways, in_file(home / "captions_val2014.json", _captions(home, form))

    return Target(make)


def _two_pictures(home):
    (home / "val2014").mkdir(exist_ok=True)
    for name in ("0.jpg", "1.jpg", "val2014/0.jpg"):
        (home / name).write_bytes(b"")


def _captions(home, form, lists=None):
    def read(path):
        for strict, split in ((False, None), (True, "test")):
            split = split if form == "karpathy" or lists else None
            found = read_captions(
                path, home, format=form, strict=strict, split=split, split_lists=lists
            )
            list(found)

    return read


def flickr(seed, form, part="captions"):
    """Lines of captions, or the list of a split beside them."""

    def make(prepared, home):
        _two_pictures(home)
        lists = {"test": home / "test.txt", "train": home / "train.txt"}
        lists["test"].write_text("0.jpg\n")
        lists["train"].write_text("1.jpg\n")
        (home / "a.txt").write_bytes(seed)
        good = seed if part == "captions" else b"0.jpg\n2.jpg\n"
        read = _captions(home, form, lists)
        if part == "captions":
            return [good], m.byte_changes([good]), in_file(home / "a.txt", read)
        return (
            [good],
            m.byte_changes([good]),
            in_file(lists["test"], lambda path: read(home / "a.txt")),
        )

    return Target(make, 250)


def hub(prepared, home):
    """Rows as the datasets library gives them."""
    rows = [
        {"id": 1, "question": "what?", "image": "a.png", "references": ["a", "b"], "x": 1},
        {"question": "who", "image": ["a.png"], "references": [{"answer": "a"}]},
        {"id": "c", "question": "q", "references": "yes"},
    ]

    def read(payload):
        try:
            found = json.loads(payload)
        except (ValueError, RecursionError):
            return
        found = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
        for strict in (False, True):
            list(_queries(found, {f: f for f in FIELDS}, "x", None, Problems(strict)))

    return [m.to_json(rows)], m.trees([rows]).map(m.to_json), read


# -------------------------------------------------------------------------------------- configs

CONFIG = """
name = "own"
[data]
source = "files"
calibration = "a.jsonl"
test = "a.jsonl"
[sample]
model = "tiny:llava@1"
n = 3
layers = ["last", "middle"]
[server]
max_calls = 5
[adapter]
source = "none"
statistics = []
[calibrate]
methods = ["practical", "g_nll"]
row = [{name = "own", preset = "practical", options = {jitter = 1e-4}}]
sweep = [{option = "alpha", values = [0.5, 1.0]}]
[evaluate]
risks = [0.1]
slices = ["severity"]
[report]
figures = ["roc"]
"""
BENCH = """
name = "b"
[bench]
rows = "ablations"
samples = [2, 3]
criteria = ["rouge_l@0.3", "exact_match"]
row = [{name = "own", preset = "practical"}]
[[dataset]]
name = "d"
source = "embedded"
n_test = 40
[[model]]
name = "m"
model = "embedded"
device = "cpu"
[sample]
n = 3
"""


def configs(text, read, more=()):
    def make(prepared, home):
        import tomllib

        seeds = [text.encode(), *(one.encode() for one in more)]
        changed = m.trees([tomllib.loads(seed.decode()) for seed in seeds]).map(m.to_toml)
        (home / "a.jsonl").write_bytes(m.to_json_lines(rows_of_queries()))
        ways = st.one_of(changed, changed, m.byte_changes(seeds))
        return seeds, ways, in_file(home / "own.toml", read)

    return Target(make, 900)


def read_own_config(path):
    config = read_config(path)
    read_config_again(as_toml(config), path.with_name("again.toml"))


def read_config_again(text, path):
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    read_config(path)


def changes(prepared, home):
    """``--set section.key=value``."""
    config = demo_config(40)
    seeds = [b"sample.n=5", b'calibrate.methods=["practical"]', b"evaluate.risks=[0.1]",
             b"data.test=a.csv", b'calibrate.row=[{name="a"}]']  # fmt: skip
    values = st.one_of(m.odd_values.map(m._toml), st.text(max_size=8))
    keys = st.sampled_from([seed.partition(b"=")[0].decode() for seed in seeds])
    drawn = st.tuples(keys, values).map(
        lambda d: f"{d[0]}={d[1]}".encode(errors="surrogatepass")[: m.MOST_BYTES]
    )

    def read(payload):
        change_config(config, [payload.decode(errors="surrogateescape")])

    return seeds, st.one_of(drawn, m.byte_changes(seeds)), read


# --------------------------------------------------------------------------------------- arrays


def pairs_npy(prepared, home):
    seeds = [m.to_npy(np.stack([*prepared.pairs.values()])[:, :4])]
    return seeds, m.npy_changes(seeds), in_file(home / "a.npy", _read_pairs)


def pairs_safetensors(prepared, home):
    seeds = [packed({k: v[:4].astype(np.float32) for k, v in prepared.pairs.items()})]
    return seeds, m.safetensors_changes(seeds), in_file(home / "a.safetensors", _read_pairs)


def pairs_parquet(prepared, home):
    table = pa.table({k: v[:4].tolist() for k, v in prepared.pairs.items()})
    seeds = [m.to_parquet(table)]
    return seeds, m.parquet_changes(seeds), in_file(home / "a.parquet", _read_pairs)


def _read_pairs(path):
    found = read_pairs(path)
    check_pairs(found.get("image"), found.get("text"))


# ------------------------------------------------------------------------------ stored objects


def write_object(folder, manifest, head):
    """A manifest with the checksum of what it holds."""
    held = {name: value for name, value in head.items() if name != "sha256"}
    (folder / manifest).write_bytes(json.dumps({**held, "sha256": checksum(held)}).encode())


def arrays_of(folder):
    (found,) = (path for path in folder.iterdir() if ARRAYS.fullmatch(path.name))
    return found


def manifest_of(folder, name):
    return json.loads((folder / name).read_bytes())


def stored(kind, manifest, load, inner="", name=""):
    """Targets of a stored object: manifest as it is, manifest and arrays with good checksums."""

    load = without_overflow(load)

    def where(prepared, home):
        return prepared.copy(kind, home) / inner

    def plain(prepared, home):
        folder = where(prepared, home)
        seed = (folder / manifest).read_bytes()
        tree = json.loads(seed)
        ways = st.one_of(m.trees([tree]).map(m.to_json), m.byte_changes([seed]))
        return [seed], ways, in_file(folder / manifest, lambda p: load(prepared, folder))

    def sealed(prepared, home):
        folder = where(prepared, home)
        tree = {k: v for k, v in manifest_of(folder, manifest).items() if k != "sha256"}

        def read(payload):
            try:
                head = json.loads(payload)
                assert isinstance(head, dict)
                write_object(folder, manifest, head)
            except (ValueError, RecursionError, AssertionError):
                (folder / manifest).write_bytes(payload)
            return load(prepared, folder)

        return [m.to_json(tree)], m.trees([tree]).map(m.to_json), read

    def arrays(prepared, home):
        folder = where(prepared, home)
        head, path = manifest_of(folder, manifest), arrays_of(folder)
        seed = path.read_bytes()

        def read(payload):
            path.write_bytes(payload)
            write_object(folder, manifest, {**head, "arrays_sha256": digest(payload)})
            return load(prepared, folder)

        return [seed], m.safetensors_changes([seed]), read

    made = {"": Target(plain, 150), "-sealed": Target(sealed, 500), "-arrays": Target(arrays, 300)}
    return {f"{name or kind}{ending}": target for ending, target in made.items()}


def without_overflow(use):
    """Numbers of a fit may be any; what they make of a query is not the reader's business."""

    @functools.wraps(use)
    def used(*given):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)
            return use(*given)

    return used


def use_fuse(prepared, folder):
    fuse = Fuse.load(folder)
    repr(fuse)
    few = prepared.few
    given = {"inputs": few.inputs, "views": few.views, "extra": few.evidence, "s": few.prior}
    if fuse.preset == "paper":
        given = {"s": few.prior}
    scores = fuse.score(few.samples, **given)
    decided = fuse.decide(scores, risk=0.4)
    fuse.explain_scores(scores, few.samples, decided.reason)


def use_rounds(prepared, folder):
    rounds = Rounds.load(folder)
    repr(rounds)
    rounds.decide(prepared.few, risk=0.4)


def use_neighbours(prepared, folder):
    Neighbours.load(folder).near({k: v[:1] for k, v in prepared.few.inputs.items()})


def use_scorer(prepared, folder):
    """Its inner objects are whole, and what they are called."""
    scorer = Scorer.load(folder)
    if scorer.features.towers == "none" and scorer.features.meanings == "strings":  # no model
        scorer.judge(read_sampled(prepared.rows)[:3])


def use_adapter(prepared, folder):
    from fusevlm.priors.gp.adapter import GpAdapter

    saved_widths(folder)
    few = {name: rows[:2] for name, rows in prepared.pairs.items()}
    adapter = GpAdapter.load(folder)
    widths = adapter.fitted.widths
    adapter.statistics(**{name: rows for name, rows in few.items() if name in widths})


def use_prior(kind):
    def use(prepared, folder):
        prior = kind.load(folder)
        prior.statistics(**{name: rows[:2] for name, rows in prepared.pairs.items()})

    return use


def use_checkpoint(prepared, folder):
    """Training goes on from it, or refuses it."""
    from fusevlm.priors.gp.adapter import GpAdapter

    home = folder.parent
    for other in home.iterdir():  # a later one, of the input before
        if other != folder:
            shutil.rmtree(other)
    adapter = GpAdapter(**ADAPTER)
    adapter.fit(**prepared.pairs, folder=home.parent, checkpoint_every=100)


def use_method(prepared, folder):
    found = load_method(folder.parent)
    found.apply(prepared.few)
    found.thresholds(0.2, 0.1)


# ------------------------------------------------------------------------------------------ runs


def seal(tree):
    return json.dumps({**tree, SEAL: checksum(tree)}).encode()


def unsealed(payload):
    return {k: v for k, v in json.loads(payload).items() if k != SEAL}


def sealed_file(name, read, most=500):
    """A sealed note of a run, whatever it says."""

    def make(prepared, home):
        run = prepared.copy("run", home)
        path = run / name
        whole = path.read_bytes()
        tree = unsealed(whole)

        def reading(payload):
            try:
                found = json.loads(payload)
                path.write_bytes(seal(found) if isinstance(found, dict) else payload)
            except (ValueError, RecursionError):
                path.write_bytes(payload)
            try:
                return read(run)
            finally:
                path.write_bytes(whole)

        seed = m.to_json(tree)
        ways = st.one_of(m.trees([tree]).map(m.to_json), m.byte_changes([seed], most=2))
        return [seed], ways, reading

    return Target(make, most)


def stage_file(name, ways, read, most=400):
    """A result of a stage, of which the manifest says what it is now."""

    def make(prepared, home):
        run = prepared.copy("run", home)
        stage = name.partition("/")[0]
        path, manifest = run / name, run / stage / "stage.json"
        whole, before = path.read_bytes(), manifest.read_bytes()
        noted = unsealed(before)

        def reading(payload):
            path.write_bytes(payload)
            files = {**noted["files"], name.partition("/")[2]: digest_file(path)}
            manifest.write_bytes(seal({**noted, "files": files, "digest": digest_of(files)}))
            try:
                return read(run)
            finally:
                path.write_bytes(whole)
                manifest.write_bytes(before)

        return [whole], ways([whole]), reading

    return Target(make, most)


def part_file(stage, ending, read, most=400):
    """Rows or arrays of a part, whose note has their checksum."""

    def make(prepared, home):
        run = prepared.copy("run", home)
        path, manifest = run / stage / f"part-00000.{ending}", run / stage / "stage.json"
        note = path.with_suffix(".json")
        before = {one: one.read_bytes() for one in (path, note, manifest)}
        whole, noted, stated = before[path], unsealed(before[note]), unsealed(before[manifest])

        def reading(payload):
            path.write_bytes(payload)
            sums = {**noted["sha256"], ending: digest(payload)}
            note.write_bytes(seal({**noted, "sha256": sums}))
            files = {**stated["files"], note.name: digest_file(note)}
            manifest.write_bytes(seal({**stated, "files": files, "digest": digest_of(files)}))
            try:
                return read(run)
            finally:
                for one, content in before.items():
                    one.write_bytes(content)

        kinds = {"parquet": m.parquet_changes, "safetensors": m.safetensors_changes}
        return [whole], kinds[ending]([whole]), reading

    return Target(make, most)


def json_ways(seeds):
    return st.one_of(
        m.trees([json.loads(seed) for seed in seeds]).map(m.to_json), m.byte_changes(seeds, most=2)
    )


def look_at_run(run):
    config = read_run(run)
    states(run, config, look_outside=False)
    as_toml(config)


def look_at_stage(run):
    manifest = read_manifest(run, "sample")
    states(run, read_run(run), look_outside=False)
    if manifest is not None:
        verify.verify(run)


NEEDS = {"embeddings", "middle", "answer_state", "prompt"}


def look_at_sample(run):
    parts = Parts(run / "sample", KIND)
    assert parts.size is None or parts.size >= 0
    for name in ("failed", "passing", "queries"):
        parts.total(name)
    list(read_generations(run / "sample", "last", layers=["middle"], prompts=["middle"]))
    score.read_table(run, read_run(run), states=NEEDS)


def look_at_embed(run):
    read_embeddings(run / "embed")
    read_embeddings(run / "embed", activations=True)
    read_views(run / "embed")
    pairs = read_pairs(run / "embed")
    check_pairs(pairs.get("image"), pairs.get("text"), norm="any")
    score.read_table(run, read_run(run), states={"prompt"})


def look_at_pairs(run):
    found = read_pairs(run, training=True)
    check_pairs(found["image"], found["text"], norm="any")


def look_at_semantics(run):
    read_semantics(run)
    queries, _ = score.read_table(run, read_run(run), states=NEEDS)
    from fusevlm.scores import compute_scores

    compute_scores(queries, ["eccentricity", "distinct", "semantic_entropy_rao"])


def look_at_data(run):
    read_asked(run)
    score.read_table(run, read_run(run))


def look_at_statistics(run):
    read_statistics(run)
    score.read_table(run, read_run(run))


def look_at_score(run):
    score.read_scored(run, read_run(run))


def look_at_results(run):
    found = evaluate.read_results(run)
    results_text(found)
    bench.cells_of(run, read_run(run), found)
    bench._place("x", run, read_run(run), found)


def look_at_predictions(run):
    evaluate.read_predictions(run)
    compare.read_sides(run, run)


def look_at_absent(run):
    calibrate.read_methods(run, ("practical", "g_nll"))
    calibrate.read_rounds(run)


def server_note(prepared, home):
    """What a run noted of a service, sealed."""
    tree = {"model": "m", "calls": 3, "prompt_tokens": 5, "answer_tokens": 7, "cost": 0.0,
            "n": True, "logprobs": False, "limit": "max_tokens", "fingerprint": ""}  # fmt: skip
    (home / "run" / "sample").mkdir(parents=True)
    path = home / "run" / "sample" / "server.json"

    def read(payload):
        try:
            found = json.loads(payload)
            path.write_bytes(seal(found) if isinstance(found, dict) else payload)
        except (ValueError, RecursionError):
            path.write_bytes(payload)
        noted = read_server(home / "run", "sample")
        spent(noted)
        noted_gives(noted)

    return [m.to_json(tree)], m.trees([tree]).map(m.to_json), read


# ---------------------------------------------------------------------------- caches and journals


def cache_file(prepared, home):
    seeds = [prepared.cache.read_bytes()]
    return seeds, m.byte_changes(seeds), in_file(home / "pairs.sqlite", _use_cache)


def _use_cache(path):
    for ending in ("-journal", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)
    with PairCache(path) as cache:
        cache.find("m", [("a", "0"), ("a", "1"), ("b", "0")])
        cache.add("m", {("b", "1"): np.ones(3) / 3})


def cache_rows(prepared, home):
    """Rows of any types in the table, or in one of other columns."""
    file = sqlite3.connect(prepared.cache)
    rows = [list(row) for row in file.execute("SELECT * FROM verdicts")]
    (statement,) = file.execute("SELECT sql FROM sqlite_master WHERE name = 'verdicts'").fetchone()
    file.close()
    key = rows[0][1]
    plain = [["m", *row[2:]] for row in rows]

    def read(payload):
        try:
            tree = json.loads(payload)
            made = [statement.replace("checksum", tree[0])]
            made += [[row[0], key, *row[1:]] for row in tree[1:]]
            payload = m.to_sqlite(made, home)
        except (ValueError, RecursionError, TypeError, LookupError, sqlite3.Error, OverflowError,
                AttributeError):  # fmt: skip
            return
        path = home / "pairs.sqlite"
        path.write_bytes(payload)
        _use_cache(path)

    tree = ["checksum", *plain[:2]]
    return [m.to_json(tree)], m.trees([tree]).map(m.to_json), read


def journal_tree():
    answer = {"text": "x", "logprobs": [-0.1], "margins": [0.2], "truncated": False}
    bare = {**answer, "logprobs": None, "margins": None}
    return [[f"k/{k}", {"answer": one, "prompt_tokens": 3}] for k, one in enumerate([answer, bare])]


def journal(prepared, home):
    seed = m.to_journal(journal_tree())

    def read(path):
        found = Journal(path)
        for key in ("k/0", "k/1", "k/-1"):
            completions.kept_answer(found.find(key))
        found.add("k/2", {"a": 1})
        assert Journal(path).find("k/2") == {"a": 1}

    changed = m.trees([journal_tree()]).map(m.to_journal)
    return [seed], st.one_of(changed, m.byte_changes([seed])), in_file(home / "calls.jsonl", read)


# ----------------------------------------------------------------------------------------- logs


def inspect_json(prepared, home):
    tree = json.loads((LOGS / "inspect.json").read_bytes())
    tree = {"version": tree.get("version"), "samples": tree["samples"][:2]}
    seed = m.to_json(tree)
    read = partial(read_sampled, form="inspect")
    ways = st.one_of(m.trees([tree]).map(m.to_json), m.byte_changes([seed]))
    return [seed], ways, in_file(home / "a.json", read)


def inspect_eval(prepared, home):
    whole = (LOGS / "inspect.eval").read_bytes()
    tree = json.loads((LOGS / "inspect.json").read_bytes())
    inner = {f"samples/{k}.json": one for k, one in enumerate(tree["samples"][:3])}
    small = m.to_eval({"header.json": {"version": 2}, **inner})
    ways = st.one_of(
        m.trees([{"header.json": {}, **inner}]).map(m.to_eval), m.byte_changes([small]),
        m.byte_changes([whole]),
    )  # fmt: skip
    return [small, whole], ways, in_file(home / "a.eval", partial(read_sampled, form="inspect"))


def lmms_eval(prepared, home):
    lines = (LOGS / "lmms_eval_samples.jsonl").read_text().splitlines()[:2]
    tree = [json.loads(line) for line in lines]
    seed = m.to_json_lines(tree)
    ways = st.one_of(m.trees([tree]).map(m.to_json_lines), m.byte_changes([seed]))
    return [seed], ways, in_file(home / "a.jsonl", partial(read_sampled, form="lmms-eval"))


# -------------------------------------------------------------------------------------- servers


def reply_tree():
    tokens = [
        {"token": "ye", "bytes": [121, 101], "logprob": -0.1,
         "top_logprobs": [{"token": "ye", "logprob": -0.1}, {"token": "n", "logprob": -2.0},
                          {"token": "x", "logprob": -3.0}]},
        {"token": "s", "bytes": None, "logprob": -0.2,
         "top_logprobs": [{"token": "s", "logprob": -0.2}, {"token": "n", "logprob": -1.0},
                          {"token": "x", "logprob": -3.0}]},
    ]  # fmt: skip
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"},
              "finish_reason": "stop", "logprobs": {"content": tokens}}  # fmt: skip
    parts = {**choice, "message": {"content": [{"type": "text", "text": "yes"}]}}
    return {"id": "x", "model": "m", "choices": [choice, parts],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4}}  # fmt: skip


def reply(prepared, home):
    """The body of a server's answer, through all that looks at it."""
    gives = [Gives(n=True), Gives(n=True, logprobs=True, top_logprobs=True, spelled=True)]

    def read(payload):
        found = calls._parsed(payload.decode("utf-8", "replace"))
        completions.count_tokens(found, 16)
        for one in gives:
            answers = completions.read_answers(found, one, Decoding(stop=("\n",)))
            for answer in answers:
                Samples([answer.text], None if answer.logprobs is None else [answer.logprobs],
                        answer_margins=answer.margins, answer=answer.text)  # fmt: skip

    seed = m.to_json(reply_tree())
    ways = st.one_of(m.trees([reply_tree()]).map(m.to_json), m.byte_changes([seed]))
    return [seed], ways, read


def refusal(prepared, home):
    """The body of an answer that is none."""
    tree = {"error": {"message": "no", "code": 429}}

    def read(payload):
        body = payload.decode("utf-8", "replace")
        for status, after in ((429, body[:20]), (500, "3"), (404, ""), (302, "x"), (401, "nan")):
            str(calls._refusal(status, {"retry-after": after}, body))

    seed = m.to_json(tree)
    return [seed], st.one_of(m.trees([tree]).map(m.to_json), m.byte_changes([seed])), read


def from_openai(prepared, home):
    plain = {"choices": [{"text": "x", "logprobs": {"token_logprobs": [-0.1]}}, {"text": "y"}]}

    def read(payload):
        try:
            found = json.loads(payload)
        except (ValueError, RecursionError):
            return
        Samples.from_openai(found)

    trees = [reply_tree(), [reply_tree(), plain], plain]
    return [m.to_json(tree) for tree in trees], m.trees(trees).map(m.to_json), read


# --------------------------------------------------------------------------------- model folders


def model_config(prepared, home):
    """config.json of a model that a config names: looked at before anything is loaded."""
    for name in ("vlm", "towers"):
        (home / name).mkdir()
        (home / name / "config.json").write_text("{}")
    (home / "a.jsonl").write_bytes(m.to_json_lines(rows_of_queries()[:2]))
    (home / "own.toml").write_text(
        '[data]\nsource = "files"\ntest = "a.jsonl"\n[sample]\nmodel = "vlm"\n'
        '[embed]\ntowers = "towers"\n[adapter]\nsource = "embedded"\n'
    )
    config = read_config(home / "own.toml")
    tree = {"model_type": "siglip", "text_config": {"hidden_size": 8}, "hidden_size": 4,
            "projection_dim": 32}  # fmt: skip

    def read(payload):
        for name in ("vlm", "towers"):
            (home / name / "config.json").write_bytes(payload)
        validate(config, home / "run")

    seed = m.to_json(tree)
    return [seed], st.one_of(m.trees([tree]).map(m.to_json), m.byte_changes([seed])), read


TARGETS: dict[str, Target] = {
    **{f"table-{k}": t for k, t in tables(rows_of_queries, read_table).items()},
    **{f"queries-{k}": t for k, t in tables(rows_of_queries, read_queries).items()},
    **{f"sampled-{k}": t for k, t in tables(rows_of_samples, read_samples).items()},
    **{f"scores-{k}": t for k, t in tables(rows_of_scores, read_scores).items()},
    "picture": Target(pictures, 1500),
    "vqa-questions": vqa("questions"),
    "vqa-annotations": vqa("annotations"),
    "vqa-packed": Target(vqa_packed, 200),
    "coco": captions_json(COCO, "coco"),
    "karpathy": captions_json(KARPATHY, "karpathy"),
    "flickr-tokens": flickr(b"0.jpg#0\ta dog\n1.jpg#1\ta cat\n", "tokens"),
    "flickr-table": flickr(b'image,caption\n0.jpg,a dog\n1.jpg,"a, cat"\n', "table"),
    "flickr-list": flickr(b"0.jpg#0\ta dog\n1.jpg#1\ta cat\n", "tokens", part="list"),
    "hub": Target(hub),
    "config": configs(CONFIG, read_own_config),
    "bench": configs(BENCH, bench.read_bench),
    "changes": Target(changes),
    "pairs-npy": Target(pairs_npy),
    "pairs-safetensors": Target(pairs_safetensors),
    "pairs-parquet": Target(pairs_parquet),
    **stored("fuse", "fuse.json", use_fuse),
    **stored("paper", "fuse.json", use_fuse),
    **stored("rounds", "rounds.json", use_rounds),
    **stored("neighbours", "neighbours.json", use_neighbours),
    **stored("scorer", "scorer.json", use_scorer),
    **stored("adapter", "adapter.json", use_adapter),
    **stored("adapter", "checkpoint.json", use_checkpoint, CHECKPOINT, "checkpoint"),
    **stored("activations", "activations.json", use_prior(ActivationPrior)),
    **stored("knn", "knn.json", use_prior(KnnPrior)),
    **stored("mahalanobis", "mahalanobis.json", use_prior(MahalanobisPrior)),
    **stored("method", "method.json", use_method, "method"),
    "run": sealed_file("run.json", look_at_run),
    "stage": sealed_file("sample/stage.json", look_at_stage),
    "part": sealed_file("sample/part-00000.json", look_at_sample, 300),
    "sample-rows": part_file("sample", "parquet", look_at_sample),
    "sample-arrays": part_file("sample", "safetensors", look_at_sample),
    "embed-rows": part_file("embed", "parquet", look_at_embed),
    "embed-arrays": part_file("embed", "safetensors", look_at_embed),
    "pairs-arrays": part_file("pairs", "safetensors", look_at_pairs),
    "semantics-rows": part_file("semantics", "parquet", look_at_semantics),
    "semantics-arrays": part_file("semantics", "safetensors", look_at_semantics),
    "data": stage_file("data/queries.parquet", m.parquet_changes, look_at_data),
    "statistics": stage_file("adapter/statistics.parquet", m.parquet_changes, look_at_statistics),
    "scores": stage_file("score/scores.parquet", m.parquet_changes, look_at_score),
    "labels": stage_file("score/labels.parquet", m.parquet_changes, look_at_score, 200),
    "results": stage_file("evaluate/results.json", json_ways, look_at_results),
    "predictions": stage_file(
        "evaluate/predictions.parquet", m.parquet_changes, look_at_predictions
    ),
    "absent": stage_file("calibrate/absent.json", json_ways, look_at_absent, 200),
    "server": Target(server_note, 200),
    "cache": Target(cache_file, 500),
    "cache-rows": Target(cache_rows),
    "journal": Target(journal, 500),
    "inspect-json": Target(inspect_json),
    "inspect-eval": Target(inspect_eval),
    "lmms-eval": Target(lmms_eval),
    "reply": Target(reply, 800),
    "refusal": Target(refusal, 200),
    "openai": Target(from_openai),
    "model": Target(model_config, 300),
}
