"""`POST /v1/attention`: the main job."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.codecs import DECODERS
from service.engine import LocalEngine, Prepared
from service.messages import AttentionInput, Options
from service.routes.tensors import BackendName, ModelName, NegotiatedRoute, Nested, Operation, SparseWeights

DESCRIPTION = """Projects token embeddings to queries, keys and values, compares them, and mixes the values:
scores = QKᵀ/√d_k, weights = softmax per row, outputs = weights·V.

One sequence, or a list of sequences of different lengths. Binary bodies: `application/x-safetensors` (tensors
`inputs`, or `inputs.0`, `inputs.1`, …, and optionally `attn_mask`, `attn_bias`, `projections.query`, …) and
`application/x-npy` (one array). `Accept` chooses the answer's format. Scalar options may stand in the query string with
any body. The answer for a sequence is bitwise the same alone, in a list, or batched with other callers' work."""

EXAMPLES: dict[str, Any] = {
    "lesson": {
        "summary": "Four tokens of the lesson",
        "value": {
            "model": "lesson",
            "inputs": [[1, 0, 0, 0, 0.5], [0, 0, 1, 0, 0.5], [0.2, 0, 0, 1, 0.5], [0, 1, 0, 0, 0.5]],
        },
    },
    "projections": {
        "summary": "Your own matrices, causal, with every tensor",
        "value": {
            "inputs": [[1, 0], [0, 1], [1, 1]],
            "projections": {
                "query": [[1, 0, 1], [0, 1, 0]],
                "key": [[1, 1, 0], [0, 1, 1]],
                "value": [[1, 2], [3, 4]],
            },
            "is_causal": True,
            "return": ["outputs", "weights", "scores", "query", "key", "value"],
        },
    },
    "ragged": {
        "summary": "Two sequences of different lengths, one with a mask, weights sparse",
        "value": {
            "model": "lesson",
            "inputs": [[[1, 0, 0, 0, 0.5], [0, 0, 1, 0, 0.5]], [[0, 1, 0, 0, 0.5]]],
            "attn_mask": [[[True, False], [True, True]], None],
            "top_k": 1,
        },
    },
}
"""Requests that work as they stand."""

Row = list[float]
Rows = list[Row]


class TensorObject(BaseModel):
    """An array as base64: little-endian, row-major."""

    model_config = ConfigDict(extra="forbid")

    shape: list[Annotated[int, Field(ge=0)]] = Field(description="Sizes of the axes.")
    dtype: Literal["float32", "float16", "float64", "bool"] = Field(description="bool for attn_mask only.")
    data: str = Field(description="Base64 of the elements.", json_schema_extra={"contentEncoding": "base64"})


class ProjectionsBody(BaseModel):
    """A caller's own W_q, W_k and W_v; y = x W, no bias."""

    model_config = ConfigDict(extra="forbid")

    query: Rows | TensorObject = Field(description="(d, d_k)")
    key: Rows | TensorObject = Field(description="(d, d_k)")
    value: Rows | TensorObject = Field(description="(d, d_v)")


Mask = list[list[bool]] | TensorObject
Bias = Rows | list[Rows] | TensorObject


class AttentionBody(Options):
    """A request in JSON."""

    inputs: Rows | list[Rows | TensorObject] | TensorObject = Field(
        description="Token embeddings [n][d], a list of such sequences of any lengths, or a tensor object."
    )
    projections: ProjectionsBody | None = Field(default=None, description="Own matrices; excludes `model`.")
    attn_mask: Mask | list[Mask | None] | None = Field(
        default=None,
        description="[n][n] booleans, true = may attend; for a list of sequences one (or null) for each, or one tensor "
        "object [sequences][n][n].",
    )
    attn_bias: Bias | list[Bias | None] | None = Field(
        default=None, description="[n][n] or [heads][n][n], added to the scaled scores; for a list one for each."
    )


class AttentionAnswer(BaseModel):
    """An answer in JSON. Tensors are nested as the request was."""

    model: ModelName
    backend: BackendName
    outputs: Nested | None = Field(default=None, description="[n][heads·d_v]")
    weights: Nested | SparseWeights | None = Field(default=None, description="[n][n], or [heads][n][n] for several.")
    scores: Nested | None = Field(default=None, description="Scaled, biased, masked; null where masked.")
    query: Nested | None = Field(default=None, description="[n][d_k], or [heads][n][d_k].")
    key: Nested | None = Field(default=None, description="[n][d_k], or [heads][n][d_k].")
    value: Nested | None = Field(default=None, description="[n][d_v], or [heads][n][d_v].")
    projected: Nested | None = Field(default=None, description="Outputs after the output projection, [n][d].")
    attention: list[Any] | None = Field(
        default=None, description="With the format bertviz, in place of the tensors: [1][1][heads][n][n]."
    )
    fully_masked_rows: list[Any] | None = Field(
        default=None, description="Rows that see nothing: zero weights and outputs. Only where there are some."
    )


class AttentionRoute(NegotiatedRoute):
    """Embeddings in, tensors out."""

    path = "/v1/attention"
    decoders = DECODERS
    operation = Operation(
        id="attend",
        tag="attention",
        summary="Attend: embeddings in, attention weights and outputs out",
        description=DESCRIPTION,
        options=Options,
        body=AttentionBody,
        answer=AttentionAnswer,
        examples=EXAMPLES,
        refusals={"404": "There is no such model or version."},
    )

    def understood(self, request: AttentionInput, engine: LocalEngine) -> AttentionInput:
        """See `NegotiatedRoute.understood`: nothing is left to do."""
        return request

    def check(self, request: AttentionInput, engine: LocalEngine, bytes_in: int) -> Prepared:
        """See `NegotiatedRoute.check`."""
        return engine.prepare(request, bytes_in)
