"""Laws of the quiz, whatever the seed, and its numbers computed a second time."""

import hashlib
import json
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InvalidInput
from service.tutor.chance import Chance
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.quiz import MOST_QUESTIONS, MOST_SEED, QUESTIONS, TOPICS, Quiz
from service.tutor.quiz.base import matrix, number, vector

SEEDS = st.integers(0, MOST_SEED)
QUIZZES = st.builds(Quiz, SEEDS, st.integers(1, MOST_QUESTIONS), st.sampled_from([None, *TOPICS]))

IDS = [
    "query.role", "query.made", "query.number", "key.role", "key.own_matrix", "key.score", "value.role", "value.width",
    "value.from", "scaling.why", "scaling.by", "scaling.number", "softmax.axis", "softmax.shift", "softmax.negative",
    "softmax.number", "weighted-sum.output", "weighted-sum.row", "weighted-sum.equal", "weighted-sum.number",
    "masks.how", "masks.causal", "masks.padding", "masks.number", "heads.why", "heads.split", "heads.join",
    "heads.scale", "order.steps", "order.mask", "order.values", "shapes.query_matrix", "shapes.scores",
    "shapes.outputs", "shapes.heads", "shapes.products",
]  # fmt: skip


def right_letters(quiz: Quiz) -> dict[str, str]:
    return {
        one.question.id: letter
        for one in quiz.questions()
        for letter, choice in one.choices.items()
        if choice is one.posed.right
    }


def test_no_question_is_lost_or_renamed():
    """The order too is part of what a token means."""
    assert list(QUESTIONS) == IDS


def test_every_topic_has_several_questions():
    for topic in TOPICS:
        assert sum(question.topic == topic for question in QUESTIONS.values()) >= 3
    assert {question.topic for question in QUESTIONS.values()} == set(TOPICS)


@given(quiz=QUIZZES)
def test_exactly_one_choice_is_right_and_all_are_different(quiz):
    drawn = quiz.questions()

    assert len({one.question.id for one in drawn}) == len(drawn) >= 1
    for one in drawn:
        texts = [choice.text for choice in one.choices.values()]
        assert len(set(texts)) == len(texts) == 1 + len(one.posed.wrong)
        assert sum(choice is one.posed.right for choice in one.choices.values()) == 1
        assert 3 <= len(texts) <= 6
        assert list(one.choices) == list("abcdef"[: len(texts)])
        assert not one.posed.right.misconception
        for choice in one.choices.values():
            assert choice.why.strip() == choice.why != ""
            assert choice.misconception in {"", *MISCONCEPTIONS}


@given(quiz=QUIZZES)
def test_the_right_answers_are_all_right_and_wrong_ones_all_wrong(quiz):
    right = right_letters(quiz)
    wrong = {
        one.question.id: next(letter for letter in one.choices if letter != right[one.question.id])
        for one in quiz.questions()
    }

    assert {mark.verdict for mark in quiz.grade(right)} == {"ok"}
    assert {mark.verdict for mark in quiz.grade(wrong)} == {"wrong"}
    assert {(mark.verdict, mark.chosen) for mark in quiz.grade({})} == {("missing", None)}
    assert [mark.id for mark in quiz.grade({})] == [one.question.id for one in quiz.questions()]


@given(
    quiz=QUIZZES,
    answers=st.dictionaries(
        st.one_of(st.text(), st.sampled_from(IDS)), st.one_of(st.none(), st.text(), st.sampled_from("abcdef"))
    ),
)
def test_whatever_is_answered_nothing_but_invalid_input_is_raised(quiz, answers):
    try:
        marks = quiz.grade(answers)
    except InvalidInput as error:
        (field,) = error.fields
        assert field.pointer.startswith("/answers/")
    else:
        assert len(marks) == len(quiz.questions())


@given(quiz=QUIZZES)
def test_a_token_is_the_quiz(quiz):
    assert Quiz.of_token(quiz.token) == quiz
    assert Quiz.of_token(quiz.token).questions() == quiz.questions()


@given(token=st.one_of(st.text(), st.from_regex(r"\Aquiz/[0-9]{1,4}/[0-9]{1,17}/[0-9]{1,3}/[a-z-]{1,21}\Z")))
def test_any_other_token_is_refused(token):
    quiz = None
    with suppress(InvalidInput):
        quiz = Quiz.of_token(token)
    if quiz is not None:
        assert quiz == Quiz.of_token(quiz.token)


@pytest.mark.parametrize(
    "token",
    ["", "quiz/2/1/10/all", "quiz/0/1/10/all", f"quiz/1/{2**53}/10/all", "quiz/1/1/0/all", "quiz/1/1/51/all",
     "quiz/1/1/10/none", "quiz/1/1/10/", "quiz/1/-1/10/all", "quiz/1/1/10/all\n", "quiz/1/١/10/all"],
)  # fmt: skip
def test_tokens_that_are_none(token):
    with pytest.raises(InvalidInput, match="no quiz of ours") as caught:
        Quiz.of_token(token)

    assert caught.value.fields[0].pointer == "/quiz"


def test_a_question_is_the_same_beside_whatever_others():
    """A topic's quiz and one of all topics agree on what they have in common."""
    whole = {
        one.question.id: (one.posed.text, list(one.choices.values())) for one in Quiz(7, MOST_QUESTIONS).questions()
    }

    for one in Quiz(7, MOST_QUESTIONS, "masks").questions():
        assert whole[one.question.id] == (one.posed.text, list(one.choices.values()))


def test_seeds_vary_order_numbers_and_letters():
    quizzes = [Quiz(seed, MOST_QUESTIONS) for seed in range(40)]

    assert len({tuple(one.question.id for one in quiz.questions()) for quiz in quizzes}) == 40
    assert len({right_letters(quiz)["query.role"] for quiz in quizzes}) == 4
    texts = {id: {QUESTIONS[id].pose(Chance(str(seed))).text for seed in range(40)} for id in IDS}
    varied = {id for id in IDS if len(texts[id]) > 3}
    assert varied == {
        "query.number", "key.score", "scaling.number", "softmax.number", "weighted-sum.number", "masks.number",
        "heads.scale", "shapes.query_matrix", "shapes.scores", "shapes.outputs", "shapes.heads", "shapes.products",
    }  # fmt: skip
    assert all(len(texts[id]) == 1 for id in set(IDS) - varied)


def test_what_a_seed_draws_never_changes():
    """Which questions, in which order, with which numbers, under which letters; words may be polished."""
    right = right_letters(Quiz(2026, MOST_QUESTIONS))
    drawn = [
        [one.question.id, numbers(one.posed.text), right[one.question.id]]
        for one in Quiz(2026, MOST_QUESTIONS).questions()
    ]

    assert hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:16] == "581e924a274f3cf6"


# ---- the right answers of questions with numbers, read out of their text and computed a second time


def numbers(text: str) -> list[float]:
    return [float(one.replace("−", "-")) for one in re.findall(r"−?\d+(?:\.\d+)?", text)]


def query_number(text: str, formula: str) -> list[float]:
    x = numbers(text)
    a, b, c, d = (float(one) for one in re.findall(r"-?\d+", formula))
    return [x[0] * a + x[1] * c, x[0] * b + x[1] * d]


def softmax_number(text: str, _: str) -> list[float]:
    exponentials = numbers(text)
    at = next(i for i, word in enumerate(("first", "second", "third")) if f"the {word} weight" in text)
    return [exponentials[at] / sum(exponentials)]


def weighted_sum_number(text: str, _: str) -> list[float]:
    given_numbers = numbers(text)
    weights, values = given_numbers[:3], given_numbers[3:]
    return [sum(weight * values[2 * i + c] for i, weight in enumerate(weights)) for c in range(2)]


def masks_number(text: str, _: str) -> list[float]:
    words = ("first", "second", "third", "fourth", "fifth", "sixth")
    looking = words.index(re.search(r"does the (\w+) token", text)[1])
    return [1 / (looking + 1)]


def scaling_number(text: str, _: str) -> list[float]:
    _, key, score = numbers(text)
    return [score / key**0.5]


COMPUTED = {
    "query.number": query_number,
    "key.score": lambda text, _: [sum(a * b for a, b in zip(numbers(text)[:3], numbers(text)[3:], strict=True))],
    "scaling.number": scaling_number,
    "softmax.number": softmax_number,
    "weighted-sum.number": weighted_sum_number,
    "masks.number": masks_number,
    "heads.scale": lambda text, _: [numbers(text)[1] / numbers(text)[0]],
    "shapes.query_matrix": lambda text, _: numbers(text)[1:3],
    "shapes.scores": lambda text, _: [numbers(text)[0], numbers(text)[0]],
    "shapes.outputs": lambda text, _: [numbers(text)[0], numbers(text)[3]],
    "shapes.heads": lambda text, _: [numbers(text)[0], numbers(text)[1] * numbers(text)[2]],
    "shapes.products": lambda text, _: [numbers(text)[0] ** 2],
}


@pytest.mark.parametrize("id", COMPUTED)
@given(seed=st.text(max_size=8))
def test_the_right_choice_is_right(id, seed):
    posed = QUESTIONS[id].pose(Chance(seed))

    assert numbers(posed.right.text) == pytest.approx(COMPUTED[id](posed.text, posed.formula), abs=5.1e-3)


def test_numbers_are_written_as_people_do():
    assert [number(x) for x in (0.5, -0.001, 3.0, -2.25, 1 / 3, 100.0)] == ["0.5", "0", "3", "−2.25", "0.33", "100"]
    assert number(7.0, 0) == "7"
    assert vector([1.0, -2.0]) == "(1, −2)"
    assert matrix([[1.0, -2.0], [0.5, 0.0]]) == r"\begin{pmatrix} 1 & -2 \\ 0.5 & 0 \end{pmatrix}"
