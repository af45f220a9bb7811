"""A finished run folder without any model: stored answers and statistics with a known truth."""

import dataclasses
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fusevlm import simulate
from fusevlm.config import make_config
from fusevlm.pipeline.adapter import STATISTICS
from fusevlm.pipeline.data import IMAGES, QUERIES
from fusevlm.pipeline.run import settings_of
from fusevlm.store import runs, save_parquet
from fusevlm.store.generations import EMBEDDINGS, KIND, write_generations
from fusevlm.store.parts import Parts
from fusevlm.store.runs import Manifest
from fusevlm.types import Generation

N_CALIBRATION, N_TEST = 120, 150
HOSTILE = '<script>alert("x")</script> & what?'


def with_topics(world):
    """Answers to one query share a direction, as real ones do, and stray from it with u."""
    d = world.samples[0].embeddings.shape[1]
    topics = 3 * np.random.default_rng(0).standard_normal((len(world), d))
    moved = [
        replace(said, embeddings=said.embeddings + topic)
        for said, topic in zip(world.samples, topics, strict=True)
    ]
    return replace(world, samples=moved)


def make_run(root, tree=None, *, sizes=(N_CALIBRATION, N_TEST), errors=None, unembedded=()):
    """Stages data, sample, embed and adapter as a model would have left them.

    ``errors`` of failed queries and those ``unembedded`` go by their number.
    """
    tree = tree or {"name": "simulated"}
    given = {"statistics": [], **tree.get("adapter", {})}  # the world has but one
    config = make_config({**tree, "adapter": given}, "test")
    size = sum(sizes)
    world = with_topics(simulate.queries(size, n_samples=6, d=12, seed=5))
    rng = np.random.default_rng(0)
    splits = ["calibration"] * sizes[0] + ["test"] * sizes[1]
    ids = [f"{split}/{k}" for k, split in enumerate(splits)]
    severity = rng.integers(0, 6, size)
    rows = {
        "query_id": ids,
        "split": splits,
        "unit": [str(k // 2) for k in range(size)],
        "question": [HOSTILE] * size,
        "images": [[f"{IMAGES}/{k // 2}.png"] for k in range(size)],
        "history": ["[]"] * size,
        "references": [["right"]] * size,
        "metadata": [
            json.dumps(
                {
                    "severity": int(at),
                    "corruption": "noise" if at else "clean",
                    "odd": k % 10 == 0,
                    "image_id": str(k // 2),
                }
            )
            for k, at in enumerate(severity)
        ],
    }
    save_parquet(root / "data" / QUERIES, rows)
    (root / "data" / IMAGES).mkdir()
    for k in range(size // 2):
        pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "data" / IMAGES / f"{k}.png")
    generations = [
        Generation(
            ids[k],
            dataclasses.replace(one, answer="wrong" if world.wrong[k] else "right"),
            layers={"last": one.embeddings, "middle": one.embeddings[:, ::-1]},
            answer_layers={"last": one.embeddings[0], "middle": one.embeddings[0, ::-1]},
            prompt_layers={"last": one.embeddings[1], "middle": one.embeddings[2]},
        )
        for k, one in enumerate(world.samples)
    ]
    for k, error in (errors or {}).items():
        generations[k] = Generation(ids[k], error=error)
    parts = Parts(root / "sample", KIND)
    for index, start in enumerate(range(0, size, 64)):
        write_generations(parts, index, generations[start : start + 64])
    seen = [k for k in range(size) if k not in unembedded]
    save_parquet(
        root / "adapter" / STATISTICS, {"query_id": [ids[k] for k in seen], "s": world.s[seen]}
    )
    vectors = rng.standard_normal((2, size, 3)).astype(np.float32)
    Parts(root / "embed", EMBEDDINGS).write(
        0,
        {"query_id": ids, "error": ["torn" if k in unembedded else None for k in range(size)]},
        {"image": vectors[0], "text": vectors[1]},
        {"queries": size, "failed": len(unembedded)},
    )
    upstream = {}
    for name, after in {"data": (), "sample": ("data",), "embed": ("data",),
                        "adapter": ("data", "embed")}.items():  # fmt: skip
        files = runs.file_digests(root / name)
        upstream[name] = runs.digest_of(files)
        before = {other: upstream[other] for other in after}
        made = Manifest(
            name, settings_of(name, config), {}, before, True, upstream[name], files=files
        )
        runs.write_manifest(root, made)
    runs.write_run(root, config)
    return config, world


def renote(run, stage):
    """Note the files of a stage as they now are, as if it had been made so."""
    made = runs.read_manifest(run, stage)
    if made is None:
        return
    files = runs.file_digests(run / stage)
    runs.write_manifest(run, replace(made, files=files, digest=runs.digest_of(files)))
    for path in run.glob("*/stage.json"):
        later = runs.read_manifest(run, path.parent.name)
        if stage in later.upstream:
            upstream = {**later.upstream, stage: runs.digest_of(files)}
            runs.write_manifest(run, replace(later, upstream=upstream))


TREE = {
    "name": "simulated",
    "data": {"unit": "image_id"},
    "sample": {"model": "no/such-model"},
    "embed": {"towers": "no/such-towers"},
    "adapter": {"source": "no/such-adapter"},
    "calibrate": {"methods": ["practical", "paper", "evidence-only", "prior-only", "g_nll"]},
    "evaluate": {
        "bootstrap": 60,
        "slices": ["severity"],
        "out_of_distribution": ["odd"],
        "severity": "severity",
        "corruption": "corruption",
    },
    "report": {"examples": 5, "pdf": False},
}


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """(folder, config, world) of a run brought to the end once."""
    from fusevlm.pipeline.run import run_stages

    root = tmp_path_factory.mktemp("runs") / "simulated"
    config, world = make_run(root, TREE)
    run_stages(root, config)
    return root, config, world


@pytest.fixture
def small(tmp_path):
    """(folder, config, world) of a run that is made up to the stage adapter: 40 and 30 queries."""
    root = tmp_path / "small"
    tree = {
        **TREE,
        "score": {"baselines": ["g_nll", "distinct"]},
        "calibrate": {"methods": ["g_nll", "practical"]},
        "evaluate": {"bootstrap": 20},
    }
    return root, *make_run(root, tree, sizes=(40, 30))


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the finished run to spoil."""
    root, config, _ = finished
    copy = tmp_path / "run"
    shutil.copytree(root, copy)
    return copy, config
