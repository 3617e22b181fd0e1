"""Closed questions, drawn by a seed, and their marks."""

import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from service.routes.conditional import UNCHANGED, conditional
from service.routes.json_body import described, read
from service.runtime import Runtime
from service.tutor.quiz import MOST_QUESTIONS, MOST_SEED, Drawn, Mark, Quiz
from service.tutor.quiz.base import Topic


class QuizQuery(BaseModel):
    """Which questions."""

    model_config = ConfigDict(extra="forbid")

    seed: int | None = Field(
        default=None, ge=0, le=MOST_SEED, description="The same seed, the same quiz; made up where there is none."
    )
    count: int = Field(default=10, ge=1, le=MOST_QUESTIONS, description="How many, if there are so many.")
    topic: Topic | None = Field(default=None, description="Only on this; default: on all.")


class QuizChoice(BaseModel):
    """A choice."""

    id: str = Field(description="A letter; the seed decides which choice gets which.")
    text: str


class QuizQuestion(BaseModel):
    """A question; one choice is right."""

    id: str
    topic: Topic
    text: str
    formula: str = Field(default="", description="Shown with the text, LaTeX; missing where there is none.")
    choices: list[QuizChoice]


class QuizSheet(BaseModel):
    """A quiz, without its answers."""

    quiz: str = Field(description="What it takes to draw it again; to be sent back with the answers.")
    seed: int
    questions: list[QuizQuestion]

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "quiz": "quiz/1/7/1/weighted-sum",
                    "seed": 7,
                    "questions": [
                        {
                            "id": "weighted-sum.row",
                            "topic": "weighted-sum",
                            "text": "Which weights make the output of the second token?",
                            "choices": [
                                {"id": "a", "text": "Those in the second row"},
                                {"id": "b", "text": "Those in the second column"},
                                {"id": "c", "text": "Those in the first row, since the first token comes before it"},
                                {"id": "d", "text": "The one in the second row and second column"},
                            ],
                        }
                    ],
                }
            ]
        }
    )


class QuizAnswers(BaseModel):
    """A quiz, worked."""

    model_config = ConfigDict(extra="forbid")

    quiz: str = Field(max_length=100, description="As `GET /v1/quiz` has answered it.")
    answers: dict[str, str | None] = Field(
        description="Letters by ids of questions. What is left out, or null, counts as open."
    )


class QuizMark(BaseModel):
    """What came of a question."""

    id: str
    correct: bool
    verdict: Literal["ok", "wrong", "missing"]
    chosen: str | None = Field(description="The letter; null where the question was left open.")
    text: str = Field(description="Why the choice is right, or why not.")
    misconception: str = Field(
        default="",
        description="The idea behind a wrong choice, of `GET /v1/misconceptions`; missing where none is known.",
    )


class QuizGrade(BaseModel):
    """The marks of a quiz."""

    score: float = Field(ge=0, le=1, description="The share of questions that were answered right.")
    questions: list[QuizMark] = Field(description="In the order of the quiz.")


EXAMPLE: dict[str, Any] = {"quiz": "quiz/1/7/3/softmax", "answers": {"softmax.shift": "a", "softmax.negative": None}}


def router(runtime: Runtime) -> APIRouter:
    """`/v1/quiz` and `/v1/quiz/grade`."""
    routes = APIRouter(prefix="/v1/quiz", tags=["tutor"])

    @routes.get("", summary="A quiz", response_model=QuizSheet, responses=UNCHANGED)
    async def get_quiz(query: Annotated[QuizQuery, Query()], request: Request) -> Response:
        """Closed questions on self-attention; the seed decides which, their numbers, and the order of choices.

        The answer tells nothing of which choices are right. Without a seed there is another quiz each time.
        """
        seed = secrets.randbelow(MOST_SEED + 1) if query.seed is None else query.seed
        quiz = Quiz(seed, query.count, query.topic)
        sheet = QuizSheet(quiz=quiz.token, seed=seed, questions=[_question(one) for one in quiz.questions()])
        body = sheet.model_dump_json(exclude_unset=True).encode()
        if query.seed is None:
            return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})
        return conditional(request, body)

    @routes.post(
        "/grade", summary="Grade a quiz", response_model=QuizGrade, openapi_extra=described(QuizAnswers, EXAMPLE)
    )
    async def grade_quiz(request: Request) -> Response:
        """Mark the answers of a quiz: for each choice that was taken, why it is right, or which idea leads to it."""
        answers = await read(runtime, request, QuizAnswers, "quiz")
        marks = Quiz.of_token(answers.quiz).grade(answers.answers)
        score = sum(mark.verdict == "ok" for mark in marks) / len(marks)
        grade = QuizGrade(score=score, questions=[_mark(mark) for mark in marks])
        return Response(grade.model_dump_json(exclude_unset=True), media_type="application/json")

    return routes


def _question(drawn: Drawn) -> QuizQuestion:
    formula = {"formula": drawn.posed.formula} if drawn.posed.formula else {}
    return QuizQuestion(
        id=drawn.question.id,
        topic=drawn.question.topic,
        text=drawn.posed.text,
        choices=[QuizChoice(id=letter, text=choice.text) for letter, choice in drawn.choices.items()],
        **formula,
    )


def _mark(mark: Mark) -> QuizMark:
    behind = {"misconception": mark.misconception} if mark.misconception else {}
    return QuizMark(
        id=mark.id, correct=mark.verdict == "ok", verdict=mark.verdict, chosen=mark.chosen, text=mark.text, **behind
    )
