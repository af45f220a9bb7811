"""Negations of questions by hand, on the package's own questions, and twice."""

import numpy as np
import pytest

from fusevlm.data.scenes import split
from fusevlm.models.huggingface import HuggingFace
from fusevlm.semantics import negate as module
from fusevlm.semantics.negate import accepted, flips, negate, negate_by_model, says_yes
from fusevlm.testing import tiny
from fusevlm.types import Generation, Samples

FRAME = 'Is "no" the right answer to the question "{}"?'
# each line both ways
PAIRS = {
    "is there a red shape?": "is there not a red shape?",
    "is an owl present?": "is no owl present?",
    "does the image contain a circle?": "does the image not contain a circle?",
    "Are there any dogs in the picture?": "Are there no dogs in the picture?",
    "Are there two dogs?": "Are there not two dogs?",
    "Is the cat on the mat?": "Is the cat not on the mat?",
    "Is the cat in front of the dog?": "Is the cat not in front of the dog?",
    "Is the cat on the left of the mat?": "Is the cat not on the left of the mat?",
    "Was the man wearing a hat?": "Was the man not wearing a hat?",
    "Is the building tall?": "Is the building not tall?",
    "is this a dog": "is this not a dog",
    "Is that animal a dog?": "Is that animal not a dog?",
    "Can you see a dog? Answer yes or no.": "Can you not see a dog? Answer yes or no.",
    "Has the man eaten?": "Has the man not eaten?",
    "Did he fall?": "Did he not fall?",
    "Look at the image. Is it red?": "Look at the image. Is it not red?",
    "The cat is on the mat.": "The cat is not on the mat.",
    "There are two dogs": "There are not two dogs",
    "It will rain, true or false?": "It will not rain, true or false?",
    "True or false: The cat can fly.": "True or false: The cat can not fly.",
    "The cat touches the mat. Is that true or false?":
        "It is not true that the cat touches the mat. Is that true or false?",
    "No cat is on the mat.": "It is not true that no cat is on the mat.",
    "All dogs are black.": "It is not true that all dogs are black.",
    "The cat that is black is here.": "It is not true that the cat that is black is here.",
}  # fmt: skip
# the end of the subject, or what is denied, cannot be told from the words
FRAMED = [
    "Is the man in the hat tall?",
    "Is the red building tall?",
    "Is the man wearing a hat smiling?",
    "Did the man answer the phone?",
    "Are all the dogs black?",
    "are no dogs present?",
    "Isn't it red?",
    "Is the car red and big?",
    "Is the man who is not tall happy?",
    "Does it not say no parking?",
    "Can birds fly?",
    "is a red car not new?",
    "Is the man saying not to go?",
    "Has this real wood?",
    "Could the dog bark loudly?",
]
NO_QUESTIONS = [
    "", "yes", "is?", "what is there?", "where is it not?", "how many dogs are there?",
    "is the shape small, medium or large?", "describe the image.", "Is it red or not?",
    "The cat is where?", "The cat is black. It is on the mat.",
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), PAIRS.items())
def test_by_hand_both_ways(one, other):
    assert negate(one) == other
    assert negate(other) == one


@pytest.mark.parametrize("question", FRAMED)
def test_what_is_not_plain_is_put_into_a_frame(question):
    assert negate(question) == FRAME.format(question)
    assert negate(FRAME.format(question)) == question


@pytest.mark.parametrize("question", NO_QUESTIONS)
def test_what_is_no_yes_no_question(question):
    assert negate(question) is None


def test_quotes_and_lead_stay_outside_the_frame():
    asked = 'Look. Does the sign say "stop"? Reply with yes or no.'
    made = negate(asked)
    framed = FRAME.format("Does the sign say 'stop'?")
    assert made == f"Look. {framed} Reply with yes or no."
    assert negate(made) == asked.replace('"', "'")


def test_every_question_of_the_package_has_its_denial_there():
    """By the scenes' right answers: the negation is asked somewhere, and has the other answer."""
    scenes = split("dev")
    asked = [pair for scene in scenes for pair in scene.asked]
    known = {question for question, _ in asked}
    truth = {(i, q): a for i, scene in enumerate(scenes) for q, a in scene.asked}
    yes_no = {question for question, answer in asked if answer in ("yes", "no")}
    assert len(yes_no) == 88
    for question in known:
        negation = negate(question)
        if question not in yes_no:
            assert negation is None
            continue
        assert negation in yes_no
        assert negate(negation) == question
    both = [(truth[i, q], truth[i, negate(q)]) for i, q in truth
            if q in yes_no and (i, negate(q)) in truth]  # fmt: skip
    assert len(both) > 50
    assert all({one, two} == {"yes", "no"} for one, two in both)


def test_twice_is_the_same_on_random_questions():
    """All templates with random words in them; exactly one side holds a denial or the frame."""
    rng = np.random.default_rng(0)
    subjects = ["the dog", "it", "there", "this man", "a red car", "his friend", "birds", "that"]
    rests = ["on the mat", "a cat", "wearing a hat", "green", "no one", "in the big old house",
             "any dogs", "some milk", "not red", "never here", "have a tail"]  # fmt: skip
    verbs = ["is", "Are", "was", "does", "did", "can", "has", "Isn't"]
    ends = ["?", "", "? Answer yes or no.", " (yes/no)"]
    for _ in range(500):
        q = f"{rng.choice(verbs)} {rng.choice(subjects)} {rng.choice(rests)}{rng.choice(ends)}"
        once = negate(q)
        assert once is not None, q
        assert once != q
        twice = negate(once)
        assert twice in (q, q.replace("there some", "there any")), (q, once)


@pytest.mark.parametrize(
    ("one", "other", "flipped"),
    [
        ("yes", "no", True), ("Yes.", "YES", False), ("no", "No, there is none.", False),
        ("True", "false", True), ("yes", "False.", True), ("no", "True", True),
        ("yes", "red", None), ("maybe", "no", None), ("", "yes", None), ("yes it is", "no", None),
    ],
)  # fmt: skip
def test_flips(one, other, flipped):
    assert flips(one, other) is flipped
    assert flips(other, one) is flipped


def test_yes_and_no():
    assert [says_yes(t) for t in (" Yes!", "'no'", "yesterday", "not")] == [True, False, None, None]


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        (' "Is it not red?" \n', "Is it not red?"),
        ("Is it\nnot red?", "Is it not red?"),
        ("", None), ('""', None), ("is it red?", None), ("Not red.", None),
        ("It is? " * 20 + "?", None),
    ],
)  # fmt: skip
def test_which_replies_are_taken(reply, kept):
    assert accepted("Is it red?", reply) == kept
    assert accepted("It is red.", "It is not red.") == "It is not red."


def test_a_model_negates(monkeypatch, caplog):
    """Greedy, told in words, without a picture; what is no yes/no question is not asked."""
    vlm = HuggingFace(*tiny.build("llava"))
    before, asked = vlm.decoding, []
    replies = iter(["Is it not red?", None, "is it big?"])

    def sample(self, queries, n, temperatures, seed):
        assert self.model is vlm.model
        assert (self.decoding.prompt, self.decoding.answer_temperature) == ("{question}", 0.0)
        asked.extend(queries)
        reply = next(replies)
        for query in queries:
            samples = None if reply is None else Samples([reply], answer=reply)
            yield Generation(query.id, samples, error=None if reply else "too long")

    questions = ["is it red?", "what is it?", "is it blue?", "is it big?"]
    with monkeypatch.context() as patched:
        patched.setattr(HuggingFace, "sample", sample)
        assert negate_by_model(vlm, questions) == ["Is it not red?", None, None, None]
    assert [q.question for q in asked] == [
        module.WORDING.format(question=questions[k]) for k in (0, 2, 3)
    ]
    assert not any(q.images for q in asked)
    assert "no negation of 'is it blue?': too long" in caplog.text
    assert vlm.decoding == before
    # and a real, if random, one
    (found,) = negate_by_model(vlm, ["is the circle red?"])
    assert found is None or found.endswith("?")
