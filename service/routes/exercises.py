"""Exercises in working attention by hand: handed out, graded, hinted at, solved."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from service.access import KEY_NEEDED
from service.codecs.negotiation import preferred
from service.exchange import Exchange
from service.routes.json_body import described, read
from service.routes.pages import HEADERS
from service.runtime import Runtime
from service.tutor.classroom import Classroom
from service.tutor.exercise import Mode
from service.tutor.exercises import NEWEST
from service.tutor.exercises.levels import DEFAULT_LEVEL, LEVELS
from service.tutor.exercises.terms import LIMITS, Wanted, terms_of
from service.tutor.signing import LONGEST
from service.tutor.steps import StepId
from service.tutor.worksheet import POLICY

MOST_BYTES = 256 << 10
"""Largest body here: a page of answers has some kilobytes."""

MOST_MADE_UP = 10**9
"""Seeds that are made up are below this, to be told to others by word of mouth."""

JSON, HTML = "application/json", "text/html"

PAGE_HEADERS = HEADERS | {"Content-Security-Policy": POLICY}


def _within(name: str) -> dict[str, int]:
    return dict(zip(("ge", "le"), LIMITS[name], strict=True))


class ExerciseBody(BaseModel):
    """Which exercise; all of it may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seed: Annotated[int, Field(**_within("seed"))] | None = Field(
        default=None, description="The same seed and wishes, the same exercise; made up where there is none."
    )
    level: str | None = Field(
        default=None, description=f"Default: {DEFAULT_LEVEL}.", json_schema_extra={"enum": [*LEVELS, None]}
    )
    mode: Mode | None = Field(
        default=None,
        description="`guided` (default) asks step by step; `whiteboard` first for the plan, then for every main step.",
    )
    tokens: Annotated[int, Field(**_within("tokens"))] | None = Field(default=None, description="Default: 4.")
    embed_dim: Annotated[int, Field(**_within("embed_dim"))] | None = Field(default=None, description="Default: 5.")
    head_dim: Annotated[int, Field(**_within("head_dim"))] | None = Field(default=None, description="Default: 3.")
    value_dim: Annotated[int, Field(**_within("value_dim"))] | None = Field(default=None, description="Default: 3.")
    num_heads: Annotated[int, Field(**_within("num_heads"))] | None = Field(default=None, description="Default: 1.")
    is_causal: bool | None = Field(default=None, description="Default: by the level.")
    decimals: Annotated[int, Field(**_within("decimals"))] | None = Field(
        default=None, description="Places that answers are rounded to; default: by the level, 2 or 3."
    )
    ask: list[str] | None = Field(default=None, description="Steps to be asked; default: by the level.")


Token = Annotated[str, Field(max_length=LONGEST, description="As `POST /v1/exercises` has answered it.")]


class AnswersBody(BaseModel):
    """An exercise, worked."""

    model_config = ConfigDict(extra="forbid", strict=True)

    exercise: Token
    answers: dict[str, Any] = Field(
        description="By step, its table as nested lists of numbers or texts: 0.5, 0,5, −2, 1/3, √3; null or an empty"
        " text for a blank; −inf or masked for a masked score. For a plan `{order: [card ids], shapes: {card id: [rows,"
        " columns]}}`."
    )


class HintBody(BaseModel):
    """What help is wanted with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    exercise: Token
    answers: dict[str, Any] = Field(default={}, description="What there is so far; see `/v1/exercises/grade`.")
    level: Literal[1, 2, 3] = Field(description="1 names the step, 2 tells its rule, 3 shows one number of it.")
    step: str | None = Field(default=None, description="Default: the first that is wrong or missing.")


class SolutionBody(BaseModel):
    """Whose solution."""

    model_config = ConfigDict(extra="forbid", strict=True)

    exercise: Token


class StepAsked(BaseModel):
    """A step, and how its table looks."""

    id: StepId
    title: str
    symbol: str = Field(description="LaTeX.")
    formula: str | None = Field(default=None, description="LaTeX. Missing on a whiteboard.")
    shape: list[int] = Field(description="Of the answer, with an axis of heads where there are several.")
    row_labels: list[str]
    column_labels: list[str]


class CardShown(BaseModel):
    """What might be done; some of it should not."""

    id: str
    text: str


class NotAssessable(BaseModel):
    """A mistake that these numbers cannot show."""

    id: str
    reason: str


class ExerciseAnswer(BaseModel):
    """An exercise."""

    exercise: str = Field(description="What it takes to make it again; to be sent back with answers. It holds none.")
    generator: str
    seed: int
    level: str
    mode: Mode
    title: str
    instructions: str
    labels: list[str] = Field(description="A word per token.")
    inputs: list[list[float]] | None = Field(default=None, description="Embeddings, where it begins with them.")
    projections: dict[str, list[list[float]]] | None = Field(default=None, description="query, key, value: likewise.")
    num_heads: int
    is_causal: bool
    decimals: int
    given: dict[str, Any] = Field(description="Tables that are given, by step.")
    ask: list[str] = Field(description="What is to be answered: steps, or the plan.")
    steps: list[StepAsked] | None = Field(default=None, description="The steps asked.")
    cards: list[CardShown] | None = Field(default=None, description="Of a whiteboard's first part.")
    assessable: list[str] = Field(description="Misconceptions that grading can tell by these numbers.")
    not_assessable: list[NotAssessable]


class StepGraded(BaseModel):
    """What came of a step."""

    id: str
    correct: bool
    credit: float = Field(ge=0, le=1)
    cells: Any = Field(description="ok, wrong, missing or invalid, nested as the answer is.")
    carried_forward: bool = Field(description="Right in the light of an earlier mistake only.")
    note: str | None = Field(default=None, description="What cells cannot say.")


class MisconceptionFound(BaseModel):
    """A mistake that explains an answer, of `GET /v1/misconceptions`."""

    id: str
    step: str = Field(description="The first step where it shows.")
    title: str
    text: str
    remedy: str


class GradeAnswer(BaseModel):
    """What came of it."""

    score: float = Field(ge=0, le=1, description="The mean of the steps' credits.")
    steps: list[StepGraded]
    misconceptions: list[MisconceptionFound]
    ambiguous: list[list[str]] = Field(description="Groups of misconceptions, one of which explains an answer.")
    read_as: dict[str, Any] = Field(
        description="The numbers as they were read; null for blanks and for minus infinity."
    )
    next: ExerciseAnswer | None = Field(default=None, description="The second part of a whiteboard, after the first.")


class CellShown(BaseModel):
    """One number."""

    index: list[int]
    value: float | None = Field(description="null for minus infinity.")


class HintAnswer(BaseModel):
    """A hint."""

    step: str | None = Field(description="null where everything is right.")
    level: int
    text: str
    formula: str | None = Field(default=None, description="LaTeX, from level 2.")
    cell: CellShown | None = Field(default=None, description="At level 3.")


class StepSolved(StepAsked):
    """A step with its numbers."""

    text: str
    values: Any = Field(description="With all digits; null for minus infinity.")


class SolutionAnswer(BaseModel):
    """Every step that is asked, and all between them."""

    decimals: int
    steps: list[StepSolved]


PAGE: dict[int | str, dict[str, Any]] = {
    200: {"content": {HTML: {"schema": {"type": "string"}}}, "description": "In JSON, or as a page to be printed."}
}


def examples(classroom: Classroom) -> dict[str, dict[str, Any]]:
    """A body for each operation that works as it stands."""
    token = classroom.signer.token(terms_of(Wanted(level="scaling"), NEWEST, seed=7))
    return {
        "issue": {"seed": 7, "level": "causal"},
        "grade": {"exercise": token, "answers": {"scaled_scores": [["0,58", "−1/√3", 1.15, None], *[[None] * 4] * 3]}},
        "hint": {"exercise": token, "level": 2},
        "solution": {"exercise": token},
    }


def router(runtime: Runtime) -> APIRouter:
    """`/v1/exercises`, and `/grade`, `/hint` and `/solution` below it."""
    routes = APIRouter(prefix="/v1/exercises", tags=["tutor"])
    classroom = Classroom(runtime.settings.signing_key)
    example = examples(classroom)

    async def unhurried(token: str, call: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """What a call comes to, here; in a thread where it may take long."""
        return await asyncio.to_thread(call, *arguments) if classroom.takes_long(token) else call(*arguments)

    @routes.post(
        "", summary="An exercise", response_model=ExerciseAnswer, responses=PAGE,
        openapi_extra=described(ExerciseBody, example["issue"], optional=True),
    )  # fmt: skip
    async def issue(request: Request) -> Response:
        """Numbers to be worked by hand, drawn by a seed so that mistakes show, and which mistakes these are.

        Nothing is stored: the answer's `exercise` makes it again, in any replica and any later version. With `Accept:
        text/html` it is a worksheet to be printed.
        """
        media_type = _media_type(request)
        body = await read(runtime, request, ExerciseBody, "seed", MOST_BYTES, optional=True)
        seed = secrets.randbelow(MOST_MADE_UP) if body.seed is None else body.seed
        wanted = Wanted(**body.model_dump(exclude={"seed"}))
        if media_type == HTML:
            return _page(await asyncio.to_thread(classroom.page, wanted, seed))
        return _json(await asyncio.to_thread(classroom.issue, wanted, seed))

    @routes.post(
        "/grade", summary="Grade answers", response_model=GradeAnswer,
        openapi_extra=described(AnswersBody, example["grade"]),
    )  # fmt: skip
    async def grade(request: Request) -> Response:
        """What is right, cell by cell, and which mistakes explain the rest; never what would be right.

        Each step is held against what follows from the learner's own steps before it, so a mistake costs its step only.
        The same answers always get the same grade.
        """
        body = await read(runtime, request, AnswersBody, "exercise", MOST_BYTES)
        return _json(await unhurried(body.exercise, classroom.grade, body.exercise, body.answers))

    @routes.post(
        "/hint", summary="A hint", response_model=HintAnswer, openapi_extra=described(HintBody, example["hint"])
    )
    async def hint(request: Request) -> Response:
        """For the first step that is wrong or missing, or the one that is named: where, how, or one number of it."""
        body = await read(runtime, request, HintBody, "exercise", MOST_BYTES)
        return _json(await unhurried(body.exercise, classroom.hint, body.exercise, body.answers, body.level, body.step))

    @routes.post(
        "/solution", summary="The solution, for tutors", response_model=SolutionAnswer, responses=PAGE,
        openapi_extra=described(SolutionBody, example["solution"]) | {"security": KEY_NEEDED},
    )  # fmt: skip
    async def solution(request: Request) -> Response:
        """Every step with its numbers; with `Accept: text/html` a sheet to be printed. It needs a tutor's key."""
        exchange: Exchange = request.scope["exchange"]
        runtime.access.check_tutor(exchange)
        media_type = _media_type(request)
        body = await read(runtime, request, SolutionBody, "exercise", MOST_BYTES)
        if media_type == HTML:
            return _page(classroom.answer_sheet(body.exercise))
        return _json(classroom.solution(body.exercise))

    return routes


def _media_type(request: Request) -> str:
    return preferred(request.headers.get("accept", ""), (JSON, HTML))


def _json(content: dict[str, Any]) -> Response:
    return Response(orjson.dumps(content), media_type=JSON, headers={"Cache-Control": "no-store"})


def _page(content: str) -> Response:
    return Response(content, media_type=HTML, headers=PAGE_HEADERS | {"Cache-Control": "no-store"})
