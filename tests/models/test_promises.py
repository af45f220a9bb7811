"""The contract suite can fail: for every check, models that break just that promise."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.models.toy import InRounds, Toy, changed

from fusevlm.errors import InputError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Capabilities, Decoding
from fusevlm.testing import __main__ as command
from fusevlm.testing import tiny
from fusevlm.testing.contract import CHECKS, check_name, check_promise, run_contract
from fusevlm.testing.trial import Trial, make_queries
from fusevlm.types import Generation

ALL = Toy.capabilities


def of_samples(**changes):
    """A Toy with some fields of its samples changed by functions of the samples."""
    return changed(
        samples=lambda g: replace(g.samples, **{k: f(g.samples) for k, f in changes.items()})
    )


def says(toy, **changes):
    toy.capabilities = replace(ALL, **changes)
    return toy


def rolled(g):
    return {name: np.roll(rows, 1, axis=0) for name, rows in g.layers.items()}


class InAlphabet(Toy):
    def sample(self, queries, n, temperatures, seed):
        return super().sample(sorted(queries, key=lambda q: q.id), n, temperatures, seed)


class OneTooFew(Toy):
    def sample(self, queries, n, temperatures, seed):
        return iter(list(super().sample(queries, n, temperatures, seed))[:-1])


class SameSeed(Toy):
    def sample(self, queries, n, temperatures, seed):
        return super().sample(queries, n, temperatures, 0)


class NewSeed(Toy):
    calls = 0

    def sample(self, queries, n, temperatures, seed):
        self.calls += 1
        return super().sample(queries, n, temperatures, self.calls)


class OneTemperature(Toy):
    def answer(self, query, temperatures, seed):
        g = super().answer(query, np.full(len(temperatures), 1.0), seed)
        return replace(g, temperatures=temperatures)


class MixedTemperatures(Toy):
    def answer(self, query, temperatures, seed):
        return replace(super().answer(query, temperatures[::-1], seed), temperatures=temperatures)


class NeverHot(Toy):
    def row(self, prompt, temperature, key):
        return super().row(prompt, 0.0, key)


class FirstIsJudged(Toy):
    def answer(self, query, temperatures, seed):
        g = super().answer(query, temperatures, seed)
        return g if g.samples is None else replace(g, samples=first_judged(g.samples))


def first_judged(samples):
    return replace(samples, answer=samples.texts[0], answer_logprobs=samples.token_logprobs[0])


class ByPlace(Toy):
    """Random numbers by the place in the batch."""

    def sample(self, queries, n, temperatures, seed):
        list(super().sample(queries, n, temperatures, seed))
        for place, query in enumerate(queries):
            found = self.answer(replace(query, id=str(place)), temperatures, seed)
            yield replace(found, query_id=query.id)


class Blind(Toy):
    def answer(self, query, temperatures, seed):
        g = super().answer(query, temperatures, seed)
        blind = replace(query, images=())
        return g if g.samples is None else super().answer(blind, temperatures, seed)


class Raises(Toy):
    def answer(self, query, temperatures, seed):
        g = super().answer(query, temperatures, seed)
        if g.error is not None:
            raise OSError(g.error)
        return g


class MakesUp(Toy):
    def answer(self, query, temperatures, seed):
        try:
            g = super().answer(query, temperatures, seed)
        finally:
            made_up = replace(query, images=(), question=query.question.strip() or "what")
        return g if g.error is None else super().answer(made_up, temperatures, seed)


class Spoils(Toy):
    """One bad query, and all of the batch fail."""

    def sample(self, queries, n, temperatures, seed):
        found = list(super().sample(queries, n, temperatures, seed))
        bad = any(g.error for g in found)
        return iter([Generation(g.query_id, error="bad") if bad else g for g in found])


class Disturbs(Toy):
    """One bad query, and the others are sampled otherwise."""

    def sample(self, queries, n, temperatures, seed):
        found = list(super().sample(queries, n, temperatures, seed))
        if any(g.error for g in found):
            return super().sample(queries, n, temperatures, seed + 1)
        return iter(found)


class TakesAnything(Toy):
    def sample(self, queries, n, temperatures, seed):
        return iter([self.answer(query, temperatures, seed) for query in queries])


class WrongError(TakesAnything):
    def sample(self, queries, n, temperatures, seed):
        if len(queries) != len({q.id for q in queries}) or len(temperatures) != n:
            raise KeyError("what is this")
        return super().sample(queries, n, temperatures, seed)


class AlwaysOne(Toy):
    """A sample also where none is asked for."""

    def sample(self, queries, n, temperatures, seed):
        if n:
            return super().sample(queries, n, temperatures, seed)
        return super().sample(queries, 1, np.ones(1), seed)


class OtherAlone(Toy):
    """Another judged answer where it is asked for alone."""

    def row(self, prompt, temperature, key):
        more = () if self.n else ("alone",)
        return super().row((*prompt, *more), temperature, key)

    def sample(self, queries, n, temperatures, seed):
        self.n = n
        return super().sample(queries, n, temperatures, seed)


class Forgets(InRounds):
    """Each round begins anew, with other numbers."""

    def begin(self, queries, temperatures, seed):
        return super().begin(queries, temperatures, seed + 1)


class Late(InRounds):
    """No samples in the last round."""

    def begin(self, queries, temperatures, seed):
        return super().begin(queries, temperatures[:1], seed)


class Changed(HuggingFace):
    """What was sampled, changed."""

    def sample(self, *given):
        for g in super().sample(*given):
            yield g if g.samples is None else self.change(g)


class OffByOne(Changed):
    """States of the next sample's answer."""

    def change(self, g):
        layers = rolled(g)
        return replace(g, samples=replace(g.samples, embeddings=layers["last"]), layers=layers)


class Warped(Changed):
    """Log-probabilities at the sampling temperature instead of 1."""

    def change(self, g):
        return replace(g, samples=replace(g.samples, token_logprobs=g.warped_logprobs))


class Sure(Changed):
    """Margins that are a little too large."""

    def change(self, g):
        more = g.samples.answer_margins + 0.01
        return replace(g, samples=replace(g.samples, answer_margins=more))


class AfterPrompt(Changed):
    """States of the answer for those of the prompt."""

    def change(self, g):
        return replace(g, prompt_layers=g.answer_layers)


def tiny_llava(kind, **decoding):
    return kind(*tiny.build("llava"), decoding=Decoding(max_new_tokens=3, **decoding))


BROKEN = [
    ("description", lambda: says(Toy(), logprobs="yes"), "logprobs is 'yes'"),
    ("order", InAlphabet, "expected"),
    ("order", OneTooFew, "3 generations for 4 queries"),
    ("answers", lambda: of_samples(answer=lambda s: None), "no judged answer"),
    ("answers", lambda: changed(samples=lambda g: None), "neither samples nor error"),
    ("answers", lambda: changed(error=lambda g: "tired"), "failed: tired"),
    ("answers", lambda: of_samples(token_logprobs=lambda s: [[0.5]] * len(s)), "at most 0"),
    ("counts", lambda: changed(samples=lambda g: g.samples.first(len(g.samples) - 1)), "3 of 4"),
    ("counts", lambda: changed(truncated=lambda g: [False]), "1 entries of truncated"),
    ("counts", lambda: changed(temperatures=lambda g: [9.0] * len(g.samples)), "temperatures"),
    ("logprobs", lambda: of_samples(token_logprobs=lambda s: None), "no token_logprobs"),
    ("logprobs", lambda: of_samples(answer_logprobs=lambda s: None), "no answer_logprobs"),
    ("logprobs", lambda: says(Toy(), logprobs=False), "says logprobs=False"),
    ("logprobs", lambda: changed(warped_logprobs=lambda g: [[0.5]] * len(g.samples)), "is 0.5"),
    (
        "lengths",
        lambda: of_samples(token_logprobs=lambda s: [row[:-1] for row in s.token_logprobs]),
        "there are 2 log-probabilities of sample 0",
    ),
    ("lengths", lambda: changed(truncated=lambda g: [True] * len(g.samples)), "expected 2"),
    (
        "lengths",
        lambda: of_samples(answer_logprobs=lambda s: [-1.0], answer_margins=lambda s: None),
        "answer_logprobs",
    ),
    (
        "lengths",
        lambda: changed(warped_logprobs=lambda g: [[-1.0]] * len(g.samples)),
        "warped_logprobs",
    ),
    ("states", lambda: of_samples(embeddings=lambda s: None), "has no embeddings"),
    ("states", lambda: changed(layers=lambda g: {}), "has no layers"),
    ("states", lambda: says(Toy(), hidden_states=False), "says hidden_states=False"),
    ("states", lambda: changed(answer_layers=lambda g: {}), "judged answer"),
    ("states", lambda: changed(layers=lambda g: {"last": g.layers["last"] * np.nan}), "NaN"),
    ("states", lambda: changed(layers=lambda g: {"last": g.layers["last"][1:]}), r"\(3, 5\)"),
    ("states", lambda: changed(answer_layers=lambda g: {"last": np.ones(3)}), r"\(4, 3\)"),
    ("states", lambda: of_samples(embeddings=lambda s: s.embeddings + 1), "first layer"),
    ("margins", lambda: of_samples(answer_margins=lambda s: None), "no answer_margins"),
    ("margins", lambda: of_samples(answer_margins=lambda s: [0.0, 0.0, 0.0]), "a margin is below"),
    ("prompt", lambda: changed(prompt_layers=lambda g: {}), "of the prompt"),
    ("prompt", lambda: changed(prompt_layers=lambda g: {"last": np.ones(3)}), r"expected \(5,\)"),
    (
        "prompt",
        lambda: changed(prompt_layers=lambda g: {"last": np.full(5, np.nan)}),
        "or holds NaN",
    ),
    ("prompt", lambda: changed(prompt_layers=lambda g: {"last": g.layers["last"][0]}), "two seeds"),
    ("repeats", lambda: changed(layers=rolled), "layer last of rows"),
    (
        "repeats",
        lambda: of_samples(token_logprobs=lambda s: s.token_logprobs[::-1]),
        "log-probabilities of rows",
    ),
    ("seed", SameSeed, "another seed gives the same"),
    ("seed", NewSeed, "other texts the second time"),
    ("temperatures", OneTemperature, "at temperature 0"),
    ("temperatures", MixedTemperatures, "at temperature 0"),
    ("temperatures", NeverHot, "all 4 samples at temperature 2"),
    ("judged", FirstIsJudged, "the judged answer was"),
    ("layout", ByPlace, "with others"),
    ("layout", lambda: changed(n_near_boundary=lambda g: 1), "too many"),
    ("images", Blind, "are they looked at"),
    ("bad_query", Raises, "sample.. raised OSError"),
    ("bad_query", MakesUp, "was answered"),
    ("bad_query", Spoils, "failed with the bad picture"),
    ("bad_query", Disturbs, "other samples beside"),
    ("empty_question", Raises, "sample.. raised OSError"),
    ("empty_question", MakesUp, "was answered"),
    ("empty_question", Spoils, "failed with the empty question"),
    ("equal_ids", TakesAnything, "were accepted"),
    ("equal_ids", WrongError, "raised KeyError"),
    ("arguments", TakesAnything, "temperatures for n=4 were accepted"),
    ("arguments", WrongError, "raised KeyError"),
    ("no_samples", AlwaysOne, "1 samples; none were asked for"),
    ("no_samples", OtherAlone, "another judged answer"),
    ("rounds", Forgets, "other samples in rounds"),
    ("rounds", Late, "temperatures|there are 1 samples"),
    ("forward_pass", lambda: tiny_llava(OffByOne), "state of layer last of sample 0"),
    ("forward_pass", lambda: tiny_llava(Warped), "log-probabilities of sample"),
    ("forward_pass", lambda: tiny_llava(Sure), "margins of the answer"),
    ("forward_pass", lambda: tiny_llava(AfterPrompt), "state of layer last of the prompt"),
]


def failures(model):
    return {o.name: o.detail for o in run_contract(model) if o.failed}


def test_a_plain_model_keeps_every_promise():
    for toy, left in ((Toy(), ["rounds", "forward_pass"]), (InRounds(), ["forward_pass"])):
        outcomes = {o.name: o for o in run_contract(toy)}
        assert [name for name, o in outcomes.items() if not o.passed] == left
    assert "not a Hugging Face model" in outcomes["forward_pass"].detail


@pytest.mark.parametrize(("name", "make", "detail"), BROKEN)
def test_a_broken_promise_is_found(name, make, detail):
    found = failures(make())
    assert name in found
    assert re.search(detail, found[name])


def test_every_check_has_been_broken_and_says_what_it_checks():
    assert {name for name, _, _ in BROKEN} == {check_name(check) for check in CHECKS}
    for check in CHECKS:
        assert check_promise(check).endswith(".")


def test_the_page_says_what_every_check_means():
    page = (Path(__file__).parents[2] / "docs" / "vlms.md").read_text()
    table = page.split("| check | what it means |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [check_name(c) for c in CHECKS]


class Plain(Toy):
    """Texts alone, and never the same: what a service gives."""

    capabilities = Capabilities(
        logprobs=False, hidden_states=False, images=False, deterministic=False
    )

    def answer(self, query, temperatures, seed):
        assert not query.images
        g = super().answer(query, temperatures, np.random.default_rng().integers(1 << 30))
        if g.samples is None:
            return g
        bare = replace(
            g.samples, token_logprobs=None, answer_logprobs=None, answer_margins=None,
            embeddings=None,
        )  # fmt: skip
        return Generation(g.query_id, bare)


def test_what_a_model_does_not_offer_is_skipped_and_not_failed():
    outcomes = {o.name: o for o in run_contract(Plain())}
    assert not [o for o in outcomes.values() if o.failed]
    skipped = {name: o.detail for name, o in outcomes.items() if o.skipped}
    assert skipped["seed"] == "the model says deterministic=False"
    assert skipped["images"] == "the model says images=False"
    assert {*skipped} == {
        "lengths", "margins", "prompt", "repeats", "seed", "temperatures", "judged", "layout",
        "images", "bad_query", "rounds", "forward_pass",
    }  # fmt: skip


def test_checks_that_need_answers_say_so_when_there_are_none():
    outcomes = {o.name: o for o in run_contract(changed(samples=lambda g: None))}
    assert outcomes["counts"].detail == "not every query was answered"
    assert "in order" in {o.name: o for o in run_contract(InAlphabet())}["states"].detail


def test_a_sampled_answer_and_stop_strings_are_taken_into_account():
    warm = run_contract(tiny_llava(HuggingFace, answer_temperature=1.0))
    assert {o.name for o in warm if o.skipped} == {"temperatures", "judged"}
    stopped = run_contract(tiny_llava(HuggingFace, stop=("red", "blue", "yes")))
    assert not [o for o in warm + stopped if o.failed]


def test_half_precision_is_not_compared_with_a_float32_tolerance():
    model, processor = tiny.build("llava")
    half = HuggingFace(model.bfloat16(), processor, decoding=Decoding(max_new_tokens=3))
    (outcome,) = [o for o in run_contract(half) if o.name == "forward_pass"]
    assert outcome.skipped
    assert "load them as float32" in outcome.detail


def test_the_command(capsys, tmp_path):
    assert command.main(["tiny:smolvlm", "-n", "3"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(" ok\n") == len(CHECKS)
    assert "tiny:smolvlm: 22 ok, 0 failed, 0 skipped" in printed
    for words, message in (
        (["tiny:nothing"], "the tiny model 'nothing' is not known"),
        (["tiny:llava", "--images", str(tmp_path / "none")], "no folder of pictures"),
        (["tiny:llava", "--images", str(tmp_path)], "holds 0 pictures"),
        (["tiny:llava", "-n", "1"], "n of at least 2"),
    ):
        assert command.main(words) == 1
        assert message in capsys.readouterr().err
    for k, query in enumerate(make_queries()):
        query.images[0].save(tmp_path / f"{k}.png")
    assert command.main(["tiny:llava", "--images", str(tmp_path)]) == 0


def test_the_command_fails_with_a_broken_model(capsys, monkeypatch):
    monkeypatch.setattr(command, "load_model", lambda *_, **__: SameSeed())
    assert command.main(["whatever"]) == 1
    printed = capsys.readouterr().out
    assert "seed            FAILED another seed gives the same samples" in printed
    assert "forward_pass    skipped not a Hugging Face model" in printed
    assert "toy: 19 ok, 1 failed, 2 skipped" in printed


def test_too_few_queries_prove_nothing():
    with pytest.raises(InputError, match="at least 2 queries"):
        Trial(Toy(), make_queries()[:1])
