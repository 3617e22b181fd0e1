"""Which models are served, where they came from, and how well their backends agree."""

from fastapi import APIRouter
from pydantic import BaseModel, Field

from models.spec import Example, Position, Provenance, QueryKeyNorm
from service.catalog import Catalog, LoadedModel
from service.runtime import Runtime


class ModelDescription(BaseModel):
    """A served model."""

    name: str
    version: str
    versions: list[str] = Field(description="Every version of that name, oldest first.")
    description: str
    embed_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    output_dim: int = Field(description="Width of an output row: num_heads * value_dim.")
    tensors: list[str] = Field(description="What `return` may name; `projected` needs an output projection.")
    is_causal: bool
    scale: float = Field(description="Factor of the scores when a request gives none.")
    position: Position
    window: int | None = Field(description="A row sees columns less than this many tokens away, itself counted.")
    logit_softcap: float | None = Field(description="Scaled scores become cap * tanh(scores / cap).")
    query_key_norm: QueryKeyNorm | None = Field(description="Normalisation of queries and keys.")
    labels: list[str] = Field(description="Names of the embedding's columns, where they have names.")
    example: Example | None = Field(description="An input worth trying first.")
    source: str
    license: str
    origin: str = Field(description="`built-in`, or the folder in the model repository.")
    provenance: Provenance | None = Field(description="What an imported layer was imported from.")
    digest: str = Field(description="SHA-256 of the weights.")
    parity: dict[str, float] = Field(
        description="Largest difference between two backends at load, relative to the largest value."
    )
    backends: list[str]


class BrokenModel(BaseModel):
    """A folder of the model repository that cannot be served."""

    origin: str
    reason: str


class ModelList(BaseModel):
    """Every served model."""

    default: str = Field(description="The model of requests that name none.")
    models: list[ModelDescription]
    broken: list[BrokenModel]


def router(runtime: Runtime) -> APIRouter:
    """`/v1/models` and `/v1/models/{name}`."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    @routes.get("", summary="Every served model")
    async def list_models() -> ModelList:
        """Every version of every model, and the folders of the repository that could not be served."""
        catalog = runtime.engine.catalog
        found = [_describe(catalog, model) for versions in catalog.models.values() for model in versions.values()]
        broken = [BrokenModel(origin=entry.origin, reason=entry.reason) for entry in catalog.broken]
        return ModelList(default=runtime.settings.default_model, models=found, broken=broken)

    @routes.get("/{name}", summary="One model")
    async def get_model(name: str) -> ModelDescription:
        """A model by `name` (its newest version) or `name@version`."""
        catalog = runtime.engine.catalog
        return _describe(catalog, catalog.find(name))

    return routes


def _describe(catalog: Catalog, model: LoadedModel) -> ModelDescription:
    spec = model.entry.spec
    return ModelDescription(
        name=spec.name,
        version=spec.version,
        versions=list(catalog.models[spec.name]),
        description=spec.description,
        embed_dim=spec.embed_dim,
        num_heads=spec.num_heads,
        num_kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        value_dim=spec.v_dim,
        output_dim=spec.output_dim,
        tensors=list(model.entry.weights.tensor_names),
        is_causal=spec.is_causal,
        scale=spec.effective_scale,
        position=spec.position,
        window=spec.window,
        logit_softcap=spec.logit_softcap,
        query_key_norm=spec.query_key_norm,
        labels=list(spec.labels),
        example=spec.example,
        source=spec.source,
        license=spec.license,
        origin=model.entry.origin,
        provenance=spec.provenance,
        digest=model.entry.weights.digest(),
        parity=dict(model.parity),
        backends=list(model.runners),
    )
