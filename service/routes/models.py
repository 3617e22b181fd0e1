"""Which models are served, where they came from, and how well their backends agree."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from models.checkpoints import CHECKPOINTS
from models.spec import Example, Parity, Position, Provenance, QueryKeyNorm
from service.access import KEY_NEEDED
from service.catalog import Catalog, Loaded, LoadedEncoder, LoadedModel
from service.loader import Change
from service.runtime import Runtime


class Description(BaseModel):
    """What is said of everything that is served."""

    name: str
    version: str
    versions: list[str] = Field(description="Every version of that name, oldest first.")
    description: str
    embed_dim: int
    num_heads: int
    head_dim: int
    source: str
    license: str
    origin: str = Field(description="`built-in`, or the folder in the model repository.")
    digest: str = Field(description="SHA-256 of the weights.")
    parity: dict[str, float] = Field(
        description="Largest difference between two backends at load, relative to the largest value."
    )
    backends: list[str]
    dtypes: dict[str, str] = Field(description="What products are rounded to, by backend.")


class ModelDescription(Description):
    """A served layer: it takes embeddings at `/v1/attention`."""

    num_kv_heads: int
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
    provenance: Provenance | None = Field(description="The checkpoint it was imported from, if it was.")


class EncoderDescription(Description):
    """A served encoder: it takes text at `/v1/text/attention`."""

    num_layers: int
    vocab_size: int
    max_positions: int = Field(description="Tokens of a text that fit, special ones included.")
    files: dict[str, str] = Field(description="SHA-256 of each file it was imported from.")
    library_parity: Parity | None = Field(description="Differences to its own library, measured at import.")


class NotInstalledModel(BaseModel):
    """An encoder that can be had by name."""

    name: str
    description: str
    source: str
    license: str
    command: str = Field(description="What installs it.")


class BrokenModel(BaseModel):
    """A folder of the model repository that cannot be served."""

    origin: str
    reason: str


class ModelList(BaseModel):
    """Every served model."""

    default: str = Field(description="The model of requests that name none.")
    models: list[ModelDescription] = Field(description="Layers: they take embeddings at `/v1/attention`.")
    encoders: list[EncoderDescription]
    not_installed: list[NotInstalledModel] = Field(description="Encoders that can be had by name.")
    broken: list[BrokenModel]


class ModelChange(BaseModel):
    """What is served otherwise than before."""

    loaded: list[ModelDescription | EncoderDescription] = Field(description="Models that are new or were loaded again.")
    unloaded: list[str] = Field(description="`name@version` of models that are not served any more.")


def router(runtime: Runtime) -> APIRouter:
    """`/v1/models`, `/v1/models/{name}`, and `load` and `unload` below the latter."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    @routes.get("", summary="Every served model")
    async def list_models() -> ModelList:
        """Every version of every model, and the folders of the repository that could not be served."""
        catalog = runtime.engine.catalog
        served = [model for versions in catalog.models.values() for model in versions.values()]
        return ModelList(
            default=runtime.settings.default_model,
            models=[_layer(catalog, model) for model in served if isinstance(model, LoadedModel)],
            encoders=[_encoder(catalog, model) for model in served if isinstance(model, LoadedEncoder)],
            not_installed=[
                NotInstalledModel(
                    name=name,
                    description=checkpoint.description,
                    source=checkpoint.source,
                    license=checkpoint.license,
                    command=f"attention models get {name}",
                )
                for name, checkpoint in CHECKPOINTS.items()
                if name not in catalog.models
            ],
            broken=[BrokenModel(origin=entry.origin, reason=entry.reason) for entry in catalog.broken],
        )

    @routes.get("/{name}", summary="One model")
    async def get_model(name: str) -> ModelDescription | EncoderDescription:
        """A model by `name` (its newest version) or `name@version`."""
        catalog = runtime.engine.catalog
        return _describe(catalog, catalog.find(name))

    @routes.post("/{name}/load", summary="Load a model, or load it again", openapi_extra={"security": KEY_NEEDED})
    async def load_model(name: str, request: Request) -> ModelChange:
        """Serve `name` (all versions) or `name@version` as its folder in the model repository is now, or as built in.

        What was served before is served until the new one is loaded and checked, and if it is broken. Versions whose
        folder is gone are unloaded. Needs an admin key.
        """
        catalog = runtime.changeable(request.scope["exchange"])
        return _changed(catalog, await runtime.load(catalog, name))

    @routes.post("/{name}/unload", summary="Unload a model", openapi_extra={"security": KEY_NEEDED})
    async def unload_model(name: str, request: Request) -> ModelChange:
        """Stop to serve `name` (all versions) or `name@version`, until it is loaded again or the service restarts.

        Requests that were accepted before are answered. Needs an admin key.
        """
        catalog = runtime.changeable(request.scope["exchange"])
        return _changed(catalog, await runtime.unload(catalog, name))

    return routes


def _changed(catalog: Catalog, change: Change) -> ModelChange:
    return ModelChange(loaded=[_describe(catalog, model) for model in change.loaded], unloaded=change.unloaded)


def _describe(catalog: Catalog, model: Loaded) -> ModelDescription | EncoderDescription:
    return _encoder(catalog, model) if isinstance(model, LoadedEncoder) else _layer(catalog, model)


def _encoder(catalog: Catalog, model: LoadedEncoder) -> EncoderDescription:
    spec = model.entry.spec
    return EncoderDescription(
        **_common(catalog, model),
        num_layers=spec.num_layers,
        vocab_size=spec.vocab_size,
        max_positions=spec.max_positions,
        files=spec.files,
        library_parity=spec.parity,
    )


def _layer(catalog: Catalog, model: LoadedModel) -> ModelDescription:
    spec = model.entry.spec
    return ModelDescription(
        **_common(catalog, model),
        num_kv_heads=spec.kv_heads,
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
        provenance=spec.provenance,
    )


def _common(catalog: Catalog, model: Loaded) -> dict[str, Any]:
    spec = model.entry.spec
    return {
        "name": spec.name,
        "version": spec.version,
        "versions": list(catalog.models[spec.name]),
        "description": spec.description,
        "embed_dim": spec.embed_dim,
        "num_heads": spec.num_heads,
        "head_dim": spec.head_dim,
        "source": spec.source,
        "license": spec.license,
        "origin": model.entry.origin,
        "digest": model.digest,
        "parity": dict(model.parity),
        "backends": list(model.runners),
        "dtypes": {name: catalog.info(name, spec.name, spec.version).dtype for name in model.runners},
    }
