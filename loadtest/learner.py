"""A learner who works exercises with pencil and paper, rightly or with a mistake, and knows what grade that deserves.

Pure; written from `docs/tutor.md`, without the service's own code.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from loadtest.checks import WrongAnswer, check_finite, check_weights, numbers

F64 = npt.NDArray[np.float64]
Kind = Literal["right", "mistake named", "first step wrong", "all wrong"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

LEVELS: Final = ("recipe", "causal", "two-heads", "scaling", "softmax", "mixing")
HEAD_DIM: Final = 3
"""Columns of a head's queries and keys, in every exercise that is asked for."""

MISTAKES: Final[Mapping[str, str]] = {
    "scale.dk": "scaled_scores",
    "softmax.columns": "weights",
    "mask.ignored": "masked_scores",
    "proj.swap_qk": "query",
}
"""Mistakes that this learner makes, and where they show first."""

EXPLAINED_TOLERANCE: Final = 1e-9
"""How far outputs may be from the weights times the values: both are told with all their digits."""


@dataclass(frozen=True, slots=True)
class HandedIn:
    """Answers, and what grade they deserve.

    Attributes:
        kind: what is wrong with them.
        answers: by step, as they are sent.
        first_wrong: the first step that is wrong; None if none is.
        mistake: the misconception behind it; None if there is none with a name.
    """

    kind: Kind
    answers: Mapping[str, Any]
    first_wrong: str | None = None
    mistake: str | None = None

    def check(self, grade: Mapping[str, Any]) -> None:
        """Check a grade.

        Raises:
            WrongAnswer: if right answers are not graded as right, or wrong ones not as wrong where they are.
        """
        correct = {str(step["id"]): bool(step["correct"]) for step in grade["steps"]}
        if list(correct) != list(self.answers):
            raise WrongAnswer(f"the grade has the steps {list(correct)}, answered were {list(self.answers)}")
        first = next((step for step, right in correct.items() if not right), None)
        if first != self.first_wrong:
            raise WrongAnswer(f"the first wrong step is {first}, expected {self.first_wrong} of answers {self.kind}")
        if self.kind == "right" and grade["score"] != 1:
            raise WrongAnswer(f"right answers have the score {grade['score']}")
        if self.kind == "first step wrong" and list(correct.values()).count(False) != 1:
            raise WrongAnswer("a wrong first step costs others too, although they follow from it")
        if self.kind == "all wrong" and any(correct.values()):
            raise WrongAnswer("made-up numbers were taken for right")
        named = [each["id"] for each in grade["misconceptions"]] + [one for each in grade["ambiguous"] for one in each]
        if self.mistake is not None and self.mistake not in named:
            raise WrongAnswer(f"the mistake {self.mistake} was not told, but {named}")


def hand_in(exercise: Mapping[str, Any], kind: Kind, random: np.random.Generator) -> HandedIn:
    """Work an exercise, and make the mistakes of a kind; if none of those has a name here, another kind."""
    asked: Sequence[str] = exercise["ask"]
    if kind == "mistake named":
        possible = [one for one, step in MISTAKES.items() if step in asked and one in exercise["assessable"]]
        if possible:
            mistake = str(random.choice(possible))
            answers = written(exercise, work(exercise, mistake=mistake))
            return HandedIn(kind, answers, MISTAKES[mistake], mistake)
        kind = "first step wrong"
    if kind == "first step wrong":
        right = work(exercise)
        return HandedIn(kind, written(exercise, work(exercise, {asked[0]: right[asked[0]] + 1})), asked[0])
    if kind == "all wrong":
        made_up = {step: random.uniform(2, 9, array.shape) + 0.0123 for step, array in work(exercise).items()}
        return HandedIn(kind, written(exercise, made_up), asked[0])
    return HandedIn(kind, written(exercise, work(exercise)))


def work(
    exercise: Mapping[str, Any], own: Mapping[str, F64] | None = None, *, mistake: str | None = None
) -> dict[str, F64]:
    """Work every step that can be worked, with all digits; shapes are those that the exercise names.

    Args:
        exercise: as `POST /v1/exercises` answers it.
        own: steps that are taken as they are, right or wrong.
        mistake: one of MISTAKES, to be made on the way.
    """
    heads, done = exercise["num_heads"], {name: numbers(name, table) for name, table in exercise["given"].items()}
    done |= own or {}
    if exercise.get("inputs") is not None:
        inputs = numbers("inputs", exercise["inputs"])  # (n, d)
        swapped = {"query": "key", "key": "query"} if mistake == "proj.swap_qk" else {}
        for name in ("query", "key", "value"):
            matrix = exercise["projections"][swapped.get(name, name)]
            done.setdefault(name, inputs @ numbers(name, matrix))  # (n, heads * d_k)
    if "query" in done and "key" in done:
        query, key = _apart(done["query"], heads), _apart(done["key"], heads)  # (heads, n, d_k)
        done.setdefault("raw_scores", _together(query @ key.swapaxes(-1, -2)))
    if "raw_scores" in done:
        width = HEAD_DIM if mistake == "scale.dk" else math.sqrt(HEAD_DIM)
        done.setdefault("scaled_scores", done["raw_scores"] / width)
    if "scaled_scores" in done:
        scores = done["scaled_scores"]
        if exercise["is_causal"]:
            seen = np.tri(scores.shape[-1], dtype=bool) | (mistake == "mask.ignored")  # (n, n)
            scores = done.setdefault("masked_scores", np.where(seen, scores, -np.inf))
        axis = -2 if mistake == "softmax.columns" else -1
        exp = np.exp(scores - scores.max(axis=axis, keepdims=True))  # (heads, n, n), or (n, n)
        done.setdefault("weights", exp / exp.sum(axis=axis, keepdims=True))
    if "weights" in done and "value" in done:
        mixed = done["weights"].reshape(heads, *done["weights"].shape[-2:]) @ _apart(done["value"], heads)
        done.setdefault("outputs", mixed.swapaxes(0, 1).reshape(mixed.shape[1], -1))  # (n, heads * d_v)
    return done


def written(exercise: Mapping[str, Any], worked: Mapping[str, F64]) -> dict[str, Any]:
    """What is asked, rounded as it is asked for; a masked score is `-inf`."""
    return {step: _written(np.round(worked[step], exercise["decimals"])) for step in exercise["ask"]}


def check_explanation(explanation: Mapping[str, Any]) -> None:
    """Check that an explanation's weights are weights, and that its outputs are what they make of its values.

    Raises:
        WrongAnswer: if not.
    """
    values = {str(step["id"]): step["values"] for step in explanation["steps"]}
    if missing := {"raw_scores", "weights", "value", "outputs"} - set(values):
        raise WrongAnswer(f"the explanation lacks {', '.join(sorted(missing))}")
    weights, value, outputs = (numbers(name, values[name]) for name in ("weights", "value", "outputs"))
    for name, tensor in (("weights", weights), ("outputs", outputs)):
        check_finite(name, tensor)
    check_weights(weights, causal=bool(explanation["is_causal"]))
    if explanation["num_heads"] == 1 and np.abs(weights @ value - outputs).max() > EXPLAINED_TOLERANCE:
        raise WrongAnswer("the outputs are not the weights times the values")


def _apart(table: F64, heads: int) -> F64:
    """(n, heads * d) to (heads, n, d)."""
    return table.reshape(len(table), heads, -1).swapaxes(0, 1)


def _together(scores: F64) -> F64:
    """Scores as exercises have them: an axis of heads only where there are several."""
    return scores[0] if len(scores) == 1 else scores


def _written(array: Any) -> Any:
    if array.ndim:
        return [_written(each) for each in array]
    return "-inf" if array == -np.inf else float(array)
