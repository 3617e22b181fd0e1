"""The named mistakes: what grading may find, what it means, and what to do about it."""

import difflib

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from service.errors import NotFound
from service.routes.conditional import UNCHANGED, conditional
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import StepId


class Twin(BaseModel):
    """Another mistake that some problems cannot tell from this one."""

    id: str
    reason: str = Field(description="Where and why they are the same.")


class MisconceptionDescription(BaseModel):
    """A named mistake."""

    id: str = Field(description="Its name, which never changes.", examples=["scale.none"])
    step: StepId = Field(description="The step of the recipe where it usually happens.")
    steps: list[StepId] = Field(description="Every step where it may happen.")
    title: str = Field(description="What was done, in a few words.")
    formula: str = Field(description="What was computed, LaTeX.")
    explanation: str = Field(description="Why it is not right, to the learner.")
    remedy: str = Field(description="What to do instead, to the learner; without numbers.")
    twins: list[Twin]
    warns: bool = Field(description="It is told, and costs nothing.")
    slip: bool = Field(description="A slip of the pen and no wrong idea.")

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "scale.none",
                    "step": "scaled_scores",
                    "steps": ["scaled_scores"],
                    "title": "The scores were not scaled",
                    "formula": "T = S",
                    "explanation": "The dot products went on as they are. …",
                    "remedy": "Divide every score by the square root of the number of columns of a key, √d_k, …",
                    "twins": [],
                    "warns": False,
                    "slip": False,
                }
            ]
        }
    )


class MisconceptionList(BaseModel):
    """Every named mistake, in the order of the steps where they happen."""

    misconceptions: list[MisconceptionDescription]


def router() -> APIRouter:
    """`/v1/misconceptions` and `/v1/misconceptions/{id}`."""
    routes = APIRouter(prefix="/v1/misconceptions", tags=["tutor"])
    described = {id: _describe(one) for id, one in MISCONCEPTIONS.items()}
    every = MisconceptionList(misconceptions=list(described.values())).model_dump_json().encode()
    each = {id: one.model_dump_json().encode() for id, one in described.items()}

    @routes.get("", summary="Every named mistake", response_model=MisconceptionList, responses=UNCHANGED)
    async def list_misconceptions(request: Request) -> Response:
        """What grading looks for: what learners do at a step instead of what they should, and why it is not right."""
        return conditional(request, every)

    @routes.get("/{id}", summary="A named mistake", response_model=MisconceptionDescription, responses=UNCHANGED)
    async def get_misconception(id: str, request: Request) -> Response:
        """By its id."""
        if id not in each:
            near = difflib.get_close_matches(id[:64], each, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "/v1/misconceptions lists them"
            raise NotFound(f"there is no misconception {id!r}; {hint}")
        return conditional(request, each[id])

    return routes


def _describe(one: Misconception) -> MisconceptionDescription:
    return MisconceptionDescription(
        id=one.id,
        step=one.step,
        steps=list(one.steps),
        title=one.title,
        formula=one.formula,
        explanation=one.explanation,
        remedy=one.remedy,
        twins=[Twin(id=id, reason=reason) for id, reason in one.twins.items()],
        warns=one.warns,
        slip=one.slip,
    )
