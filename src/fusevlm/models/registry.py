"""Where models come from: the embedded ones, a folder, a hub name, or a registered ``NAME:SOURCE``.

Anyone adds models without touching fusevlm: a package declares an entry point of the group
``fusevlm.models`` that points at ``load(source, *, decoding, **options) -> Model``. The source
``mine:whatever`` then calls the one named ``mine`` with ``"whatever"``.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from fusevlm import checks
from fusevlm.embedded import EMBEDDED, weights_folder
from fusevlm.errors import ArtefactError, InputError
from fusevlm.models.protocol import Capabilities, Decoding, Model

GROUP = "fusevlm.models"
HUGGINGFACE = "huggingface"
# our own, also in pyproject.toml; here so that they work whatever the installed metadata says
OURS = {
    name: EntryPoint(name, value, GROUP)
    for name, value in {
        HUGGINGFACE: "fusevlm.models.huggingface:HuggingFace.load",
        "openai": "fusevlm.models.openai:OpenAI.load",
        "synthetic": "fusevlm.testing.synthetic:load",
        "tiny": "fusevlm.testing.tiny:load",
        "vllm": "fusevlm.models.vllm:VLLM.load",
    }.items()
}
# what looks at a source before it is loaded
CHECKS = {
    "openai": "fusevlm.models.openai:check_source",
    "tiny": "fusevlm.testing.tiny:check_source",
}
NAMED = re.compile(r"(\w[\w.-]+):(.*)", re.DOTALL)  # two letters at least: C: is a drive
NOTHING_ASKED = (None, "", "auto")


def load_model(
    source: str,
    decoding: Decoding | None = None,
    *,
    offered: Mapping[str, Any] | None = None,
    **options: Any,
) -> Model:
    """The model that ``source`` names, ready to sample.

    source    ``embedded``; a folder or hub name of transformers; or NAME:SOURCE of a model that is
              registered as NAME: ``openai:MODEL@ADDRESS``, ``vllm:MODEL``, ``tiny:FAMILY``, yours
    decoding  prompt, token limit, layers and the like; the paper's short answers if None

    ``options`` (dtype, device_map, revision, …) go to models that take them. One that a model does
    not take is left out where it asks for nothing (None, "" or "auto"), and refused otherwise.
    What is ``offered`` goes to models that name it, and is nothing to the others.
    """
    name, where = split_source(source)
    if name in (HUGGINGFACE, "tiny"):
        need_models(f"the model {source!r}")
    load = _loader(name)
    where = model_folder(where, "vlm") if name == HUGGINGFACE else where
    wanted = _taken(load, name, options) | _named(load, offered or {})
    return _checked(load(where, decoding=decoding or Decoding(), **wanted), source)


def split_source(source: str) -> tuple[str, str]:
    """The registered name and what it is to load; a path that exists is never a NAME:SOURCE."""
    found = NAMED.fullmatch(source)
    if found is None or os.path.exists(source):
        return HUGGINGFACE, source
    return found[1], found[2]


def behind_server(source: str) -> bool:
    """Whether a model is a service, whose answers are paid for: its loader takes limits of one."""
    name, _ = split_source(source)
    return name != HUGGINGFACE and "server" in inspect.signature(_loader(name)).parameters


def registered() -> dict[str, EntryPoint]:
    """Every registered model by name: ours, and those of other installed packages."""
    found = dict(OURS)
    for entry in entry_points(group=GROUP):
        if entry.name in OURS:
            continue
        if entry.name in found and found[entry.name].value != entry.value:
            raise InputError(
                f"two packages register the model {entry.name!r}: {found[entry.name].value} and "
                f"{entry.value}. Uninstall one of them."
            )
        found[entry.name] = entry
    return found


def model_folder(source: str, part: str) -> str:
    """``source`` itself, or where the embedded ``part`` (vlm, dual_encoder, adapter …) lies."""
    if source != EMBEDDED:
        return source
    folder = Path(weights_folder()) / part
    if not folder.is_dir():
        raise ArtefactError(
            f"the embedded {part} is not at {folder}. Install fusevlm with its weights, or make "
            f"them in a clone (make embedded) and name their folder in FUSEVLM_EMBEDDED."
        )
    return str(folder)


def local_input(name: str, source: str, part: str) -> dict[str, Path]:
    """The folder to watch for changes; a hub name has none."""
    folder = Path(model_folder(split_source(source)[1], part))
    return {name: folder} if os.path.exists(folder) else {}


def config_number(facts: Mapping[str, Any], *keys: str) -> int | None:
    """A whole number of a model's config.json, in the place that the keys lead to; or none."""
    found: Any = facts
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if type(found) is int and found > 0 else None


def need_models(what: str) -> None:
    """Make sure models can be loaded, and keep transformers' own progress bars away."""
    checks.extra("torch", what, "torch")
    checks.extra("transformers", what, "torch").logging.disable_progress_bar()


def check_registered(name: str, where: str) -> None:
    """Refuse what a registered name could not load, as far as that is known without loading it."""
    if name in CHECKS:
        module, _, function = CHECKS[name].partition(":")
        getattr(import_module(module), function)(where)
    elif name not in OURS:
        _loader(name)  # another's package may be broken


def _loader(name: str) -> Callable[..., Any]:
    entries = OURS if name in OURS else registered()
    if name not in entries:
        raise InputError(
            f"no model is registered as {name!r}.{checks.hint(name, entries)} Install the package "
            f"that brings it: one with an entry point {name!r} in the group {GROUP!r}."
        )
    try:
        load = entries[name].load()
    except Exception as error:  # another's package may break in any way
        raise InputError(
            f"the model {name!r} is registered as {entries[name].value}, which cannot be imported: "
            f"{type(error).__name__}: {error}. Repair or reinstall the package that brings it."
        ) from error
    if not callable(load):
        raise InputError(
            f"the model {name!r} is registered as {entries[name].value}, a {type(load).__name__}; "
            f"expected a function load(source, *, decoding, **options)."
        )
    return cast(Callable[..., Any], load)


def _taken(load: Callable[..., Any], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options to pass on: those that ``load`` names, or all where it takes any."""
    parameters = inspect.signature(load).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option, value in options.items():
        if not (takes_any or option in parameters or value in NOTHING_ASKED):
            raise InputError(f"models of {name!r} take no {option}; got {value!r}. Leave it out.")
    return {
        option: value
        for option, value in options.items()
        if value is not None
        and (option in parameters or (takes_any and value not in NOTHING_ASKED))
    }


def _named(load: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    names = inspect.signature(load).parameters
    return {name: value for name, value in offered.items() if name in names}


def _checked(model: Any, source: str) -> Model:
    """``model`` if it has what the protocol wants."""
    lacks = [part for part in ("name", "capabilities", "sample") if not hasattr(model, part)]
    if lacks:
        raise InputError(
            f"{source!r} loaded as a {type(model).__name__} without {', '.join(lacks)}; expected a "
            f"fusevlm.models.protocol.Model."
        )
    if not isinstance(model.capabilities, Capabilities):
        raise InputError(
            f"{source!r} loaded with the capabilities {model.capabilities!r}; expected a "
            f"fusevlm.models.protocol.Capabilities."
        )
    return cast(Model, model)
