"""vLLM in this process: ``vllm:NAME``, a folder or hub name that vLLM can serve (extra ``vllm``).

vLLM does the forward passes: paged attention, continuous batching, and the blocks of a prompt kept
once for all of its samples. What it does not do is choose: in a logits processor tokens are drawn
by the same numbers as those of Hugging Face models (:mod:`fusevlm.models.rows`), so that the same
seed gives the same samples there and here, but for draws near a boundary. Forward hooks keep the
hidden states; the last token of an answer has one because one more step is asked for.

Differs from vLLM's defaults: eager mode, for compiled graphs never call a hook; one process, for
hooks and choice live in it. Models that need several GPUs are better served, and asked through
:mod:`fusevlm.models.openai`, which has no states.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from threading import RLock
from typing import Any

import numpy as np
import torch

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.models import draws
from fusevlm.models.layers import layer_index
from fusevlm.models.processors import load_processor
from fusevlm.models.prompts import Speaker, eos_ids
from fusevlm.models.protocol import Capabilities, Decoding, asked
from fusevlm.models.registry import model_folder
from fusevlm.models.rows import (
    JUDGED,
    QUERY_ERRORS,
    Drawn,
    Failure,
    Row,
    broken_at,
    failure_of,
    pick,
    record,
    stopped,
    worded,
)
from fusevlm.models.sessions import Drawing, drawing
from fusevlm.settings import VllmConfig
from fusevlm.types import Generation, Query

logger = logging.getLogger(__name__)

KEY = "fusevlm"  # of a request's extra arguments: which row it is
CPU_CACHE = 2 * 10**9  # bytes; vLLM would take most of the machine's memory
CPU_BLOCK = 32  # tokens; each sample computes the prompt's rest after the last full block anew
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
HOOKS, SECOND_PASS = "auto", "second_pass"  # ways to the states


@dataclass
class Wanted:
    """A row that vLLM is working on."""

    row: Row
    heat: float
    u: FloatArray  # [steps] the numbers that its tokens are drawn by
    choosing: bool = True  # else only its states are wanted
    said: Sequence[int] = ()  # vLLM's own list of the tokens so far
    first: dict[str, torch.Tensor] = field(default_factory=dict)  # states of the last prompt token
    failed: str = ""


class Chooser:
    """Chooses the next token of each row from its logits, and records what there is to it."""

    def __init__(self, decoding: Decoding, eos: frozenset[int], tokenizer: Any) -> None:
        self.decoding, self.eos, self.tokenizer = decoding, eos, tokenizer
        self.wanted: dict[str, Wanted] = {}
        self.states: dict[str, torch.Tensor] = {}  # [rows, d] of the latest forward pass
        self._places: dict[int, Wanted] = {}  # by row of the batch

    def place(self, update: Any) -> None:
        """Follow the rows of vLLM's batch: those removed, added, and moved, in this order."""
        if update is None:
            return
        for index in update.removed:
            self._places.pop(index, None)
        for index, params, _, said in update.added:
            known = self.wanted.get((params.extra_args or {}).get(KEY, ""))
            self._places.pop(index, None)
            if known is not None:
                known.said = said
                self._places[index] = known
        for one, two, direction in update.moved:
            a, b = self._places.pop(one, None), self._places.pop(two, None)
            if a is not None:
                self._places[two] = a
            if b is not None and direction.name == "SWAP":
                self._places[one] = b

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [rows, V] of which each row's choice alone is left possible."""
        places = [index for index in sorted(self._places) if index < len(logits)]
        if not places:
            return logits
        token = torch.full((len(places),), min(self.eos), device=logits.device)
        drawing = []
        for k, index in enumerate(places):
            wanted = self._places[index]
            self._keep_states(wanted, index)
            if self._goes_on(wanted, logits[index]):
                drawing.append(k)
        if drawing:
            token[drawing] = self._draw([places[k] for k in drawing], logits)
        only = torch.full_like(logits[places], -torch.inf)
        logits[places] = only.scatter(-1, token[:, None], 0.0)
        return logits

    def _keep_states(self, wanted: Wanted, index: int) -> None:
        for name, states in self.states.items():
            wanted.row.states[name] = states[index]
            if not len(wanted.said):
                wanted.first[name] = states[index]

    def _goes_on(self, wanted: Wanted, logits: torch.Tensor) -> bool:
        """Whether a row is to have a token more."""
        row, step = wanted.row, len(wanted.said)
        if not wanted.choosing or wanted.failed:
            return False
        # a step that is done once more, after a prompt in pieces, is recorded once
        row.tokens, row.logprobs = row.tokens[:step], row.logprobs[:step]
        row.warped, row.margins = row.warped[:step], row.margins[:step]
        if step == self.decoding.max_new_tokens:
            row.truncated = True
            return False
        if broken_at(logits[None], np.zeros(1, dtype=np.int64)):
            wanted.failed = f"NaN or infinite logits at token {step + 1}."
            return False
        stop = self.decoding.stop
        return not (stop and row.tokens and stopped(row, self.tokenizer, stop))

    def _draw(self, places: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        rows = [self._places[index] for index in places]
        heat = np.array([wanted.heat for wanted in rows])
        u = np.array([wanted.u[len(wanted.said)] for wanted in rows])
        choice = pick(logits[list(places)].float(), heat, u, self.decoding)
        record([wanted.row for wanted in rows], choice, self.eos)
        return choice.token


class VLLM:
    """A model that vLLM runs, ready to sample."""

    def __init__(self, engine: Any, processor: Any, chooser: Chooser, name: str) -> None:
        self.engine, self.chooser, self._name = engine, chooser, name
        self.decoding = chooser.decoding
        self.speaker = Speaker(processor, self.decoding, name)
        self.layers = [str(layer) for layer in self.decoding.layers]
        self._lock = RLock()  # rows are of one call at a time
        engine.apply_model(self._tap)

    @classmethod
    def load(
        cls,
        source: str,
        *,
        decoding: Decoding | None = None,
        dtype: str = "auto",
        revision: str | None = None,
        vllm: VllmConfig | None = None,
        **options: Any,
    ) -> VLLM:
        """A local folder, a hub name or ``embedded``; ``options`` go to vLLM's engine."""
        _need_path(decoding or Decoding())
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        library = checks.extra("vllm", f"the model 'vllm:{source}'", "vllm")
        where = model_folder(source, "vlm")
        try:
            from transformers import AutoConfig, GenerationConfig

            config = AutoConfig.from_pretrained(where, revision=revision)
            processor = _processor(config, where, revision)
            try:
                generation = GenerationConfig.from_pretrained(where, revision=revision or "main")
            except OSError:  # not every model has one
                generation = None
            tokenizer = getattr(processor, "tokenizer", processor)
            eos = eos_ids(config, generation, tokenizer)
            chooser = Chooser(decoding or Decoding(), eos, tokenizer)
            given = {
                **_defaults(where, revision),
                **_settings(vllm or VllmConfig()),
                **options,
                "enforce_eager": True,
                "async_scheduling": False,
                "logits_processors": [_processor_class(chooser)],
            }
            engine = library.LLM(where, dtype=_dtype(dtype, config), revision=revision, **given)
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            raise InputError(
                f"vLLM cannot load {source!r}: {error} Give a folder or hub name of a model that "
                f"it serves, or use the model without 'vllm:'."
            ) from error
        return cls(engine, processor, chooser, source)

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            logprobs=True, hidden_states=True, images=self.speaker.sees, deterministic=True
        )

    def sample(
        self, queries: Sequence[Query], n: int, temperatures: FloatArray, seed: int
    ) -> Iterator[Generation]:
        """Sample all queries of one batch together; yields one Generation per query, in order."""
        with self.begin(queries, asked(queries, n, temperatures), seed) as session:
            found = list(session.draw([query.id for query in queries], n))
        yield from found

    @contextmanager
    def begin(
        self, queries: Sequence[Query], temperatures: FloatArray, seed: int
    ) -> Iterator[Drawing]:
        """Queries of which samples are drawn in rounds; vLLM keeps their prompts (prefix cache)."""
        path = "vllm_hooks" if self.decoding.path == HOOKS else "vllm_second_pass"
        yield drawing(
            queries, temperatures, seed, extend=self._extend, layers=self.layers, path=path
        )

    def _extend(self, session: Drawing, ids: Sequence[str], n: int) -> None:
        """Draw what these queries lack; if together they fail, one by one: one spoils no other."""
        for i in ids:
            if i not in session.prompts and i not in session.found:
                try:
                    session.prompts[i] = self._prompt(session.queries[i])
                except QUERY_ERRORS as error:
                    session.found[i] = failure_of(error)
        left = [i for i in ids if session.missing(i, n)]
        groups = [left] if left else []
        while groups:
            group = groups.pop(0)
            try:
                with self._lock:
                    session.keep(self._decode(session, group, n))
            except QUERY_ERRORS as error:
                if len(group) == 1:
                    session.found[group[0]] = failure_of(error)
                else:
                    logger.warning("%d queries together failed: %s", len(group), error)
                    groups = [[i] for i in group] + groups

    def _prompt(self, query: Query) -> dict[str, Any]:
        """A query as vLLM takes it: tokens with a place for each picture, and the pictures."""
        said = self.speaker.say(query)
        ids = self.speaker.tokenizer(said.text, add_special_tokens=said.special)["input_ids"]
        self.speaker.refuse_length(len(ids), self._limit)
        shown = {"multi_modal_data": {"image": said.images}} if said.images else {}
        return {"prompt_token_ids": list(ids), **shown}

    def _decode(self, session: Drawing, ids: Sequence[str], n: int) -> dict[str, Drawn | Failure]:
        steps = self.decoding.max_new_tokens
        prompts = {i: session.prompts[i] for i in ids}
        rows = {i: self._wanted(session, i, session.missing(i, n)) for i in ids}
        lengths = self._run(
            {i: [(prompts[i], w) for w in rows[i].values()] for i in ids}, steps + 1
        )
        for query, some in rows.items():
            self.speaker.refuse_length(lengths[query], self._limit)
            for wanted in some.values():
                wanted.row.text = worded(
                    wanted.row.tokens, self.speaker.tokenizer, self.decoding.stop
                )
        if self.decoding.path == SECOND_PASS:
            self._second_pass(prompts, rows)
        return {query: self._outcome(some, lengths[query]) for query, some in rows.items()}

    def _wanted(self, session: Drawing, query: str, places: Sequence[int]) -> dict[int, Wanted]:
        """The rows to be drawn, by place."""
        heat = session.temperatures
        heats = [*heat, self.decoding.answer_temperature]  # JUDGED is the last
        keys = [len(heat) if place == JUDGED else place for place in places]
        u = draws.uniforms(session.seed, query, keys, self.decoding.max_new_tokens)
        return {
            place: Wanted(Row(), float(heats[place]), own)
            for place, own in zip(places, u, strict=True)
        }

    def _second_pass(
        self, prompts: dict[str, dict[str, Any]], rows: dict[str, dict[int, Wanted]]
    ) -> None:
        """The states of whole answers, each fed as a prompt: what hooks saw is left out."""
        again: dict[str, list[tuple[dict[str, Any], Wanted]]] = {}
        for query, some in rows.items():
            again[query] = []
            for wanted in some.values():
                wanted.row.states = {}
                ids = [*prompts[query]["prompt_token_ids"], *wanted.row.tokens]
                looked = Wanted(wanted.row, 0.0, wanted.u, choosing=False)
                again[query].append(({**prompts[query], "prompt_token_ids": ids}, looked))
        self._run(again, 1)

    def _run(
        self, asked: dict[str, list[tuple[dict[str, Any], Wanted]]], tokens: int
    ) -> dict[str, int]:
        """Let vLLM work on all rows; the length of each query's first prompt."""
        from vllm.exceptions import VLLMError

        from vllm import SamplingParams

        prompts: list[dict[str, Any]] = []
        settings, owners = [], []
        self.chooser.wanted = {}
        for query, some in asked.items():
            for prompt, wanted in some:
                key = str(len(prompts))
                self.chooser.wanted[key] = wanted
                prompts.append(prompt)
                owners.append(query)
                settings.append(
                    SamplingParams(
                        temperature=0.0, max_tokens=tokens, stop_token_ids=sorted(self.chooser.eos),
                        detokenize=False, extra_args={KEY: key},
                    )
                )  # fmt: skip
        try:
            done = self.engine.generate(prompts, settings, use_tqdm=False)
        except VLLMError as error:
            raise InputError(f"vLLM refuses it: {error}") from error
        finally:
            self.chooser.wanted = {}
        lengths: dict[str, int] = {}
        for query, one in zip(owners, done, strict=True):
            lengths.setdefault(query, len(one.prompt_token_ids))
        return lengths

    def _outcome(self, rows: dict[int, Wanted], length: int) -> Drawn | Failure:
        failed = [wanted.failed for wanted in rows.values() if wanted.failed]
        if failed:
            return Failure(failed[0])
        first = next(iter(rows.values())).first
        return Drawn({place: wanted.row for place, wanted in rows.items()}, length, first)

    @property
    def _limit(self) -> int:
        return int(self.engine.llm_engine.model_config.max_model_len)

    def _tap(self, model: Any) -> None:
        """Keep the states of each row's last token, in every forward pass from now on."""
        language = model.get_language_model() if hasattr(model, "get_language_model") else model
        decoder = language.model
        runner = _runner(self.engine)
        depth = len(decoder.layers)
        for layer in self.decoding.layers:
            index = layer_index(layer, depth)
            final = index == depth
            module = decoder.norm if final else decoder.layers[index - 1]
            module.register_forward_hook(self._keep(str(layer), runner, final=final))

    def _keep(self, name: str, runner: Any, *, final: bool) -> Callable[..., None]:
        def hook(_: Any, __: Any, output: Any) -> None:
            hidden, rest = output if isinstance(output, tuple) else (output, None)
            count = runner.input_batch.num_reqs
            last = runner.query_start_loc.np[1 : count + 1] - 1
            rows = torch.as_tensor(last, device=hidden.device, dtype=torch.long)
            state = hidden[rows].clone()
            # a layer hands its input on beside what it adds; the final norm has added them
            self.chooser.states[name] = state if final or rest is None else state + rest[rows]

        return hook


def _need_path(decoding: Decoding) -> None:
    if decoding.path not in (HOOKS, SECOND_PASS):
        raise InputError(
            f"path is {decoding.path!r}; vLLM keeps the prompt's cache itself: expected "
            f"{HOOKS!r} or {SECOND_PASS!r}."
        )


def _processor(config: Any, where: str, revision: str | None) -> Any:
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    if type(config) in AutoModelForImageTextToText._model_mapping:
        return load_processor(where, revision=revision)
    return AutoTokenizer.from_pretrained(where, revision=revision)


def _dtype(dtype: str, config: Any) -> str:
    """Of the weights; ``auto`` is as they are stored, where vLLM would halve float32."""
    stored = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
    return "float32" if dtype == "auto" and str(stored).endswith("float32") else dtype


def _defaults(where: str, revision: str | None) -> dict[str, Any]:
    """What is better for this work than vLLM's own defaults; all of it may be given otherwise."""
    from transformers import AutoProcessor
    from vllm.platforms import current_platform

    found: dict[str, Any] = {"seed": 0, "enable_prefix_caching": True, "disable_log_stats": True}
    pictures: Any = AutoProcessor
    try:  # scaled as Hugging Face models see them here; videos have no such processor
        pictures.from_pretrained(where, revision=revision, backend="pil")
        found["mm_processor_kwargs"] = {"backend": "pil"}
    except (ImportError, OSError, ValueError):
        logger.info("pictures are scaled by torchvision: numbers may differ a little.")
    if current_platform.is_cpu():
        found |= {"block_size": CPU_BLOCK, "kv_cache_memory_bytes": CPU_CACHE}
    return found


def _settings(given: VllmConfig) -> dict[str, Any]:
    """The options of vLLM's that a config names."""
    found = {name: value for name, value in asdict(given).items() if value is not None}
    size = found.pop("cache_gb", None)
    return found | ({} if size is None else {"kv_cache_memory_bytes": int(size * 1e9)})


def _processor_class(chooser: Chooser) -> type:
    """A logits processor of vLLM's that leaves each row what ``chooser`` chose."""
    from vllm.v1.sample.logits_processor import LogitsProcessor

    class Choice(LogitsProcessor):  # type: ignore[misc]
        def __init__(self, *_: Any) -> None:
            pass

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            chooser.place(batch_update)

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return chooser.choose(logits)

    return Choice


def _runner(engine: Any) -> Any:
    """Who knows which rows of a forward pass belong to which request."""
    try:
        runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
        _ = runner.input_batch.num_reqs, runner.query_start_loc.np
    except AttributeError as error:
        raise InputError(
            f"this vLLM keeps its batch where fusevlm does not find it ({error}). Use the version "
            f"of constraints-vllm.txt, one process and one device."
        ) from error
    return runner
