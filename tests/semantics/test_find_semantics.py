"""Everything a run wants to know of its samples, from settings and models that load when needed."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from tests.models.conftest import make_query
from tests.semantics import small_nli
from tests.semantics.test_inference import brute_force
from tests.semantics.test_rephrase import Scripted
from tests.semantics.test_strings import by_definition

from fusevlm.config import make_config
from fusevlm.errors import InputError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.models.towers import SentenceEncoder
from fusevlm.semantics.find import PARTS, Tools, find_semantics
from fusevlm.semantics.inference import NliModel
from fusevlm.semantics.selfcheck import p_true
from fusevlm.semantics.sentences import answer_similarity, sentence_similarity
from fusevlm.settings import SemanticsConfig
from fusevlm.testing import tiny
from fusevlm.types import Query, Samples

COLOUR = "what colour is the shape"
BATCHES = [
    [
        (Query("a", COLOUR), Samples(["red", "blue", "red", "a red circle"], answer="green")),
        (Query("b", "how many"), Samples(["1", "2", "2"], answer="2")),
    ],
    [(Query("c", COLOUR), Samples(["blue", "the blue shape", "green"], answer="red"))],
]


def never(*_):
    raise AssertionError("nothing asked for this")


def tools(path, vlm=never, generator=never, **wanted):
    return Tools(
        SemanticsConfig(**{"rephrasings": 2, **wanted}),
        vlm,
        generator,
        path / "deep" / "pairs.sqlite",
    )


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nli")
    made = small_nli.build("bert")
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return str(folder)


def test_inference_in_batches_and_again_from_the_cache(nli, tmp_path, monkeypatch):
    """The pipeline's use: no ``with``, several batches, another process later."""
    kit = tools(tmp_path, meanings="nli", similarity="nli", nli=nli)
    first = [find_semantics(kit, batch) for batch in BATCHES]
    for batch, found in zip(BATCHES, first, strict=True):
        for (query, samples), semantics in zip(batch, found, strict=True):
            texts = [*samples.texts, samples.answer]
            table = brute_force(kit.nli, query.question, texts)
            entails = (table[..., 2] + table[..., 2].T) / 2
            entails[np.equal.outer(texts, texts)] = 1.0
            np.testing.assert_allclose(semantics.between, entails, atol=1e-5)
            assert semantics.similarity.shape == (len(samples), len(samples))

            def same(a, b, texts=texts, table=table):
                i, j = texts.index(a), texts.index(b)
                return table[i, j].argmax() == table[j, i].argmax() == 2

            assert semantics.meanings.tolist() == by_definition(list(samples.texts), same)
            assert semantics.rephrasings is semantics.p_true is None
    kit.close()
    monkeypatch.setattr(NliModel, "judge", never)
    later = tools(tmp_path, meanings="nli", similarity="nli", nli=nli)
    for batch, before in zip(BATCHES, first, strict=True):
        for one, two in zip(before, find_semantics(later, batch), strict=True):
            np.testing.assert_array_equal(one.meanings, two.meanings)
            np.testing.assert_array_equal(one.between, two.between)
    later.close()


def test_strings_need_no_model(tmp_path):
    kit = tools(tmp_path, similarity="string")
    batch = [(Query("q", "which?"), Samples(["Red.", "blue", "the red"], answer="blue"))]
    (found,) = find_semantics(kit, batch)
    assert found.meanings.tolist() == [0, 1, 0]
    assert found.similarity.tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    assert found.answer_similarity.tolist() == [0, 1, 0]
    kit.close()
    assert list(tmp_path.iterdir()) == []  # and no cache


def test_sentences_are_linked_by_their_similarity(tmp_path):
    kit = tools(tmp_path, meanings="sentences", similarity="sentences", threshold=0.835)
    found = [one for batch in BATCHES for one in find_semantics(kit, batch)]
    pairs = [pair for batch in BATCHES for pair in batch]
    texts = [samples.texts for _, samples in pairs]
    encoder = SentenceEncoder.load()
    alike = sentence_similarity(encoder, texts)
    to_answer = answer_similarity(encoder, texts, [samples.answer for _, samples in pairs])
    for one, S, row in zip(found, alike, to_answer, strict=True):
        np.testing.assert_allclose(one.similarity, S, atol=1e-6)
        np.testing.assert_allclose(one.answer_similarity, row, atol=1e-6)
        expected = connected_components(S >= 0.835, directed=False)[1]
        np.testing.assert_array_equal(one.meanings, expected)
    assert found[2].meanings.tolist() == [0, 1, 0]  # the encoder has blue nearer to green
    (alone,) = find_semantics(kit, BATCHES[1], {"meanings"})
    assert alone.meanings.tolist() == [0, 1, 0]
    assert alone.between is None


def test_only_what_is_needed_is_found(tmp_path):
    asked = {
        "meanings": "string", "similarity": "string", "rephrase": "templates", "p_true": True,
    }  # fmt: skip
    kit = tools(tmp_path, vlm=lambda: Scripted(lambda question: "2"), **asked)
    (found,) = find_semantics(kit, BATCHES[0][1:], {"rephrasings", "similarity"})
    assert found.meanings is found.p_true is None
    assert found.rephrasings.tolist() == [True, True]
    assert found.answer_similarity.tolist() == [0, 1, 1]
    (found,) = find_semantics(tools(tmp_path, **asked), BATCHES[1], {"meanings"})
    assert found.meanings.tolist() == [0, 1, 2]
    (found,) = find_semantics(tools(tmp_path, **asked), BATCHES[1], set())
    assert [getattr(found, name) for name in PARTS] == [None] * len(PARTS)
    # needed, but the settings leave it out
    (found,) = find_semantics(tools(tmp_path, meanings="none"), BATCHES[1], set(PARTS))
    assert [getattr(found, name) for name in PARTS] == [None] * len(PARTS)
    with pytest.raises(InputError, match=r"'meaning' is not known\. Did you mean 'meanings'"):
        find_semantics(kit, BATCHES[1], {"meaning"})
    assert find_semantics(tools(tmp_path, similarity="string"), []) == []


def test_the_model_is_loaded_once_and_asked_the_rephrased_question(tmp_path):
    loaded = []

    def vlm():
        loaded.append(Scripted(lambda question: question.split()[-1]))
        return loaded[-1]

    kit = tools(tmp_path, vlm=vlm, rephrase="templates", rephrasings=2)
    batch = [(Query("q", "is it red"), Samples(["x"], answer="The Red."))]
    for _ in range(2):
        (found,) = find_semantics(kit, batch)
        assert found.rephrasings.tolist() == [True, True]
    (backend,) = loaded
    assert ["is it red" in asked[1] for part in backend.batches for asked in part] == [True] * 4
    kit.close()
    find_semantics(kit, batch)
    assert len(loaded) == 2


def test_the_negated_question_is_asked_of_yes_no_questions(tmp_path):
    backend = Scripted(lambda question: ["no", "yes", "no"])
    kit = tools(tmp_path, vlm=lambda: backend, complement="templates", complement_samples=3)
    batch = [
        (Query("a", "is it red?"), Samples(["x"], answer="Yes.")),
        (Query("b", COLOUR), Samples(["x"], answer="yes")),
        (Query("c", "is it red?"), Samples(["x"], answer="red")),
        (Query("d", "is it not red?"), Samples(["x"], answer="no")),
    ]
    found = [one.complement for one in find_semantics(kit, batch, {"complement"})]
    assert found == [0.25, None, None, 0.75]
    assert [asked[1] for ((asked),) in backend.batches] == ["is it not red?", "is it red?"]


def test_rephrasings_and_p_true_of_real_models(tmp_path):
    vlm = HuggingFace(*tiny.build("llava"), decoding=Decoding(max_new_tokens=5))
    folder = tiny.save("llava", tmp_path / "generator")
    batch = [(make_query(i), Samples(["red"], answer="red")) for i in range(2)]
    queries = [query for query, _ in batch]
    for kind in ("generator", "prompt"):
        kit = tools(
            tmp_path, vlm=lambda: vlm, generator={"embedded": folder}.get, rephrase=kind,
            p_true=True,
        )  # fmt: skip
        found = find_semantics(kit, batch)
        assert [one.p_true for one in found] == p_true(vlm, queries, ["red"] * 2).yes.tolist()
        assert all(len(one.rephrasings) <= 2 for one in found)
        assert (kit.rephraser.backend.model is vlm.model) == (kind == "prompt")


def test_models_are_loaded_on_the_device_of_the_settings(tmp_path, monkeypatch):
    from fusevlm.semantics import rephrase

    def on(source, *, device, dtype, **others):
        return source, device, dtype, *others.values()

    monkeypatch.setattr(NliModel, "load", on)
    monkeypatch.setattr(SentenceEncoder, "load", on)
    monkeypatch.setattr(rephrase, "by_generator", on)
    kit = tools(
        tmp_path, generator=lambda name: f"/{name}", nli="n", device="cuda:1", dtype="float16",
        rephrase="generator",
    )  # fmt: skip
    assert kit.nli == ("n", "cuda:1", "float16")
    assert kit.encoder == ("minilm", "cuda:1", "float16")
    # the embedded generator is told what it was taught, whatever its folder is called
    assert kit.rephraser == ("/embedded", "cuda:1", "float16", rephrase.FROM_ANSWER)


def test_what_cannot_be_found_is_refused(tmp_path):
    for wanted, message in (
        ({"meanings": "cluster"}, r"semantics\.meanings is 'cluster'; expected one of 'str"),
        ({"meanings": "sentences"}, r"needs semantics\.similarity too"),
    ):
        with pytest.raises(InputError, match=message):
            make_config({"semantics": wanted}, "test")
    for wanted in ({"p_true": True}, {"rephrase": "prompt"}, {"complement": "model"}):
        asked = tools(tmp_path, vlm=lambda: Scripted({}), **wanted)
        with pytest.raises(InputError, match="needs a Hugging Face model"):
            find_semantics(asked, BATCHES[0])
    (query, samples), _ = BATCHES[0]
    with pytest.raises(InputError, match="query 'a' has no judged answer"):
        find_semantics(
            tools(tmp_path, similarity="string"), [(query, replace(samples, answer=None))]
        )
