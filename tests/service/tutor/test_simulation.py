"""Learners who make one mistake: what an exercise claims to tell of them is what grading tells."""

import numpy as np
import pytest
from learners import exercise, mistaken, on_paper, right_answers

from service.tutor.exercises.levels import LEVELS
from service.tutor.exercises.simulation import RIGHT, answers_by, assessable, neighbours
from service.tutor.grading import grade
from service.tutor.misconceptions import MISCONCEPTIONS

SEEDS, BLOCK, SHARE = 200, 50, 4


def told(graded):
    """Every mistake that was found, as the group of those it may be."""
    return [[one["id"]] for one in graded["misconceptions"]] + graded["ambiguous"]


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
@pytest.mark.parametrize("level", LEVELS)
def test_grading_tells_what_an_exercise_claims(level, first):
    """Of any numbers, well chosen or not: each seed has its own drawing, and a quarter of all learners.

    Nothing that is claimed is missed; what is not claimed is named, or with those it cannot be told from, or those are.
    """
    for seed in range(first, first + BLOCK):
        given, views = exercise(level, seed, draw=seed % 60), {}
        claimed, others = assessable(given, views)
        near = neighbours(given, views)
        assert claimed == [one for one in MISCONCEPTIONS if one not in {other.id for other in others}]
        right = grade(given, right_answers(given), views)
        assert right["score"] == 1, (level, seed)
        assert told(right) == []
        for one, answers in list(mistaken(given))[seed % SHARE :: SHARE]:
            graded = grade(given, on_paper(answers), views)
            found = told(graded)
            if found == [[one]] or RIGHT in near.get(one, ()):
                continue  # what is hardly wrong may be taken for this or that
            where = (level, seed, one, found)
            assert one not in claimed or (not found and graded["score"] == 1), where
            assert found or graded["score"] == 1, where
            assert {each for group in found for each in group} <= near.get(one, set()) | {one}, where


def test_the_reasons_say_why_a_mistake_cannot_be_told():
    """One that has no mask to make, one that has a twin, one that changes nothing."""
    reasons = {each.id: each.reason for each in assessable(exercise("recipe", 1), {})[1]}

    assert reasons["mask.ignored"] == "cannot be made here"
    assert reasons["copy.row_col"] == "looks the same here as score.kqt"
    assert reasons["proj.no_bias"] == "makes no difference here"


def test_two_by_two_cannot_tell_a_wrong_scale():
    """The case of the textbooks: the roots of all sizes are the same, and so are all sizes."""
    claimed, others = assessable(exercise("recipe", 1, tokens=2, embed_dim=2, head_dim=2, value_dim=2), {})
    reasons = {each.id: each.reason for each in others}

    assert reasons["scale.sqrt_dmodel"] == reasons["scale.sqrt_n"] == "makes no difference here"
    assert "scale.n" in reasons["scale.dk"]
    assert "scale.none" in claimed


@pytest.mark.parametrize("step", ["scaling", "softmax", "mixing"])
def test_what_is_not_shown_cannot_have_been_used(step):
    """Nobody mixes the keys where no keys are given."""
    reasons = {each.id: each.reason for each in assessable(exercise(step, 1), {})[1]}

    for one in ("out.keys", "out.x", "out.queries", "score.qqt", "proj.swap_qk", "out.residual_added"):
        assert reasons[one] == "cannot be made here"


def test_a_learner_who_gets_stuck_hands_in_what_there_is():
    """Scores of a wrong shape end the work."""
    given = exercise("recipe", 1)
    (way,) = MISCONCEPTIONS["score.qtk"].ways

    answers = answers_by(given, way)

    assert list(answers) == ["query", "key", "value", "raw_scores"]
    assert answers["raw_scores"].shape == (3, 3)
    np.testing.assert_array_equal(answers["query"], given.usual["query"])
    assert answers_by(given, MISCONCEPTIONS["mask.ignored"].ways[0]) is None
