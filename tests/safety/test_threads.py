"""Many threads, one object: every answer and every file as if one had come after the other."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from threading import Barrier

import numpy as np
import pytest
from tests.models.conftest import make_picture, make_query
from tests.safety.test_kills import fuse_of, scorer_of, table, tree

import fusevlm
from fusevlm import Fuse
from fusevlm.data.questions import queries
from fusevlm.errors import FuseError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.image_to_text import ImageToText
from fusevlm.models.protocol import Decoding
from fusevlm.models.temperatures import stratified
from fusevlm.models.towers import SentenceEncoder, Towers
from fusevlm.scorer import Scorer
from fusevlm.semantics.inference import NliModel
from fusevlm.semantics.selfcheck import p_true
from fusevlm.testing import tiny, tiny_helpers

HEAT = stratified(3)


def together(jobs, threads=8):
    """What functions return that begin at the same time in as many threads, each in its order."""
    start = Barrier(threads)

    def work(number):
        order = list(range(len(jobs)))
        random.Random(number).shuffle(order)
        start.wait()
        found = {k: jobs[k]() for k in order}
        return [found[k] for k in range(len(jobs))]

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(threads)))


def check(jobs, threads=8):
    """Each result in each thread is the one of the same call alone, to the last bit."""
    alone = [job() for job in jobs]
    for found in together(jobs, threads):
        assert [k for k, one in enumerate(found) if one != alone[k]] == []
    return threads * len(jobs)


# ----------------------------------------------------------------------------------- the assistant


def asks(size):
    """Questions of all kinds: with fixed numbers of samples, as needed, and ones that fail."""
    assistant = fusevlm.load("embedded")
    asked = queries("test", limit=size)

    def ask(k):
        ways = [{"n": 5}, {"n": 3, "risk": 0.2}, {"samples": "as needed"}, {"n": 5, "seed": k}]
        image = asked[k].images[0] if k % 9 else b"no picture"
        try:
            found = assistant.ask(image, asked[k].question, **ways[k % len(ways)])
        except FuseError as error:
            return str(error)
        return json.dumps(asdict(found), sort_keys=True)

    return [lambda k=k: ask(k) for k in range(size)]


def test_one_assistant_for_four_threads():
    assert check(asks(6), threads=4) == 24


@pytest.mark.slow
def test_one_assistant_for_eight_threads(tally):
    n = check(asks(50), threads=8)
    assert n == 400
    tally(f"8 threads × 50 asks on one assistant: 0 of {n} answers differ from sequential ones")


# --------------------------------------------------------------------------------------- the models


def as_bits(found):
    """All that was generated, as text and bytes."""
    rows = []
    for g in found:
        states = [np.asarray(v).tobytes() for v in (*g.layers.values(), *g.prompt_layers.values())]
        said = None if g.samples is None else (g.samples.texts, g.samples.answer)
        rows.append((g.query_id, g.error, said, list(map(list, g.token_ids)), states))
    return rows


def vlm_jobs(model, size):
    def sample(k):
        some = [make_query(k), make_query(k + 1, images=["missing.png"]), make_query(k + 2)]
        return as_bits(model.sample(some, 3, HEAT, seed=k))

    def sure(k):
        found = p_true(model, [make_query(k)], ["red"], wording="{question} {answer} yes or no")
        return found.yes.tobytes(), found.no.tobytes()

    jobs = [lambda k=k: sample(k) for k in range(size)]
    # a forward pass of the same weights, beside those that listen to hidden states
    return jobs + [lambda k=k: sure(k) for k in range(size)]


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_vision_language_model(family):
    """Its samples, their hidden states and P(True), which uses the same weights."""
    model = HuggingFace(*tiny.build(family), decoding=Decoding(max_new_tokens=4))
    check(vlm_jobs(model, 3), threads=4)


def test_an_image_to_text_model(tmp_path):
    """The random state of torch is the whole process's."""
    folder = tiny_helpers.save_blip(tmp_path / "blip")
    model = ImageToText.load(folder, decoding=Decoding(max_new_tokens=4))
    jobs = [lambda k=k: as_bits(model.sample([make_query(k)], 3, HEAT, seed=k)) for k in range(4)]
    check(jobs, threads=4)


def test_towers_and_encoders(tmp_path):
    """Their tokenizers change as they are used: cut here, not cut there."""
    towers = Towers.load(tiny.save_towers(tmp_path / "towers"))
    encoder = SentenceEncoder.load(tiny_helpers.save_encoder(tmp_path / "encoder"))
    long = " ".join(["what colour is the red shape"] * 40)
    texts = [["what"], ["what colour", long], ["is the shape red", "red", long]]

    def images(k):
        found = towers.image_features([make_picture(k), make_picture(k + 1)])
        return [v.tobytes() for v in vars(found).values()]

    def vectors(tower, k):
        found = tower.texts(texts[k])
        return found.vectors.tobytes(), found.truncated.tolist()

    jobs = [lambda k=k: images(k) for k in range(3)]
    jobs += [lambda k=k: vectors(towers, k) for k in range(3)]
    jobs += [lambda k=k: vectors(encoder, k) for k in range(3)]
    check(jobs, threads=6)


def test_an_inference_model():
    judge = NliModel(*tiny_helpers.build_inference("bert"))
    pairs = [[("a", "b")], [("what colour", "red"), ("x", "y " * 900)], [("red", "is red")] * 3]
    check([lambda k=k: judge.judge(pairs[k]).tobytes() for k in range(3)], threads=6)


# ------------------------------------------------------------------------------------------- fits


@pytest.mark.parametrize("kind", [Fuse, Scorer])
def test_fits_saved_and_loaded_together(kind, tmp_path):
    """Of two fits that threads save into one folder, the folder always holds one, whole."""
    made = [fuse_of(1), fuse_of(2)]
    if kind is Scorer:
        tables = [table(tmp_path / f"{k}.jsonl", k) for k in (1, 2)]
        made = [scorer_of(path, "strings") for path in tables]
    for number, one in enumerate(made):
        one.save(tmp_path / str(number))
    trees = [tree(tmp_path / str(number)) for number in range(2)]
    home = tmp_path / "fit"
    made[0].save(home)
    start = Barrier(6)

    def work(number):
        start.wait()
        for turn in range(8):
            if number < 4:
                made[(number + turn) % 2].save(home)
            else:
                again = tmp_path / f"again-{number}-{turn}"
                kind.load(home).save(again)
                assert tree(again) in trees

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert tree(home) in trees
    kind.load(home)
