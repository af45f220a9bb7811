"""Can a cluster make the parts of a run, so that they are those that this process would make?

Refused with the reason: one CPU, on which the worker would wait for itself; a run folder that is
not everywhere; another Python, other packages or another state of fusevlm on a node; a GPU that is
asked for and nowhere.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import fusevlm
from fusevlm.config import used_devices
from fusevlm.errors import InputError
from fusevlm.models.devices import CPU
from fusevlm.models.registry import split_source
from fusevlm.settings import NONE, Config

# those whose version can change a number, or what a file holds
PACKAGES = (
    "numpy", "scipy", "pyarrow", "safetensors", "torch", "transformers", "tokenizers", "pillow",
)  # fmt: skip
GRAINS = 10_000  # in a CPU, as Ray counts
LEAST_CPUS = 2  # one is left for what brings workers their pieces
INSTALL = "Install the same there, with constraints.txt, or leave that node out."


@dataclass(frozen=True)
class Machine:
    """What matters of a node: who it is, what is installed, and what it sees."""

    node: str
    python: str
    packages: Mapping[str, str]  # versions; those that are not installed are left out
    source: str  # digest of fusevlm's own files; empty where it is not installed
    sees: bool = True  # whether it sees the run folder, and what it writes there is seen here


@dataclass(frozen=True)
class Shares:
    """How many workers there are, and what each of them holds of the cluster."""

    workers: int
    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True)
class Wish:
    """What the settings ask for: workers (0: as many as fit), and what each holds (None: usual)."""

    workers: int = 0
    cpus: float | None = None
    gpus: float | None = None
    memory_gb: float | None = None


@dataclass(frozen=True)
class Resources:
    """What a cluster has."""

    cpus: float
    gpus: float = 0.0
    nodes: Sequence[str] = field(default_factory=tuple)


def this_machine(node: str = "this machine") -> Machine:
    """Of this process."""
    return Machine(
        node, platform.python_version(), versions(), source_digest(Path(fusevlm.__file__).parent)
    )


def versions() -> dict[str, str]:
    """Of the packages that matter and are installed, without what follows a + (CPU or CUDA)."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return found


def source_digest(home: Path) -> str:
    """Of all Python files of fusevlm."""
    total = hashlib.sha256()
    for path in sorted(home.rglob("*.py")):
        total.update(f"{path.relative_to(home).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def refuse_other(here: Machine, there: Sequence[Machine], shared: bool, run: str) -> None:
    """Refuse nodes that would make other parts than this machine, or put them elsewhere."""
    for node in there:
        if not node.source:
            raise InputError(f"fusevlm is not installed on node {node.node}. {INSTALL}")
        if node.python != here.python:
            raise InputError(
                f"node {node.node} has Python {node.python}, and here is {here.python}. {INSTALL}"
            )
        for name in PACKAGES:
            ours, theirs = here.packages.get(name), node.packages.get(name)
            if ours != theirs:
                raise InputError(
                    f"node {node.node} has {_named(name, theirs)}, and here is "
                    f"{_named(name, ours)}: its parts could differ. {INSTALL}"
                )
        if node.source != here.source:
            raise InputError(
                f"node {node.node} has another state of fusevlm {fusevlm.__version__} (digest of "
                f"its files {node.source}, here {here.source}). {INSTALL}"
            )
        if shared and not node.sees:
            raise InputError(
                f"node {node.node} does not see the run folder {run} of this machine, or what it "
                f"writes there is not seen here. Put the run into a folder that all nodes mount, "
                f"or its parts into a bucket: --set storage.parts=s3://BUCKET/WHERE."
            )


def _named(package: str, version: str | None) -> str:
    return f"no {package}" if version is None else f"{package} {version}"


def shares(there: Resources, wanted: Wish, needs_gpu: bool, n_pieces: int) -> Shares:
    """How many workers for so many pieces, each with its part of what is there.

    A worker on a GPU holds one; workers on CPUs hold equal parts of all CPUs but one, which is
    left for what brings them their pieces: with none left nothing would ever move.
    """
    if there.cpus < LEAST_CPUS:
        raise InputError(
            f"the cluster has {there.cpus:g} CPU: a worker would hold it and wait for ever for its "
            f"pieces. Give it {LEAST_CPUS} (ray start --num-cpus={LEAST_CPUS}), or leave --engine "
            f"ray out."
        )
    gpus = wanted.gpus if wanted.gpus is not None else (1.0 if needs_gpu else 0.0)
    if gpus > 0 and there.gpus < gpus:
        raise InputError(
            f"the settings want {gpus:g} GPU for a worker, and the cluster has {there.gpus:g}. "
            f"Start nodes with GPUs, or set the devices to 'cpu'."
        )
    most = int(there.gpus / gpus) if gpus > 0 else int(there.cpus)
    workers = max(1, min(wanted.workers or most, n_pieces))
    if gpus > 0 and workers > most:
        raise InputError(
            f"{workers} workers with {gpus:g} GPU each want more than the {there.gpus:g} GPUs of "
            f"the cluster. Ask for {most}: --workers {most}."
        )
    free = there.cpus - 1.0
    cpus = wanted.cpus if wanted.cpus is not None else min(1.0, _share(free, workers))
    if round(cpus * workers, 4) > free:
        raise InputError(
            f"{workers} workers with {cpus:g} CPUs each leave none of the {there.cpus:g} CPUs of "
            f"the cluster for what brings them their pieces. Ask for fewer."
        )
    return Shares(workers, cpus, gpus)


def _share(cpus: float, workers: int) -> float:
    """A worker's part of some CPUs, rounded down: all parts together are never more than that."""
    return cpus * GRAINS // workers / GRAINS


def of_each(config: Config, workers: int) -> Config:
    """The config of each of so many workers: its part of the calls that may run at a time."""
    each = max(1, config.server.concurrency // workers)
    return replace(config, server=replace(config.server, concurrency=each))


def needs_gpu(stage: str, config: Config, n_gpus: float) -> bool:
    """Whether a stage's worker holds a GPU."""
    on_gpu = {key: device != CPU for key, device in used_devices(config).items()}
    model = on_gpu.get("sample.device", False) or bool(config.sample.device_map)
    if split_source(config.sample.model)[0] == "vllm":
        model = n_gpus > 0
    if stage == "sample":
        return model
    if stage == "embed":
        return on_gpu.get("embed.device", False)
    if stage == "semantics":
        wanted = config.semantics
        asked = wanted.p_true or {wanted.rephrase, wanted.complement} != {NONE}
        return on_gpu.get("semantics.device", False) or (model and asked)
    return False


def passed_on(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that workers have from here: numbers depend on them. No key is among them."""
    names = ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "CUBLAS_WORKSPACE_CONFIG", "HF_HUB_OFFLINE",
             "FUSEVLM_EMBEDDED")  # fmt: skip
    threads = environment.get("OMP_NUM_THREADS", "1")
    return {"OMP_NUM_THREADS": threads, **{n: environment[n] for n in names if n in environment}}


def as_machine(facts: Mapping[str, Any]) -> Machine:
    """From plain data."""
    return Machine(**{name: facts[name] for name in asdict(this_machine())})
