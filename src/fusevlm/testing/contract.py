"""What every model promises, checked through the protocol alone: one suite for all of them.

A check is a function of a :class:`Trial`; its name is the function's, its docstring's first line
says what is promised. It returns when the promise is kept and raises :class:`ContractError` when it
is broken. ``python -m fusevlm.testing MODEL`` runs them all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.models.protocol import Capabilities, InRounds, Model
from fusevlm.models.temperatures import constant
from fusevlm.testing.trial import (
    TOLERANCE,
    ContractError,
    SkippedCheck,
    Trial,
    all_texts,
    close,
    counted,
    make_queries,
    need,
    numbers,
    same_ids,
)
from fusevlm.types import Generation, Query, Samples

HALF = 1e-2  # of half-precision results
HOT = 2.0  # a temperature at which any model varies, and which every service accepts


@dataclass(frozen=True)
class Outcome:
    """What came of one check; one that was skipped has neither passed nor failed."""

    name: str  # of the check
    passed: bool  # whether the promise is kept
    detail: str = ""  # what is wrong, or why the check was skipped
    skipped: bool = False  # for want of what it needs

    @property
    def failed(self) -> bool:
        """Whether the promise is broken."""
        return not (self.passed or self.skipped)


def check_description(trial: Trial) -> None:
    """The model has a name, and its capabilities are yes or no."""
    name, can = trial.model.name, trial.model.capabilities
    need(isinstance(name, str) and bool(name), f"name is {name!r}; expected a word.")
    need(isinstance(can, Capabilities), f"capabilities is {can!r}; expected Capabilities.")
    for what, value in vars(can).items():
        need(isinstance(value, bool), f"capabilities.{what} is {value!r}; expected True or False.")


def check_order(trial: Trial) -> None:
    """There is one generation per query, in the order of the queries."""
    same_ids(trial.generations, trial.queries)
    same_ids(trial.ask(trial.queries[::-1]), trial.queries[::-1])


def check_answers(trial: Trial) -> None:
    """Every good query has samples, a judged answer and no error."""
    for g in trial.generations:
        need(g.error is None, f"query {g.query_id} failed: {g.error}")
        need(isinstance(g.samples, Samples), f"query {g.query_id} has neither samples nor error.")
        answer = getattr(g.samples, "answer", None)
        need(isinstance(answer, str), f"query {g.query_id} has no judged answer but {answer!r}.")


def check_counts(trial: Trial) -> None:
    """There are n samples, and n entries of all that is recorded per sample."""
    for g, samples in trial.answered:
        need(len(samples) == trial.n, f"query {g.query_id} has {len(samples)} of {trial.n} texts.")
        for what in ("token_ids", "warped_logprobs", "temperatures", "truncated"):
            counted(getattr(g, what), {0, trial.n}, f"entries of {what} of query {g.query_id}")
        if len(g.temperatures):
            close(g.temperatures, trial.temperatures, f"the temperatures of query {g.query_id}")


def check_logprobs(trial: Trial) -> None:
    """Log-probabilities are there, finite and at most 0, if and only if the model says so."""
    for g, samples in trial.answered:
        for what in ("token_logprobs", "answer_logprobs"):
            given = getattr(samples, what) is not None
            need(
                given == trial.can.logprobs,
                f"the model says logprobs={trial.can.logprobs}, and query {g.query_id} has "
                f"{'' if given else 'no '}{what}.",
            )
        for row in [*(samples.token_logprobs or ()), *g.warped_logprobs]:
            values = checks.as_floats(row, "log-probabilities")
            need(
                bool(np.isfinite(values).all() and (values <= 1e-6).all()),
                f"a log-probability of query {g.query_id} is {values.max():g}; expected at most 0.",
            )


def check_lengths(trial: Trial) -> None:
    """Each token has one log-probability, and so has the EOS token unless the limit cut it off."""
    trial.requires("logprobs")
    if not all(len(g.token_ids) for g in trial.generations):
        raise SkippedCheck("the model gives no token_ids")
    stops = bool(getattr(getattr(trial.model, "decoding", None), "stop", ()))
    for g, samples in trial.answered:
        rows = list(zip(g.token_ids, samples.token_logprobs or (), strict=True))
        for k, (tokens, logprobs) in enumerate(rows):
            expected = {len(tokens) + 1}
            if len(g.truncated):
                expected = {len(tokens)} if g.truncated[k] else expected
            if stops or not len(g.truncated):
                expected |= {len(tokens)}
            counted(logprobs, expected, f"log-probabilities of sample {k} of query {g.query_id}")
        for k, warped in enumerate(g.warped_logprobs):
            counted(warped, {len(rows[k][1])}, f"warped_logprobs {k} of query {g.query_id}")
        size = len(g.answer_token_ids)
        counted(samples.answer_logprobs, {size, size + 1}, f"answer_logprobs of query {g.query_id}")


def check_states(trial: Trial) -> None:
    """Hidden states are [n, d] and finite per layer, if and only if the model says so."""
    widths: dict[str, int] = {}
    for g, samples in trial.answered:
        given = {"embeddings": samples.embeddings is not None, "layers": bool(g.layers)}
        for what, there in given.items():
            need(
                there == trial.can.hidden_states,
                f"the model says hidden_states={trial.can.hidden_states}, and query {g.query_id} "
                f"has {'' if there else 'no '}{what}.",
            )
        need(
            set(g.answer_layers) == set(g.layers),
            f"query {g.query_id} has the layers {list(g.layers)}, and of the judged answer "
            f"{list(g.answer_layers)}; expected the same.",
        )
        for k, (name, rows) in enumerate(g.layers.items()):
            judged = np.asarray(g.answer_layers[name])
            d = widths.setdefault(name, judged.size)
            for value, shape in ((np.asarray(rows), (trial.n, d)), (judged, (d,))):
                need(
                    value.shape == shape and bool(np.isfinite(value).all()),
                    f"layer {name} of query {g.query_id} has shape {value.shape}, expected {shape},"
                    f" or holds NaN.",
                )
            if k == 0:
                close(samples.embeddings, rows, f"embeddings and the first layer, {name},")


def check_margins(trial: Trial) -> None:
    """Each log-probability of the judged answer has its margin, if there are hidden states."""
    trial.requires("hidden_states")
    trial.requires("logprobs")
    for g, samples in trial.answered:
        need(samples.answer_margins is not None, f"query {g.query_id} has no answer_margins.")
        if not _judged_greedily(trial):
            continue
        # the best token is the answer's, and the second has what is left at most
        best = np.exp(samples.answer_logprobs)
        least = np.log(best) - np.log(np.maximum(1.0 - best, 1e-300))
        need(
            bool((samples.answer_margins >= np.minimum(least, 10.0) - HALF).all())
            or g.n_near_boundary > 0,
            f"query {g.query_id}: a margin is below what its log-probability leaves to others.",
        )


def check_prompt(trial: Trial) -> None:
    """Every layer has the last prompt token's state, [d], if there are hidden states."""
    trial.requires("hidden_states")
    for g, _ in trial.answered:
        need(
            set(g.prompt_layers) == set(g.layers),
            f"query {g.query_id} has the layers {list(g.layers)}, and of the prompt "
            f"{list(g.prompt_layers)}; expected the same.",
        )
        for name, state in g.prompt_layers.items():
            value, shape = np.asarray(state), np.shape(g.answer_layers[name])
            need(
                value.shape == shape and bool(np.isfinite(value).all()),
                f"layer {name} of the prompt of query {g.query_id} has shape {value.shape}, "
                f"expected {shape}, or holds NaN.",
            )
    if not trial.can.deterministic:
        return
    for g, other in zip(trial.generations, trial.ask(seed=trial.seed + 1), strict=True):
        for name, state in g.prompt_layers.items():
            close(
                other.prompt_layers[name], state,
                f"states of the prompt of query {g.query_id} in layer {name} under two seeds",
            )  # fmt: skip


def check_repeats(trial: Trial) -> None:
    """The same tokens have the same log-probabilities and states: rows are not mixed up."""
    compared = 0
    for g in trial.ask(temperatures=_alternating(trial.n)):
        rows = _rows(g)
        first: dict[tuple[int, ...], int] = {}
        for k, (tokens, values) in enumerate(rows):
            j = first.setdefault(tokens, k)
            compared += j < k
            for name, value in values.items():
                other = rows[j][1][name]
                close(value, other, f"{name} of rows {j} and {k} of query {g.query_id}", HALF)
    if not compared:
        raise SkippedCheck("the model gives no token_ids, or never the same twice")


def check_seed(trial: Trial) -> None:
    """The same seed gives the same bytes, another seed other samples."""
    trial.requires("deterministic")
    again = trial.ask()
    for (g, samples), b in zip(trial.answered, again, strict=True):
        same = b.samples is not None and samples.texts == b.samples.texts
        same = same and samples.answer == getattr(b.samples, "answer", None)
        need(same, f"query {g.query_id} has other texts the second time.")
        for what, one, two in numbers(g, b):
            need(np.array_equal(one, two), f"{what} of query {g.query_id} differ the second time.")
    heat = constant(trial.n, HOT)
    here, there = (trial.ask(temperatures=heat, seed=trial.seed + k) for k in (0, 1))
    need(all_texts(here) != all_texts(there), "another seed gives the same samples to every query.")


def check_temperatures(trial: Trial) -> None:
    """Each sample has its own temperature: 0 gives the judged answer, a high one others."""
    hot = trial.ask(temperatures=constant(trial.n, HOT))
    need(
        any(len(set(row)) > 1 for row in all_texts(hot)),
        f"all {trial.n} samples at temperature {HOT:g} are the same, of every query.",
    )
    trial.requires("deterministic")
    _greedy(trial)
    for g in trial.ask(temperatures=_alternating(trial.n)):
        cold = [] if g.samples is None else [*g.samples.texts[::2], g.samples.answer]
        need(
            len(set(cold)) == 1 or g.n_near_boundary > 0,
            f"query {g.query_id}: samples at temperature 0 and the judged answer are {cold}.",
        )


def check_judged(trial: Trial) -> None:
    """The judged answer is none of the n samples: neither seed nor n nor temperature moves it."""
    trial.requires("deterministic")
    _greedy(trial)
    for n in (1, trial.n):
        found = trial.ask(temperatures=constant(n, HOT), seed=trial.seed + n)
        for (g, samples), other in zip(trial.answered, found, strict=True):
            answer = None if other.samples is None else other.samples.answer
            need(
                answer == samples.answer or g.n_near_boundary + other.n_near_boundary > 0,
                f"query {g.query_id}: the judged answer was {samples.answer!r} and is {answer!r} "
                f"with n={n} and other samples.",
            )


def check_layout(trial: Trial) -> None:
    """One query at a time gives what all together give, but for draws near a boundary."""
    trial.requires("deterministic")
    near = 0
    for query, (batched, samples) in zip(trial.queries, trial.answered, strict=True):
        (alone,) = trial.ask([query])
        if batched.n_near_boundary or alone.n_near_boundary:
            near += 1
            continue
        texts = None if alone.samples is None else alone.samples.texts
        need(
            texts == samples.texts,
            f"query {query.id} has the samples {samples.texts} with others and {texts} alone.",
        )
        for what, one, two in numbers(batched, alone):
            close(one, two, f"{what} of query {query.id}, alone and with others")
    need(2 * near <= len(trial.queries), f"{near} queries have draws near a boundary: too many.")


def check_images(trial: Trial) -> None:
    """Another picture changes the numbers of the judged answer."""
    trial.requires("images")
    if not all(query.images for query in trial.queries):
        raise SkippedCheck("not all queries have a picture")
    if not (trial.can.logprobs or trial.can.hidden_states):
        raise SkippedCheck("the model gives no numbers that a picture could change")
    pictures = [query.images for query in trial.queries]
    swapped = [
        replace(query, images=other)
        for query, other in zip(trial.queries, pictures[1:] + pictures[:1], strict=True)
    ]
    for (g, _), other in zip(trial.answered, trial.ask(swapped), strict=True):
        for _, one, two in numbers(g, other, judged=True):
            if np.shape(one) != np.shape(two) or np.abs(one - two).max() > 1e-6:
                return
    raise ContractError("other pictures change nothing in any answer: are they looked at?")


def check_bad_query(trial: Trial) -> None:
    """A query whose picture cannot be read is a row with its error; the others are unharmed."""
    trial.requires("images")
    _one_failure(trial, replace(trial.queries[0], id="bad picture", images=[b"not an image"]))


def check_empty_question(trial: Trial) -> None:
    """An empty question is a row with its error; the others are unharmed."""
    _one_failure(trial, replace(trial.queries[0], id="empty question", question="  "))


def check_equal_ids(trial: Trial) -> None:
    """Two queries with the same id are refused."""
    _refused(trial, [trial.queries[0], trial.queries[0]], trial.temperatures, "two equal ids")


def check_arguments(trial: Trial) -> None:
    """Temperatures that are not n, and an n below 0, are refused."""
    one_more = constant(trial.n + 1)
    _refused(trial, trial.queries[:1], one_more, f"{trial.n + 1} temperatures for n={trial.n}")
    _refused(trial, trial.queries[:1], np.zeros(0), "n=-1", n=-1)


def check_no_samples(trial: Trial) -> None:
    """n = 0 gives the judged answer alone, the same as beside samples."""
    found = trial.ask(temperatures=np.zeros(0))
    same_ids(found, trial.queries)
    for (g, samples), other in zip(trial.answered, found, strict=True):
        need(other.samples is not None, f"query {g.query_id} failed without samples.")
        answer, count = getattr(other.samples, "answer", None), len(other.samples or ())
        need(count == 0, f"query {g.query_id} has {count} samples; none were asked for.")
        greedy = trial.can.deterministic and _judged_greedily(trial)
        if greedy and g.n_near_boundary + other.n_near_boundary == 0:
            need(
                answer == samples.answer,
                f"query {g.query_id} has another judged answer: {answer!r}.",
            )
            for what, one, two in numbers(g, other, judged=True):
                close(one, two, f"{what} of query {g.query_id}, without samples and with them")


def check_rounds(trial: Trial) -> None:
    """Samples drawn in rounds, of some queries more than of others, are those drawn at once."""
    if not isinstance(trial.model, InRounds):
        raise SkippedCheck("the model draws all samples at once: it has no begin()")
    ids = [query.id for query in trial.queries]
    with trial.model.begin(trial.queries, trial.temperatures, trial.seed) as session:
        none = list(session.draw(ids, 0))
        list(session.draw(ids[::2], trial.n // 2))
        found = list(session.draw(ids, trial.n))
        fewer = list(session.draw(ids, 1))
    for some, size in ((none, 0), (found, trial.n), (fewer, 1)):
        same_ids(some, trial.queries)
        for g in some:
            need(g.error is None, f"query {g.query_id} failed in rounds: {g.error}")
            counted(g.samples or (), {size}, f"samples of query {g.query_id} in rounds")
    trial.requires("deterministic")
    for (g, samples), other in zip(trial.answered, found, strict=True):
        if g.n_near_boundary + other.n_near_boundary == 0:
            texts = None if other.samples is None else other.samples.texts
            need(
                texts == samples.texts, f"query {g.query_id} has other samples in rounds: {texts}."
            )
            for what, one, two in numbers(g, other):
                close(one, two, f"{what} of query {g.query_id}, in rounds and at once")


def check_forward_pass(trial: Trial) -> None:
    """Hugging Face: log-probabilities and last-token states equal one plain forward pass."""
    module = sys.modules.get("fusevlm.models.huggingface")
    if module is None or not isinstance(trial.model, module.HuggingFace):
        raise SkippedCheck("not a Hugging Face model, which shows its forward pass")
    from fusevlm.testing.oracle import compare

    dtype = str(trial.model.model.dtype).removeprefix("torch.")
    if dtype not in ("float32", "float64"):
        raise SkippedCheck(f"weights are {dtype}; load them as float32 to compare to {TOLERANCE:g}")
    for query, (g, _) in zip(trial.queries, trial.answered, strict=True):
        for what, found, expected in compare(trial.model, query, g):
            close(found, expected, f"query {query.id}: {what} and of the forward pass")


CHECKS: tuple[Callable[[Trial], None], ...] = (
    check_description, check_order, check_answers, check_counts, check_logprobs, check_lengths,
    check_states, check_margins, check_prompt, check_repeats, check_seed, check_temperatures,
    check_judged, check_layout, check_images, check_bad_query, check_empty_question,
    check_equal_ids, check_arguments, check_no_samples, check_rounds, check_forward_pass,
)  # fmt: skip


def check_name(check: Callable[[Trial], None]) -> str:
    """The name of a check: its function's, without ``check_``."""
    return check.__name__.removeprefix("check_")


def check_promise(check: Callable[[Trial], None]) -> str:
    """What a check checks, in one line."""
    return (check.__doc__ or "").split("\n")[0]


def run_check(check: Callable[[Trial], None], trial: Trial) -> Outcome:
    """One check as an outcome; only what the model does can fail it."""
    name = check_name(check)
    try:
        check(trial)
    except ContractError as error:
        return Outcome(name, passed=False, detail=str(error))
    except SkippedCheck as error:
        return Outcome(name, passed=False, detail=str(error), skipped=True)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        # values of no known form; InputError of our own checks is among them
        return Outcome(name, passed=False, detail=f"{type(error).__name__}: {error}")
    return Outcome(name, passed=True)


def run_contract(
    model: Model, queries: Sequence[Query] | None = None, *, n: int = 4
) -> list[Outcome]:
    """Every check of a model, on the given queries or on small generated pictures."""
    asked = make_queries() if queries is None else queries
    if not model.capabilities.images:
        asked = [replace(query, images=()) for query in asked]
    trial = Trial(model, asked, n)
    return [run_check(check, trial) for check in CHECKS]


def _one_failure(trial: Trial, bad: Query) -> None:
    """``bad`` among the queries fails alone."""
    asked = [trial.queries[0], bad, *trial.queries[1:]]
    found = trial.ask(asked)
    same_ids(found, asked)
    failed = found.pop(1)
    need(
        isinstance(failed.error, str) and bool(failed.error) and failed.samples is None,
        f"the {bad.id} was answered; expected a row with an error and no samples.",
    )
    for (g, samples), other in zip(trial.answered, found, strict=True):
        need(other.samples is not None, f"query {g.query_id} failed with the {bad.id}.")
        if trial.can.deterministic and g.n_near_boundary + other.n_near_boundary == 0:
            texts = None if other.samples is None else other.samples.texts
            need(texts == samples.texts, f"query {g.query_id} has other samples beside a {bad.id}.")


def _refused(
    trial: Trial, queries: Sequence[Query], heat: FloatArray, what: str, n: int | None = None
) -> None:
    try:
        list(trial.model.sample(queries, trial.n if n is None else n, heat, trial.seed))
    except InputError:
        return
    except Exception as error:
        raise ContractError(
            f"{what} raised {type(error).__name__}: {error}; expected an InputError."
        ) from error
    raise ContractError(f"{what} were accepted; expected an InputError.")


def _alternating(n: int) -> FloatArray:
    """0 and a high temperature in turn: every other sample is the greedy answer."""
    return np.where(np.arange(n) % 2 == 0, 0.0, HOT)


def _rows(g: Generation) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    """The tokens and numbers of each sample and, last, of the judged answer."""
    if g.samples is None or not len(g.token_ids):
        return []
    rows: list[tuple[tuple[int, ...], dict[str, Any]]] = []
    for k, tokens in enumerate([*g.token_ids, g.answer_token_ids]):
        judged = k == len(g.token_ids)
        values = {
            f"layer {name}": g.answer_layers[name] if judged else states[k]
            for name, states in g.layers.items()
        }
        if g.samples.token_logprobs is not None:
            given = g.samples.answer_logprobs if judged else g.samples.token_logprobs[k]
            values["log-probabilities"] = given
        rows.append((tuple(tokens), values))
    return rows


def _greedy(trial: Trial) -> None:
    """Skip the check where the judged answer is known not to be greedy."""
    if not _judged_greedily(trial):
        raise SkippedCheck("the judged answer is sampled: answer_temperature is above 0")


def _judged_greedily(trial: Trial) -> bool:
    decoding = getattr(trial.model, "decoding", None)
    return bool(getattr(decoding, "answer_temperature", 0.0) == 0)
