"""Make the embedded models: ``python -m factory.train --out DIR --seed S``.

Stages, each left out when its folder is complete: dual encoder → answerer (VLM) → question
generator → GP adapter → metrics. A stage starts from the *saved* half-precision weights of those
before it, so an interrupted run ends with the same weights as an uninterrupted one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm import checks, store
from fusevlm.cli.progress import progress_line
from fusevlm.errors import ArtefactError, FuseError

NOMINAL_MINUTES = 28.0  # of the default plan, on one core of the machine it was made on
RUN, METRICS, DONE = "run.json", "metrics.json", "complete.json"
DUAL, VLM, ASKER, ADAPTER = "dual_encoder", "vlm", "question_generator", "adapter"


@dataclass(frozen=True)
class Plan:
    """Seed, steps, batch sizes and learning rates: all that decides the weights."""

    seed: int = 0
    dual_steps: int = 2000
    dual_images: int = 16
    dual_lr: float = 1.5e-3
    vlm_steps: int = 1600
    vlm_images: int = 16
    vlm_questions: int = 8
    vlm_lr: float = 1.5e-3
    tower_pace: float = 0.3  # of the VLM's copy of the tower, which has learnt already
    asker_steps: int = 300
    asker_lr: float = 1e-3
    n_pairs: int = 4000
    n_latent: int = 10
    n_inducing: int = 128
    adapter_steps: int = 300
    n_scenes: int = 0  # images used; 0 for all


def plan_for(seed: int, minutes: float | None = None) -> Plan:
    """The default plan, its steps scaled to about ``minutes``."""
    plan = Plan(seed=checks.count(seed, "seed", least=0))
    if minutes is None:
        return plan
    share = checks.positive(minutes, "minutes") / NOMINAL_MINUTES
    names = ("dual_steps", "vlm_steps", "asker_steps", "adapter_steps")
    return replace(plan, **{n: max(2, round(getattr(plan, n) * share)) for n in names})


def train_all(out: Path, plan: Plan, *, quiet: bool = True) -> dict[str, Any]:
    """Everything into ``out``; the metrics. Run again after an interruption, it goes on."""

    def say(line: str) -> None:
        if not quiet:
            sys.stderr.write(f"{line}\n")

    _claim(out, plan)
    for name, stage in STAGES.items():
        folder = out / name
        if (folder / DONE).is_file():
            say(f"{name}: complete")
            continue
        begun = time.monotonic()
        facts = stage(out, plan, quiet)
        facts["seconds"] = round(time.monotonic() - begun, 1)
        folder.mkdir(parents=True, exist_ok=True)
        store.write_atomically(folder / DONE, _json(facts))
        say(f"{name}: {facts['seconds']:.0f} s")
    if (out / METRICS).is_file():
        found: dict[str, Any] = json.loads((out / METRICS).read_text())
        return found
    say("measuring …")
    begun = time.monotonic()
    metrics = measure_all(out)
    metrics["plan"] = asdict(plan)
    metrics["stages"] = {name: json.loads((out / name / DONE).read_text()) for name in STAGES}
    metrics["seconds_measuring"] = round(time.monotonic() - begun, 1)
    metrics["bytes"] = {name: _size(out / name) for name in STAGES}
    store.write_atomically(out / METRICS, _json(metrics))
    return metrics


def _claim(out: Path, plan: Plan) -> None:
    """Note the plan in ``out``, or refuse a folder that another plan has begun."""
    facts = json.loads(_json(asdict(plan)))
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (out / RUN).is_file():
            if json.loads((out / RUN).read_text()) != facts:
                raise ArtefactError(
                    f"{out} was begun with another plan (seed, minutes or sizes). Use the same "
                    f"arguments, or another --out."
                )
        else:
            store.write_atomically(out / RUN, _json(facts))
    except (OSError, ValueError) as error:
        raise ArtefactError(f"cannot use {out}: {error}. Choose another --out.") from error


def _train_dual(out: Path, plan: Plan, quiet: bool) -> dict[str, Any]:
    from factory import models, recipes

    model = models.dual_encoder(plan.seed)
    taught = recipes.Taught(model)
    loss_at = recipes.contrast(taught, _scenes(plan), seed=plan.seed, images=plan.dual_images)
    losses = _run(out, DUAL, taught, loss_at, plan.dual_steps, plan.dual_lr, quiet)
    models.save_half(model, models.towers_processor(), out / DUAL)
    return _facts(model, losses)


def _train_vlm(out: Path, plan: Plan, quiet: bool) -> dict[str, Any]:
    from factory import models, recipes

    tower = models.load(out / DUAL).vision_model
    model = models.language_model(plan.seed, tower)
    taught = recipes.TaughtAnswerer(model)
    loss_at = recipes.answering(
        taught, _scenes(plan), seed=plan.seed, images=plan.vlm_images, questions=plan.vlm_questions
    )
    losses = _run(out, VLM, taught, loss_at, plan.vlm_steps, plan.vlm_lr, quiet, plan.tower_pace)
    models.save_half(model, models.answer_processor(), out / VLM)
    return _facts(model, losses)


def _train_asker(out: Path, plan: Plan, quiet: bool) -> dict[str, Any]:
    """The question generator starts from the answerer and keeps its eyes."""
    from factory import models, recipes

    model = models.load(out / VLM)
    model.model.vision_tower.requires_grad_(False)
    loss_at = recipes.asking(
        model, _scenes(plan), seed=plan.seed, images=plan.vlm_images, questions=plan.vlm_questions
    )
    losses = _run(out, ASKER, model, loss_at, plan.asker_steps, plan.asker_lr, quiet)
    models.save_half(model, models.answer_processor(), out / ASKER)
    return _facts(model, losses)


def _train_adapter(out: Path, plan: Plan, quiet: bool) -> dict[str, Any]:
    """The GP adapter on clean training pairs (picture, question) only."""
    from factory import measure
    from fusevlm.models.towers import Towers
    from fusevlm.priors.gp.adapter import GpAdapter

    towers = Towers.load(str(out / DUAL))
    pairs = measure.embed(towers, training_pairs(plan))
    adapter = GpAdapter(
        n_latent=plan.n_latent, n_inducing=plan.n_inducing, steps=plan.adapter_steps, seed=plan.seed
    )
    adapter.fit(*pairs, folder=out / "checkpoints" / ADAPTER)
    adapter.save(out / ADAPTER)
    record = adapter.fitted.record
    return {"n_pairs": record.n_pairs, "steps": record.steps, "finished": record.finished}


STAGES: dict[str, Callable[[Path, Plan, bool], dict[str, Any]]] = {
    DUAL: _train_dual,
    VLM: _train_vlm,
    ASKER: _train_asker,
    ADAPTER: _train_adapter,
}


def training_pairs(plan: Plan) -> list[Any]:
    """Clean training pictures with a training question each, in a seeded order."""
    from fusevlm.data.pictures import CLEAN
    from fusevlm.data.questions import draw, make_query

    rng = np.random.default_rng([plan.seed, 4])
    scenes = _scenes(plan)
    index = [int(i) for i in rng.permutation(np.arange(plan.n_pairs) % len(scenes))]
    return [make_query("train", scenes[i], draw(scenes[i], rng), CLEAN, 0) for i in index]


def measure_all(out: Path) -> dict[str, Any]:
    """Figures on dev and calibration images; the test split is not touched."""
    from factory import measure, models
    from fusevlm.data.questions import queries
    from fusevlm.data.scenes import split
    from fusevlm.models.huggingface import HuggingFace
    from fusevlm.models.protocol import Decoding
    from fusevlm.models.towers import Towers
    from fusevlm.priors.gp.adapter import GpAdapter

    towers, adapter = Towers.load(str(out / DUAL)), GpAdapter.load(out / ADAPTER)
    vlm, dev = models.load(out / VLM), split("dev")
    views = measure.every_view("dev", dev)
    asked = queries("calibration")
    clean = measure.clean_queries("calibration", split("calibration"))
    to_sample = {q.id: q for q in (*queries("dev"), *asked, *clean[::3])}
    known = [q for q in measure.clean_queries("dev", dev) if measure.condition(q) == measure.KNOWN]
    return {
        "vlm_dev_every_view": measure.accuracies(vlm, views),
        "vlm_calibration": measure.accuracies(vlm, asked),
        "vlm_calibration_clean": measure.accuracies(vlm, clean),
        "distinct": measure.distinct(HuggingFace.load(str(out / VLM)), list(to_sample.values())),
        "zero_shot_24": measure.zero_shot(towers, dev),
        "adapter_by_severity": measure.severity_table(adapter, towers, views),
        "question_generator": measure.returned(
            HuggingFace.load(str(out / ASKER), decoding=Decoding(prompt=models.ASK)),
            vlm,
            known[::3],
        ),
    }


def _scenes(plan: Plan) -> Sequence[Any]:
    from fusevlm.data.scenes import split

    scenes = split("train")
    return scenes[: plan.n_scenes] if plan.n_scenes else scenes


def _run(
    out: Path,
    name: str,
    model: Any,
    loss_at: Any,
    steps: int,
    lr: float,
    quiet: bool,
    pace: float = 1.0,
) -> list[float]:
    from factory.optimise import optimise

    return optimise(
        model, loss_at, steps=steps, lr=lr, folder=out / "checkpoints" / name,
        task={"stage": name}, slow="vision_tower", pace=pace, show=progress_line(name, quiet=quiet),
    )  # fmt: skip


def _facts(model: Any, losses: list[float]) -> dict[str, Any]:
    tail = max(1, len(losses) // 20)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": len(losses),
        "last_loss": round(float(np.mean(losses[-tail:])), 4),
    }


def _size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m factory.train",
        description="Train the embedded models; the same command goes on where it stopped.",
        epilog="example: python -m factory.train --out runs/embedded --seed 0",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for models and metrics")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (0)")
    parser.add_argument(
        "--minutes", type=float, help=f"scale the steps to about this ({NOMINAL_MINUTES:g})"
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    given = parser.parse_args(arguments)

    try:
        torch: Any = checks.extra("torch", "training the embedded models", "embedded")
        transformers: Any = checks.extra("transformers", "the embedded models", "embedded")
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(checks.count(given.threads, "threads"))
        train_all(given.out, plan_for(given.seed, given.minutes), quiet=given.quiet)
    except FuseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        again = " ".join(sys.argv[1:] if arguments is None else arguments)
        sys.stderr.write(f"\nstopped; go on with: python -m factory.train {again}\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
