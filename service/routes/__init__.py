"""Endpoints: one file per family. To add one, write the file and name it here."""

from fastapi import APIRouter

from service.routes import exercises, explain, health, misconceptions, models, pages, quiz, v2, widget
from service.routes.attention import AttentionRoute
from service.routes.base import RawRoute
from service.routes.infer import InferRoute, VersionedInferRoute
from service.routes.text import TextRoute
from service.runtime import Runtime


def routers(runtime: Runtime) -> list[APIRouter]:
    """Ordinary endpoints, served by FastAPI."""
    return [
        health.router(runtime),
        models.router(runtime),
        explain.router(runtime),
        exercises.router(runtime),
        misconceptions.router(),
        quiz.router(runtime),
        v2.router(runtime),
        pages.router(),
        widget.router(runtime),
    ]


def raw_routes(runtime: Runtime) -> list[RawRoute]:
    """Tensor endpoints, served without it."""
    return [AttentionRoute(runtime), TextRoute(runtime), InferRoute(runtime), VersionedInferRoute(runtime)]
