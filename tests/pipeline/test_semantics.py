"""Stage semantics on stored answers; models that mean something are tested in tests/semantics."""

import dataclasses

import numpy as np
import pytest

from fusevlm.config import change_config
from fusevlm.pipeline import semantics
from fusevlm.pipeline.run import Work, run_stages
from fusevlm.pipeline.score import ABSENT, read_inputs
from fusevlm.pipeline.semantics import Meaning, Tools, meanings, read_meanings
from fusevlm.semantics.strings import by_string
from fusevlm.types import Query, Samples


def said(*texts, answer="red"):
    return Query("q", "what color?", ["x.png"]), Samples(list(texts), answer=answer)


def tools(config, tmp_path, **changes):
    wanted = dataclasses.replace(config.semantics, **changes)
    return Tools(dataclasses.replace(config, semantics=wanted), tmp_path / "cache.sqlite")


def test_the_default_needs_no_model_and_stores_clusters(finished):
    root, _, world = finished
    found = read_meanings(root)
    assert len(found) == len(world.samples)
    for (_, meaning), samples in zip(sorted(found.items()), world.samples, strict=False):
        assert len(meaning.clusters) == len(samples.texts)
        assert meaning.similarity is None
        assert meaning.agreement is None
        assert meaning.p_true is None
    first = found["calibration/0"]
    np.testing.assert_array_equal(first.clusters, by_string(world.samples[0].texts))


def test_string_similarity_is_equality_with_the_answer_last(finished, tmp_path):
    _, config, _ = finished
    kit = tools(config, tmp_path, similarity="string")
    (found,) = meanings(kit, [said("Red.", "blue", "red", answer="blue")])
    assert found.similarity.tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    assert found.answer_similarity.tolist() == [0, 1, 0]


def test_sentence_clusters_come_from_their_similarity(finished, tmp_path, monkeypatch):
    _, config, _ = finished
    kit = tools(config, tmp_path, similarity="string", clusters="sentences", threshold=0.5)
    (found,) = meanings(kit, [said("red", "blue", "Red")])
    assert found.clusters.tolist() == [0, 1, 0]


class Echo:
    """A back-end that answers every question with its last word, and counts."""

    def __init__(self):
        self.asked = []

    def sample(self, queries, n, temperatures, seed):
        from fusevlm.types import Generation

        for query in queries:
            self.asked.append(query.question)
            word = query.question.split()[-1]
            yield Generation(query.id, Samples([word] * n, answer=word))


def test_agreement_asks_the_model_the_rephrased_question(finished, tmp_path):
    _, config, _ = finished
    kit = tools(config, tmp_path, rephrase="templates", rephrasings=2)
    kit._made["vlm"] = Echo()
    query = dataclasses.replace(said("red")[0], question="is it red")
    (found,) = meanings(kit, [(query, Samples(["red"], answer="red"))])
    assert found.agreement.tolist() == [True, True]
    assert len(kit.vlm.asked) == 2
    assert all("is it red" in question for question in kit.vlm.asked)


def test_what_is_stored_comes_back(tmp_path):
    meaning = Meaning(np.array([0, 1]), np.eye(3), np.array([True, False, True]), 0.25)
    rows, arrays = semantics._packed(["a", "b"], [meaning, Meaning()])
    assert rows["agreement"] == [[True, False, True], None]
    assert rows["p_true"] == [0.25, None]
    assert list(arrays) == ["0"]


def test_a_stopped_stage_goes_on(run, finished, monkeypatch):
    """The second part fails once; the first is not made again."""
    folder, config = run
    before = (folder / "semantics" / "part-00000.json").read_bytes()
    config = change_config(config, ["semantics.similarity=string"])
    made = []
    real = semantics.meanings

    def stop_at_the_second(kit, batch):
        made.append(len(batch))
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(kit, batch)

    monkeypatch.setattr(semantics, "meanings", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run_stages(folder, config, only="semantics", redo="semantics")
    run_stages(folder, config, only="semantics")
    assert made == [100, 100, 100, 70]
    assert (folder / "semantics" / "part-00000.json").read_bytes() != before
    assert all(m.similarity is not None for m in read_meanings(folder).values())


def test_scores_that_need_more_say_so_and_appear_when_it_is_there(run):
    import json

    folder, config = run
    absent = json.loads((folder / "score" / ABSENT).read_text())
    assert absent["eigv"] == "the run has no similarity"
    assert absent["neighborhood"] == "the run has no agreement"
    config = change_config(config, ["semantics.similarity=string"])
    run_stages(folder, config, redo="semantics")
    absent = json.loads((folder / "score" / ABSENT).read_text())
    assert "eigv" not in absent
    assert "lofreecp" not in absent


def test_no_score_reads_a_test_label(run):
    """Wrong labels of test queries are turned round: every column stays as it is."""
    from fusevlm.scores import compute_scores

    folder, config = run
    config = change_config(config, ["semantics.similarity=string"])
    run_stages(folder, config, redo="semantics")
    inputs = read_inputs(folder, config).inputs
    test = np.setdiff1d(np.arange(len(inputs)), inputs.fit)
    turned = inputs.wrong.copy()
    turned[test] = ~turned[test]
    columns, _ = compute_scores(inputs)
    again, _ = compute_scores(dataclasses.replace(inputs, wrong=turned))
    assert "lofreecp" in columns
    for name, column in columns.items():
        np.testing.assert_array_equal(column, again[name], err_msg=name)
    assert not any(inputs.sample_wrong[i].any() for i in test)


def test_progress_counts_queries(run):
    folder, config = run
    seen = []
    (folder / "semantics" / "part-00000.json").unlink()
    semantics.make(Work(folder, config, lambda done, total: seen.append((done, total))))
    assert seen[-1] == (270, 270)
