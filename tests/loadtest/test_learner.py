"""The learner of the load test, held against the service's own tutor: it must know what grade it deserves."""

import copy

import numpy as np
import orjson
import pytest

from loadtest.checks import WrongAnswer
from loadtest.learner import HEAD_DIM, KINDS, LEVELS, MISTAKES, check_explanation, hand_in
from service.tutor.classroom import Classroom
from service.tutor.exercises.terms import Wanted

CLASSROOM = Classroom()


def exercise(level, seed):
    """An exercise, as the wire has it."""
    return orjson.loads(orjson.dumps(CLASSROOM.issue(Wanted(level=level, head_dim=HEAD_DIM), seed)))


def graded(given, handed_in):
    answers = orjson.loads(orjson.dumps(handed_in.answers))
    return orjson.loads(orjson.dumps(CLASSROOM.grade(given["exercise"], answers)))


@pytest.mark.parametrize("level", LEVELS)
def test_the_learner_knows_what_grade_it_deserves(level):
    """A load test that is wrong about the answers would report failures of its own."""
    random = np.random.default_rng(0)
    made = set()

    for seed in range(3):
        given = exercise(level, seed)
        for kind in KINDS:
            handed_in = hand_in(given, kind, random)
            handed_in.check(graded(given, handed_in))
            made.add(handed_in.kind)

    assert made >= {"right", "first step wrong", "all wrong"}


def test_every_mistake_is_made_and_told():
    """Each of them is one the tutor has a name for."""
    random, made = np.random.default_rng(0), set()

    for _ in range(30):
        given = exercise("causal", 7)
        handed_in = hand_in(given, "mistake named", random)
        handed_in.check(graded(given, handed_in))
        made.add(handed_in.mistake)

    assert made == set(MISTAKES)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("right", lambda g: g.update(score=0.9), "right answers have the score 0.9"),
        ("right", lambda g: g["steps"][2].update(correct=False), "the first wrong step is value, expected None"),
        ("right", lambda g: g["steps"].pop(), "the grade has the steps"),
        ("mistake named", lambda g: g.update(misconceptions=[], ambiguous=[]), "was not told"),
        ("first step wrong", lambda g: g["steps"][0].update(correct=True), "the first wrong step is None"),
        ("first step wrong", lambda g: g["steps"][3].update(correct=False), "costs others too"),
        ("all wrong", lambda g: g["steps"][5].update(correct=True), "made-up numbers were taken for right"),
    ],
)
def test_a_wrong_grade_is_caught(kind, change, message):
    """Grades are what learners come for; a fast wrong one is a failure."""
    given = exercise("causal", 7)
    handed_in = hand_in(given, kind, np.random.default_rng(0))
    right = graded(given, handed_in)
    handed_in.check(right)
    wrong = copy.deepcopy(right)
    change(wrong)

    with pytest.raises(WrongAnswer, match=message):
        handed_in.check(wrong)


def explained(**changes):
    values = {
        "raw_scores": [[1, 2], [3, 4]],
        "weights": [[1, 0], [0.25, 0.75]],
        "value": [[4, 0], [0, 8]],
        "outputs": [[4, 0], [1, 6]],
    }
    steps = [{"id": step, "values": table} for step, table in (values | changes).items()]
    return {"steps": steps, "is_causal": True, "num_heads": 1}


def test_a_right_explanation_passes():
    """By the weights and values that it tells itself."""
    check_explanation(explained())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": [[0.5, 0.5], [0.25, 0.75]]}, "a causal row sees no later column"),
        ({"weights": [[1, 0], [0.25, 0.7]]}, "sum to 0.95"),
        ({"outputs": [[4, 0], [1, 6.001]]}, "the outputs are not the weights times the values"),
    ],
)
def test_a_wrong_explanation_is_caught(changes, message):
    """Learners believe what they are told."""
    with pytest.raises(WrongAnswer, match=message):
        check_explanation(explained(**changes))


def test_an_explanation_without_its_steps_is_caught():
    """An empty list of steps is not an explanation."""
    with pytest.raises(WrongAnswer, match="lacks outputs, raw_scores, value, weights"):
        check_explanation({"steps": [], "is_causal": False, "num_heads": 1})
