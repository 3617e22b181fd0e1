"""Learners: they have something explained, work an exercise, hand it in, are helped, and hand it in again."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import orjson

from loadtest.checks import WrongAnswer, load_json
from loadtest.learner import HEAD_DIM, KINDS, LEVELS, HandedIn, Kind, check_explanation, hand_in
from loadtest.payloads import CAUSAL_SHARE
from loadtest.session import Session
from loadtest.users.base import Caller, Script
from loadtest.wire import Answer, Request, Service

EXPLANATIONS: Final = 40
"""Requests for explanations that are made before the start; learners go round them."""

LINK_SHARE: Final = 0.25
"""Share of those that are links: `GET`, without numbers of the learner's own."""

CLASS_SHARE: Final = 0.5
"""Share of the exercises that the whole class is given; the others nobody has had before."""
CLASS_EXERCISES: Final = 8
"""How many of those there are of each level."""

HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
}


class TutorUser(Caller):
    """A learner. What is graded is counted by how wrong it is, since that is what a grade's time depends on."""

    all_checked = True
    explanations: ClassVar[list[Request]]
    seed: ClassVar[int]

    @classmethod
    def prepare(cls, session: Session, service: Service, options: Namespace) -> None:
        """Make the requests for explanations; see `Caller`."""
        super().prepare(session, service, options)
        cls.seed = options.seed
        random = np.random.default_rng(options.seed)
        cls.explanations = [explanation(service, random) for _ in range(EXPLANATIONS)]

    def script(self) -> Script:
        """One lesson after the other; a lesson that breaks off is followed by another."""
        random = np.random.default_rng((self.seed, self.number, self.asked))
        lesson = self.number + self.asked
        while True:
            yield self.explanations[lesson % len(self.explanations)]
            level, kind = LEVELS[lesson % len(LEVELS)], KINDS[(lesson + lesson // len(LEVELS)) % len(KINDS)]
            seed = random.integers(CLASS_EXERCISES) if random.random() < CLASS_SHARE else random.integers(1 << 32)
            wanted = {"level": level, "seed": int(seed), "head_dim": HEAD_DIM}
            answer = yield self._post("/v1/exercises", f"exercise {level}", wanted, partial(_check_exercise, wanted))
            exercise = load_json(answer.body, "the exercise")
            handed_in = _worked(exercise, kind, random)
            yield self._grade(exercise, handed_in)
            if handed_in.first_wrong is not None:
                hint = {"answers": handed_in.answers, "level": 1 + lesson % 3}
                yield self._about(exercise, "/v1/exercises/hint", "hint", hint, partial(_check_hint, handed_in))
                yield self._grade(exercise, _worked(exercise, "right", random))
            lesson += 1

    def _grade(self, exercise: Mapping[str, Any], handed_in: HandedIn) -> Request:
        name, answers = f"grade {handed_in.kind}", {"answers": handed_in.answers}
        return self._about(exercise, "/v1/exercises/grade", name, answers, handed_in.check)

    def _about(
        self, exercise: Mapping[str, Any], path: str, name: str, fields: Mapping[str, Any], check: Callable[..., None]
    ) -> Request:
        return self._post(path, name, {"exercise": exercise["exercise"], **fields}, check)

    def _post(self, path: str, name: str, fields: Mapping[str, Any], check: Callable[..., None]) -> Request:
        return self.service.request("POST", path, name, partial(_check, check), HEADERS, orjson.dumps(fields))


def explanation(service: Service, random: np.random.Generator) -> Request:
    """A link to the explanation of a model's example, or a learner's own small numbers."""
    causal = bool(random.random() < CAUSAL_SHARE)
    check = partial(_check, check_explanation)
    if random.random() < LINK_SHARE:
        path = f"/v1/explain?is_causal={'true' if causal else 'false'}"
        return service.request("GET", path, "explain link", check, HEADERS)
    tokens, width, head_dim, value_dim = (int(size) for size in random.integers((2, 2, 1, 1), (7, 6, 5, 5)))
    sizes = {"query": head_dim, "key": head_dim, "value": value_dim}
    fields = {
        "inputs": random.integers(-2, 3, (tokens, width)).tolist(),
        "projections": {name: random.integers(-2, 3, (width, size)).tolist() for name, size in sizes.items()},
        "is_causal": causal,
    }
    return service.request("POST", "/v1/explain", "explain", check, HEADERS, orjson.dumps(fields))


def _worked(exercise: Mapping[str, Any], kind: Kind, random: np.random.Generator) -> HandedIn:
    try:
        if not isinstance(exercise["exercise"], str):
            raise WrongAnswer("the exercise has no token to be graded by")
        return hand_in(exercise, kind, random)
    except (KeyError, TypeError, ValueError) as error:
        raise WrongAnswer(f"the exercise cannot be worked: {error!r}") from error


def _check(check: Callable[[Mapping[str, Any]], None], answer: Answer) -> None:
    document = load_json(answer.body, "the answer")
    try:
        check(document)
    except (KeyError, TypeError, ValueError) as error:
        raise WrongAnswer(f"the answer cannot be read: {error!r}") from error


def _check_exercise(wanted: Mapping[str, Any], exercise: Mapping[str, Any]) -> None:
    if exercise["level"] != wanted["level"] or exercise["seed"] != wanted["seed"]:
        raise WrongAnswer(f"the exercise is {exercise['level']} {exercise['seed']}, asked for {wanted}")
    if not exercise["ask"] or [step["id"] for step in exercise["steps"]] != exercise["ask"]:
        raise WrongAnswer("the exercise asks for nothing, or does not describe what it asks for")


def _check_hint(handed_in: HandedIn, hint: Mapping[str, Any]) -> None:
    if hint["step"] != handed_in.first_wrong or not hint["text"]:
        raise WrongAnswer(f"the hint is about {hint['step']}, the first wrong step is {handed_in.first_wrong}")
