"""Closed questions: drawn by a seed, marked with a reason for each choice. To add one, write it into its topic's file.

A quiz is its token: the version of the generator, the seed, how many questions, and the topic. It is drawn again from
that in any replica and any later version, in which new questions have a later `since`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from service.errors import InvalidOption
from service.tutor.chance import Chance
from service.tutor.quiz import heads, key, masks, order, query, scaling, shapes, softmax, value, weighted_sum
from service.tutor.quiz.base import Choice, Posed, Question, Topic

VERSION: Final = 1
MOST_QUESTIONS: Final = 50
MOST_SEED: Final = 2**53 - 1

TOPICS: tuple[Topic, ...] = get_args(Topic)

QUESTIONS: dict[str, Question] = {
    question.id: question
    for topic in (query, key, value, scaling, softmax, weighted_sum, masks, heads, order, shapes)
    for question in topic.QUESTIONS
}
"""Every question by its id, by topics."""

LETTERS = "abcdefgh"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A question of a quiz.

    Attributes:
        question: which.
        posed: with which numbers.
        choices: by letter, in the order in which they are shown.
    """

    question: Question
    posed: Posed
    choices: Mapping[str, Choice]


@dataclass(frozen=True, slots=True)
class Mark:
    """What came of a question.

    Attributes:
        id: of the question.
        verdict: `ok`, `wrong` or `missing`.
        chosen: the letter, or None where there is no answer.
        text: what is said of it.
        misconception: id of the idea behind it; empty where there is none.
    """

    id: str
    verdict: Literal["ok", "wrong", "missing"]
    chosen: str | None
    text: str
    misconception: str = ""


@dataclass(frozen=True, slots=True)
class Quiz:
    """A quiz: 0 <= seed <= `MOST_SEED`, 1 <= count <= `MOST_QUESTIONS`; topic None for all.

    Where there are fewer questions than `count`, it has all there are.
    """

    seed: int
    count: int = 10
    topic: Topic | None = None
    version: int = VERSION

    @property
    def token(self) -> str:
        """All that it takes to draw it again; it tells nothing of the answers that the code does not."""
        return f"quiz/{self.version}/{self.seed}/{self.count}/{self.topic or 'all'}"

    @classmethod
    def of_token(cls, token: str) -> "Quiz":
        """The quiz of a token.

        Raises:
            InvalidOption: if it is none.
        """
        parts = re.fullmatch(r"quiz/(\d{1,3})/(\d{1,16})/(\d{1,2})/([a-z-]{1,20})", token, re.ASCII)
        if parts is not None:
            version, seed, count = (int(part) for part in parts.groups()[:3])
            topic = next((one for one in TOPICS if one == parts[4]), None)
            if (
                1 <= version <= VERSION
                and seed <= MOST_SEED
                and 1 <= count <= MOST_QUESTIONS
                and (topic or parts[4] == "all")
            ):
                return cls(seed, count, topic, version)
        raise InvalidOption.at("/quiz", "this is no quiz of ours; send `quiz` as GET /v1/quiz has answered it")

    def questions(self) -> list[Drawn]:
        """Its questions, in order, with their numbers and their choices."""
        pool = [
            question
            for question in QUESTIONS.values()
            if question.since <= self.version and self.topic in (None, question.topic)
        ]
        chosen = Chance(f"quiz/{self.version} {self.seed}").shuffled(pool)[: self.count]
        return [self._drawn(question) for question in chosen]

    def _drawn(self, question: Question) -> Drawn:
        # By a chance of its own, so that it is the same beside whatever other questions.
        chance = Chance(f"quiz/{self.version} {self.seed} {question.id}")
        posed = question.pose(chance)
        shown = chance.shuffled((posed.right, *posed.wrong))
        return Drawn(question, posed, dict(zip(LETTERS, shown, strict=False)))

    def grade(self, answers: Mapping[str, str | None]) -> list[Mark]:
        """Mark answers, letters by ids of questions; None, or no entry, for no answer.

        Raises:
            InvalidOption: if there is no such question in this quiz, or no such choice.
        """
        drawn = {one.question.id: one for one in self.questions()}
        for id, letter in answers.items():
            pointer = f"/answers/{id.replace('~', '~0').replace('/', '~1')}"
            if id not in drawn:
                raise InvalidOption.at(pointer, f"this quiz has no such question; it has {', '.join(drawn)}")
            if letter is not None and letter not in drawn[id].choices:
                raise InvalidOption.at(
                    pointer, f"there is no choice {letter!r}; choose {' or '.join(drawn[id].choices)}"
                )
        return [_mark(one, answers.get(id)) for id, one in drawn.items()]


def _mark(drawn: Drawn, letter: str | None) -> Mark:
    id = drawn.question.id
    if letter is None:
        return Mark(id, "missing", None, "This one was left open.")
    choice = drawn.choices[letter]
    return Mark(id, "ok" if choice is drawn.posed.right else "wrong", letter, choice.why, choice.misconception)
