"""Is it alive, is it ready, how is it doing."""

from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from service.errors import NotReady
from service.exposition import written
from service.runtime import Runtime


class Live(BaseModel):
    """The process answers."""

    status: Literal["live"] = "live"


class Ready(BaseModel):
    """Models are loaded and warmed, and their backends agree."""

    status: Literal["ready"] = "ready"
    models: list[str]
    device: str
    note: str


def router(runtime: Runtime) -> APIRouter:
    """`/healthz/live`, `/healthz/ready`, `/metrics`."""
    routes = APIRouter(tags=["operations"])

    @routes.get("/healthz/live", summary="Liveness")
    async def live() -> Live:
        """200 while the process answers at all: restart it if this fails."""
        return Live()

    @routes.get("/healthz/ready", summary="Readiness")
    async def ready() -> Ready:
        """200 only when models are loaded, warmed, and eager and ONNX agree; 503 says what is missing."""
        if obstacle := runtime.obstacle():
            raise NotReady(obstacle, retry_after_s=2)
        catalog = runtime.engine.catalog
        names = [f"{name}@{version}" for name, versions in catalog.models.items() for version in versions]
        return Ready(models=names, device=str(catalog.device), note=catalog.device.note)

    @routes.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        """Every metric, of all workers, in Prometheus' text format."""
        return Response(written(await runtime.families()), media_type=CONTENT_TYPE_LATEST)

    return routes
