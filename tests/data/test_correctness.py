"""Criteria against definitions: enumeration, brute force, and facts of the official scorer."""

import hashlib
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusevlm.data.answers import CONTRACTIONS, vqa_form
from fusevlm.data.correctness import CRITERIA, grade, is_wrong
from fusevlm.errors import InputError
from fusevlm.meanings import same_form


def ten(*answers):
    """Ten references: those given, filled up with different words nobody answers."""
    return [*answers, *(f"filler{i}" for i in range(10 - len(answers)))]


# -- exact match


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("A cat.", "a cat", 1.0),
        ("  two\n dogs!", "two dogs", 1.0),
        ("a cat", "cat", 0.0),  # articles count
        ("t-shirt", "tshirt", 1.0),
        ("1,000", "1000", 1.0),
        ("1.5", "15", 0.0),
        ("1.5.", "1.5", 1.0),
        ("“Stop”", "stop", 1.0),
        ("§ 5", "5", 1.0),
        ("$5", "5", 1.0),
        ("two", "2", 0.0),
    ],
)
def test_exact_match_ignores_case_and_punctuation(answer, reference, score):
    assert grade(answer, ["something else", reference]) == score


# -- VQA accuracy


def by_enumeration(answer, references):
    """The definition: every set of nine people, a third of a point per match, one at most."""
    sets = list(combinations(range(10), 9))
    assert len(sets) == 10
    points = [min(1, sum(references[i] == answer for i in kept) / 3) for kept in sets]
    return sum(points) / len(points)


@given(st.lists(st.sampled_from(["cat", "dog", "bird"]), min_size=10, max_size=10))
def test_vqa_accuracy_is_the_mean_over_leave_one_out_sets(references):
    assert grade("cat", references, "vqa_accuracy") == pytest.approx(
        by_enumeration("cat", references)
    )


@pytest.mark.parametrize(("matches", "score"), list(enumerate([0, 0.3, 0.6, 0.9, 1, 1])))
def test_vqa_accuracy_by_number_of_matches(matches, score):
    assert grade("cat", ten(*["cat"] * matches), "vqa_accuracy") == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The Cat", "cat"),
        ("None", "0"),
        ("ten", "10"),
        ("eleven", "eleven"),
        ("one, two", "1 2"),  # a space beside the comma: deleted
        ("one,two", "1 2"),  # no space: replaced by one
        ("3,000", "3000"),
        ("3,000 (red-brown)", "3000 redbrown"),  # a comma in a number deletes every mark
        ("red-brown", "red brown"),
        ("red- brown red-brown", "red brown redbrown"),  # decided per mark, not per place
        ("red -brown red-brown", "red brown redbrown"),
        ("3.", "3"),
        ("3.5", "3.5"),
        (".5", ".5"),
        ("a.m.", "am"),  # the article is dropped before points would make one
        ("e.g. 5", "eg 5"),
        ("7.up", "7up"),  # meant to keep a point after a digit, but the pattern does not
        ("." * 40 + "x", "." * 8 + "x"),  # 32 points at most
        ("it's 5:30", "it's 5:30"),  # neither the apostrophe nor the colon is a mark
        ("dont", "don't"),
        ("Wouldnt've", "wouldn't've"),
        ("wouldn'tve", "wouldn't've"),
        ("wouldntve", "wouldntve"),
        ("somebody'd", "somebodyd"),  # the wrong way round, officially
        ("somebodyd", "somebodyd"),
        ("let's", "let's"),
        ("lets", "lets"),
        ("shes", "shes"),  # the table says she's → she's
        ("Im", "im"),  # the table says Im, but words are lower case by then
        ("a an the", ""),
    ],
)
def test_normalisation_of_the_official_scorer(text, plain):
    assert vqa_form(text) == plain


def test_the_contraction_table_is_the_official_one():
    """Digest of vqaEval.py's table, without its entries that change nothing or are upper case."""
    lines = "\n".join(f"{short} {long}" for short, long in sorted(CONTRACTIONS.items()))
    digest = "f2c800b1132e79302dd72686ce8bba16120f1873f98a85561222e89317336e7a"
    assert hashlib.sha256(lines.encode()).hexdigest() == digest


def test_nothing_is_normalised_when_all_references_agree():
    assert grade("Yes", ["yes"] * 10, "vqa_accuracy") == 0.0
    assert grade("Yes", ["yes"] * 9 + ["no"], "vqa_accuracy") == 1.0
    assert grade("yes\n", ["\tyes"] * 10, "vqa_accuracy") == 1.0
    # nine and one more spelling of the same word are different strings: normalised
    assert grade("Two", ["two"] * 9 + ["2"], "vqa_accuracy") == 1.0


def test_vqa_accuracy_wants_ten_references():
    with pytest.raises(InputError, match="10 references; got 3"):
        grade("a", ["a", "a", "a"], "vqa_accuracy")


# -- ROUGE-L


def longest_common(a, b):
    """Brute force over all subsequences of ``a``."""
    for size in range(min(len(a), len(b)), 0, -1):
        for chosen in combinations(a, size):
            rest = iter(b)
            if all(word in rest for word in chosen):
                return size
    return 0


words = st.lists(st.sampled_from("abcd"), max_size=7)


@given(words, st.lists(words, min_size=1, max_size=3))
def test_rouge_l_is_the_f1_of_the_longest_common_subsequence(said, references):
    best = 0.0
    for reference in references:
        common = longest_common(said, reference)
        if common:
            precision, recall = common / len(said), common / len(reference)
            best = max(best, 2 * precision * recall / (precision + recall))
    found = grade(" ".join(said), [" ".join(reference) for reference in references], "rouge_l")
    assert found == pytest.approx(best)


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("police killed the gunman", "police kill the gunman", 0.75),  # Lin (2004), section 3.1
        ("police kill the gunman", "the gunman kill police", 0.5),
        ("The CAT-flap!", "the cat flap", 1.0),
        # the next five are the values of rouge-score 0.1.2
        ("Two dogs, playing in the snow", "two dogs play in snow", 8 / 11),
        ("It's a 3.5-inch disk", "a 3 5 inch disc it s", 4 / 7),
        ("naïve Café", "cafe naive", 0.0),
        ("snake_case", "snake case", 1.0),
        ("café", "caf", 1.0),  # only a–z and 0–9 are word characters
        ("…", "cat", 0.0),
        ("", "", 0.0),
    ],
)
def test_rouge_l_of_known_pairs(answer, reference, score):
    assert grade(answer, [reference], "rouge_l") == pytest.approx(score)


# -- verdicts


def test_verdicts_follow_the_level():
    assert not is_wrong("A dog.", ["dog", "a dog"])
    assert is_wrong("a dogs", ["dog", "a dog"])
    two, one = ten("cat", "cat"), ten("cat")
    assert not is_wrong("cat", two, "vqa_accuracy")  # 0.6
    assert is_wrong("cat", one, "vqa_accuracy")  # 0.3
    assert is_wrong("cat", two, "vqa_accuracy", level=0.61)
    half = ("a b", ["b c"], "rouge_l")
    assert not is_wrong(*half)  # exactly 0.5 is not below 0.5
    assert is_wrong(*half, level=0.51)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_no_references_is_an_error(criterion):
    with pytest.raises(InputError, match="references is empty"):
        grade("cat", [], criterion)


def test_bad_calls_say_what_is_wrong():
    with pytest.raises(
        InputError, match=r"'bleu' is not known\. Known are: exact_match, exact_match_maj"
    ):
        grade("cat", ["cat"], "bleu")
    with pytest.raises(InputError, match="list of strings"):
        grade("cat", "cat")
    with pytest.raises(InputError, match="expected a string"):
        grade(None, ["cat"])
    with pytest.raises(InputError, match="leave level out"):
        is_wrong("cat", ["cat"], level=0.3)
    with pytest.raises(InputError, match="every answer is wrong"):
        is_wrong("cat", ["cat"], "rouge_l", level=1.5)


# -- which samples say the same


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("The  Red car.", "red car"),
        ("an apple", "apple"),
        ("theatre another bath", "theatre another bath"),
        ('"A cat!"', "cat"),
        ("the 'a cat'", "cat"),  # what stripping uncovers is stripped too
        ("A", "a"),  # an option, not an article of anything
        ("A.", "a"),
        ("-5.", "-5"),
        (".5", ".5"),
        ("1.5", "1.5"),
        ("$5", "$5"),
        ("it's 3.5", "it's 3.5"),
        ("red, blue", "red, blue"),
        ("a-frame", "a-frame"),
        (" \n", ""),
    ],
)
def test_the_form_of_samples_that_say_the_same(text, form):
    assert same_form(text) == form


@given(st.text(alphabet=" \n\"'`.,;:!?-5aAnTthe", max_size=12))
def test_the_form_is_its_own_form_and_keeps_signs(text):
    form = same_form(text)
    assert same_form(form) == form == same_form(f' "{text}." ')
    assert form == " ".join(form.lower().split())
    assert sum(map(form.count, "5-")) == sum(map(text.count, "5-"))


@pytest.mark.parametrize(
    ("answer", "references", "any_of_them", "majority"),
    [
        ("red", ["red"] * 6 + ["blue"] * 4, 1, 1),
        ("blue", ["red"] * 6 + ["blue"] * 4, 1, 0),
        ("Blue.", ["red"] * 5 + ["blue"] * 5, 1, 1),  # a tie: each of the most frequent
        ("green", ["red", "blue", "green"], 1, 1),  # all are
        ("red", ["Red", "red!", "blue", "blue", "blue", "RED", "red"], 1, 1),  # counted as one
        ("pink", ["red"] * 10, 0, 0),
    ],
)
def test_exact_match_with_any_reference_or_with_the_majority(
    answer, references, any_of_them, majority
):
    assert grade(answer, references) == any_of_them
    assert grade(answer, references, "exact_match_majority") == majority
    assert is_wrong(answer, references, "exact_match_majority") is not bool(majority)
    with pytest.raises(InputError, match="exact_match_majority is 0 or 1; leave level out"):
        is_wrong(answer, references, "exact_match_majority", 0.5)
