"""What the Open Inference Protocol says of the service and its models, whichever way it is asked."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from models.spec import AttentionSpec
from models.types import ALL_TENSOR_NAMES, TENSOR_NAMES
from service.catalog import LoadedModel
from service.codecs.v2_tensors import INPUTS, TOKEN_TENSORS
from service.errors import InvalidOption, NotReady, UnknownField
from service.messages import OWN
from service.runtime import Runtime
from service.statistics import Tally

EXTENSIONS = ["binary_tensor_data", "parameters", "statistics", "model_configuration", "model_repository"]

PLATFORM = "self_attention"


def name_of(model: str, version: str) -> str:
    """What the catalog calls a model and, unless it is empty, a version of it."""
    return f"{model}@{version}" if version else model


class ServerMetadata(BaseModel):
    """What serves."""

    name: str = "self-attention-service"
    version: str
    extensions: list[str] = EXTENSIONS


class TensorMetadata(BaseModel):
    """A tensor of a model."""

    name: str
    datatype: str
    shape: list[int] = Field(description="-1 where the size is not fixed. Without the first axis for one sequence.")


class ModelMetadata(BaseModel):
    """What a model takes and gives. `attn_mask`, `attn_bias` and `lengths` are optional."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class TensorConfig(BaseModel):
    """A tensor of a model, as model configurations describe it."""

    name: str
    data_type: str
    dims: list[int]
    optional: bool = False


class ModelConfig(BaseModel):
    """The part of a model configuration that there is something to say of."""

    name: str
    platform: str
    backend: str
    max_batch_size: int = Field(default=0, description="0: the axis of sequences is part of the shapes.")
    input: list[TensorConfig]
    output: list[TensorConfig]
    model_transaction_policy: dict[str, bool] = {"decoupled": False}
    response_cache: dict[str, bool] = {"enable": False}


class Duration(BaseModel):
    """How often, and how long in all."""

    count: int
    ns: int


class InferenceStatistics(BaseModel):
    """Requests by how they ended, and stages of the answered ones. There is no cache."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class ModelStatistics(BaseModel):
    """What became of a model's requests, from whatever endpoint, since it was loaded."""

    name: str
    version: str
    last_inference: int = Field(description="Milliseconds since 1970; 0 for never.")
    inference_count: int = Field(description="Sequences of answered requests.")
    execution_count: int = Field(description="Batches.")
    inference_stats: InferenceStatistics
    batch_stats: list[Any] = Field(default=[], description="Not kept.")


class StatisticsAnswer(BaseModel):
    """Of every model asked for."""

    model_stats: list[ModelStatistics]


class IndexedModel(BaseModel):
    """A model of the repository, or a built-in one."""

    name: str
    version: str = ""
    state: Literal["READY", "UNAVAILABLE"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """What the protocol calls a model.

    Attributes:
        name, version: as answers have them.
        versions: that are served of the name.
        inputs, outputs: its tensors, for a batch of sequences.
    """

    name: str
    version: str
    versions: Sequence[str]
    inputs: Sequence[TensorMetadata]
    outputs: Sequence[TensorMetadata]

    @property
    def id(self) -> str:
        """What its statistics are kept by."""
        return name_of(self.name, self.version)


def served(runtime: Runtime, name: str) -> Served:
    """What is called `name` or `name@version`.

    Raises:
        NotFound: if nothing is.
    """
    if name == OWN:
        matrices = [_input(f"{OWN}.{matrix}", -1, -1) for matrix in ("query", "key", "value")]
        return Served(OWN, "", [], [*_inputs(-1), *matrices], _outputs(TENSOR_NAMES, [], -1, -1, -1))
    catalog = runtime.engine.catalog
    model = catalog.find(name)
    if isinstance(model, LoadedModel):
        inputs = _inputs(model.entry.spec.embed_dim)
        names = [name for name in ALL_TENSOR_NAMES if name in model.entry.weights.tensor_names]
        outputs = _outputs_of(model.entry.spec, names)
    else:
        inputs = [_input("text", -1)]
        layer = _outputs_of(model.entry.spec.layer, ALL_TENSOR_NAMES)
        outputs = [
            TensorMetadata(name=name, datatype=datatype, shape=shape)
            for name, (datatype, shape) in TOKEN_TENSORS.items()
        ]
        outputs += [
            tensor.model_copy(update={"name": f"layers.{i}.{tensor.name}"})
            for i in range(model.layers)
            for tensor in layer
        ]
    spec = model.entry.spec
    return Served(spec.name, spec.version, list(catalog.models[spec.name]), inputs, outputs)


def all_served(runtime: Runtime) -> list[Served]:
    """Every layer and encoder, and the caller's own matrices."""
    models = [model for versions in runtime.engine.catalog.models.values() for model in versions.values()]
    return [served(runtime, name) for name in (*(model.entry.spec.id for model in models), OWN)]


async def index_of(runtime: Runtime, *, only_ready: bool) -> list[IndexedModel]:
    """Models that are served, and unless only those are asked for what cannot be and what is not loaded."""
    catalog = runtime.engine.catalog
    index = [IndexedModel(name=each.name, version=each.version, state="READY") for each in all_served(runtime)]
    if only_ready:
        return index
    for broken in catalog.broken:
        name, _, version = broken.origin.partition("/")
        index.append(IndexedModel(name=name, version=version, state="UNAVAILABLE", reason=broken.reason))
    known = {*catalog.models, *(entry.name for entry in index)}
    names = await asyncio.to_thread(runtime.loader.names)
    idle = [name for name in sorted({*names}) if name not in known]
    return index + [IndexedModel(name=name, state="UNAVAILABLE", reason="not loaded") for name in idle]


def check_load(parameters: Mapping[str, Any]) -> None:
    """Raise `UnknownField` for any parameter of a load."""
    for key in parameters:
        raise UnknownField.at(
            f"/parameters/{key[:64]}",
            "a model is loaded as its folder is, or as it is built in: neither a config nor files can be sent",
        )


def check_unload(parameters: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for parameters that an unload has not."""
    for key, value in parameters.items():
        if key != "unload_dependents":
            raise UnknownField.at(f"/parameters/{key[:64]}", "no such parameter; known is unload_dependents")
        if not isinstance(value, bool):
            raise InvalidOption.at("/parameters/unload_dependents", f"expected a boolean, got {value!r}")


def check_ready(runtime: Runtime) -> None:
    """Raise `NotReady` unless the service is ready."""
    if obstacle := runtime.obstacle():
        raise NotReady(obstacle, retry_after_s=2)


def _input(name: str, *shape: int) -> TensorMetadata:
    return TensorMetadata(name=name, datatype=INPUTS[name][0], shape=[*shape])


def _inputs(embed_dim: int) -> list[TensorMetadata]:
    """What every layer takes."""
    return [
        _input("inputs", -1, -1, embed_dim),
        _input("attn_mask", -1, -1, -1),
        _input("attn_bias", -1, -1, -1, -1),
        _input("lengths", -1),
    ]


def _outputs_of(spec: AttentionSpec, names: Sequence[str]) -> list[TensorMetadata]:
    heads = [spec.num_heads] if spec.num_heads > 1 else []
    return _outputs(names, heads, spec.head_dim, spec.v_dim, spec.output_dim, spec.embed_dim)


def _outputs(
    names: Sequence[str], heads: list[int], head_dim: int, value_dim: int, output_dim: int, embed_dim: int = -1
) -> list[TensorMetadata]:
    """The tensors of these names, by the widths of their rows.

    Those that need a parameter, `top_k`, are not told of: there are clients that ask for all they are told of.
    """
    shapes = {
        "outputs": [-1, -1, output_dim],
        "weights": [-1, *heads, -1, -1],
        "scores": [-1, *heads, -1, -1],
        "query": [-1, *heads, -1, head_dim],
        "key": [-1, *heads, -1, head_dim],
        "value": [-1, *heads, -1, value_dim],
        "projected": [-1, -1, embed_dim],
    }
    return [TensorMetadata(name=name, datatype="FP32", shape=shapes[name]) for name in names]


def metadata_of(model: Served) -> ModelMetadata:
    """What a model takes and gives."""
    return ModelMetadata(
        name=model.name,
        versions=list(model.versions),
        platform=PLATFORM,
        inputs=list(model.inputs),
        outputs=list(model.outputs),
    )


def config_of(runtime: Runtime, model: Served) -> ModelConfig:
    """A model's configuration."""

    def configured(tensors: Sequence[TensorMetadata]) -> list[TensorConfig]:
        return [
            TensorConfig(
                name=tensor.name,
                data_type=f"TYPE_{'STRING' if tensor.datatype == 'BYTES' else tensor.datatype}",
                dims=tensor.shape,
                optional=tensor.name in ("attn_mask", "attn_bias", "lengths"),
            )
            for tensor in tensors
        ]

    return ModelConfig(
        name=model.name,
        platform=PLATFORM,
        backend=runtime.settings.backend,
        input=configured(model.inputs),
        output=configured(model.outputs),
    )


async def statistics_of(runtime: Runtime, model: Served) -> ModelStatistics:
    """What became of a model's requests."""
    kept = await runtime.statistics(model.id)
    nothing = Tally()

    def duration(tally: Tally) -> Duration:
        return Duration(count=tally.count, ns=tally.ns)

    return ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference=kept.last_ms,
        inference_count=kept.inferences,
        execution_count=kept.executions,
        inference_stats=InferenceStatistics(
            success=duration(kept.success),
            fail=duration(kept.fail),
            queue=duration(kept.queue),
            compute_input=duration(kept.compute_input),
            compute_infer=duration(kept.compute_infer),
            compute_output=duration(kept.compute_output),
            cache_hit=duration(nothing),
            cache_miss=duration(nothing),
        ),
    )
