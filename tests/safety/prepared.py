"""Fits, adapters, checkpoints and a run, small and whole: made once, and spoilt in copies."""

import json
import shutil
from functools import cached_property
from pathlib import Path

import numpy as np

from fusevlm import Fuse, simulate
from fusevlm.config import make_config
from fusevlm.data.sampled import read_sampled
from fusevlm.fuse.neighbours import fit_neighbours
from fusevlm.fuse.rounds import Rounds, usual_tiers
from fusevlm.pipeline.methods import fit_method
from fusevlm.pipeline.run import run_stages
from fusevlm.priors.activations import ActivationPrior
from fusevlm.priors.distances import KnnPrior, MahalanobisPrior
from fusevlm.scorer import Scorer
from fusevlm.settings import CalibrateConfig
from fusevlm.store.cache import PairCache
from fusevlm.types import Queries

RUN = {
    "name": "small",
    "data": {"n_calibration": 16, "n_test": 14, "unit": "image_id", "train": ["pairs.jsonl"]},
    "sample": {"n": 3, "batch": 16, "max_new_tokens": 4},
    "embed": {"batch": 32},
    "adapter": {"source": "train", "inducing": 6, "latent": 2, "steps": 4},
    "semantics": {"similarity": "string"},
    "score": {"baselines": ["g_nll", "distinct", "eccentricity"]},
    "calibrate": {"methods": ["practical", "prior-only", "g_nll"]},
    "evaluate": {"bootstrap": 5, "slices": ["severity"]},
    "report": {"figures": ["roc"], "pdf": False, "examples": 2, "gallery": 4},
}  # fmt: skip

ADAPTER = {"n_latent": 2, "n_inducing": 5, "steps": 4, "held_out": 0.1, "check_every": 2}
CHECKPOINT = "checkpoints/00000002"  # of its training, in the middle


def world(size=50, seed=1):
    """Simulated queries with inputs and views."""
    found = simulate.queries(size, n_samples=4, d=6, seed=seed)
    rng = np.random.default_rng(seed)
    inputs = {name: rng.standard_normal((size, 5)) for name in ("image", "text")}
    words = [f"what is {k % 5} and {k % 3}" for k in range(size)]
    views = {"image": rng.standard_normal((size, 4)), "question_words": words}
    extra = {"extra": rng.standard_normal(size)}
    columns = {**found.columns, "g_nll": rng.random(size), "question": words}
    return Queries(found.ids, found.samples, found.wrong, prior=found.prior, inputs=inputs,
                   views=views, evidence=extra, columns=columns)  # fmt: skip


class Prepared:
    """Folders by what is in them; each is made when it is first asked for."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @cached_property
    def queries(self) -> Queries:
        return world()

    @cached_property
    def few(self) -> Queries:
        """Other queries, to use a fit on."""
        return world(4, seed=2)

    @cached_property
    def fuse(self) -> Path:
        Fuse().fit(self.queries).save(self.home / "fuse")
        return self.home / "fuse"

    @cached_property
    def paper(self) -> Path:
        known = Queries(self.queries.ids, self.queries.samples, self.queries.wrong,
                        prior=self.queries.prior)  # fmt: skip
        Fuse("paper").fit(known).save(self.home / "paper")
        return self.home / "paper"

    @cached_property
    def rounds(self) -> Path:
        Rounds(usual_tiers(4, {"extra": 1.0})).fit(self.queries).save(self.home / "rounds")
        return self.home / "rounds"

    @cached_property
    def neighbours(self) -> Path:
        found = fit_neighbours(self.queries, self.queries.columns["question"])
        assert found is not None
        found.save(self.home / "neighbours")
        return self.home / "neighbours"

    @cached_property
    def rows(self) -> Path:
        """A table of labelled samples."""
        rng = np.random.default_rng(3)
        rows = []
        for k in range(40):
            sure = rng.random()
            said = ["yes" if rng.random() < sure else "no" for _ in range(4)]
            rows.append({"id": str(k), "question": f"is {k} a number", "samples": said,
                         "wrong": int(rng.random() > sure), "x": rng.random()})  # fmt: skip
        path = self.home / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    @cached_property
    def scorer(self) -> Path:
        Scorer.fit(read_sampled(self.rows), towers="none", evidence=["x"]).save(
            self.home / "scorer"
        )
        return self.home / "scorer"

    @cached_property
    def method(self) -> Path:
        fit_method("g_nll", self.queries, CalibrateConfig()).save(self.home / "method")
        return self.home / "method"

    @cached_property
    def pairs(self) -> dict[str, np.ndarray]:
        """Unit rows of two kinds."""
        rows = np.random.default_rng(4).standard_normal((2, 30, 5))
        rows /= np.linalg.norm(rows, axis=2, keepdims=True)
        return dict(zip(("image", "text"), rows, strict=True))

    @cached_property
    def adapter(self) -> Path:
        """With its checkpoints beside it."""
        from fusevlm.priors.gp.adapter import GpAdapter

        made = GpAdapter(**ADAPTER)
        made.fit(**self.pairs, folder=self.home / "adapter", checkpoint_every=2)
        made.save(self.home / "adapter")
        return self.home / "adapter"

    @cached_property
    def activations(self) -> Path:
        names = ("mahalanobis_image", "laplace_text")
        ActivationPrior(names).fit(**self.pairs).save(self.home / "activations")
        return self.home / "activations"

    @cached_property
    def knn(self) -> Path:
        KnnPrior(3).fit(**self.pairs).save(self.home / "knn")
        return self.home / "knn"

    @cached_property
    def mahalanobis(self) -> Path:
        MahalanobisPrior().fit(**self.pairs).save(self.home / "mahalanobis")
        return self.home / "mahalanobis"

    @cached_property
    def cache(self) -> Path:
        path = self.home / "pairs.sqlite"
        with PairCache(path) as made:
            made.add("m", {("a", str(k)): np.array([0.2, 0.3, 0.5]) for k in range(5)})
        return path

    @cached_property
    def run(self) -> Path:
        """All stages, of the embedded model."""
        from fusevlm.data.images import load_image
        from fusevlm.data.questions import queries

        table = self.home / "pairs.jsonl"
        rows = []
        for k, query in enumerate(queries("dev", limit=10)):
            load_image(query.images[0]).save(self.home / f"{k}.png")
            rows.append({"question": query.question, "image": f"{k}.png"})
        table.write_text("\n".join(map(json.dumps, rows)))
        tree = {**RUN, "data": {**RUN["data"], "train": [str(table)]}}
        run_stages(self.home / "run", make_config(tree, "small"))
        return self.home / "run"

    def copy(self, name: str, home: Path) -> Path:
        """A copy of what is called so in ``home``, to be spoilt."""
        source: Path = getattr(self, name)
        target: Path = home / name
        shutil.copytree(source, target)
        return target
