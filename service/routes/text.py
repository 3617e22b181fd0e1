"""`POST /v1/text/attention`: text in, the attention of an encoder's layers out."""

from typing import Any

from pydantic import BaseModel, Field

from service.codecs import TEXT_DECODERS
from service.engine import LocalEngine, Prepared, Tokenised
from service.messages import TextInput, TextOptions
from service.routes.tensors import LONG_TEXT, BackendName, ModelName, NegotiatedRoute, Nested, Operation, SparseWeights

DESCRIPTION = """Tokenises a text with the encoder's own tokenizer, computes the whole encoder, and answers the
attention of the layers asked for: `weights` of each head, or whatever `return` names.

One text, or a list of texts of different lengths; nothing is padded. `tokens` says where in the text each token stands,
in Unicode code points, and which ones the tokenizer added. `attention models get minilm-l6` installs an encoder."""

EXAMPLES: dict[str, Any] = {
    "sentence": {
        "summary": "Layer 0 of a sentence; its head 2 looks one token back",
        "value": {"model": "minilm-l6", "text": "The cat sat on the mat.", "layers": [0]},
    },
    "texts": {
        "summary": "Two texts, all layers, the mean over heads",
        "value": {"model": "minilm-l6", "text": ["Good morning", "How do you do?"], "average_heads": True},
    },
}
"""Requests that work as they stand where the encoder is installed."""


class TextBody(TextOptions):
    """A request in JSON."""

    text: str | list[str] = Field(description="A text, or a list of texts.")


class TokenDescription(BaseModel):
    """A token of a text."""

    token: str = Field(description="As the vocabulary spells it.")
    id: int
    start: int = Field(description="Where it begins in the text, in Unicode code points.")
    end: int = Field(description="One past its end.")
    special: bool = Field(description="Whether the tokenizer added it, such as [CLS]: it stands for no text.")


class LayerAnswer(BaseModel):
    """Tensors of one layer, nested as the request was."""

    layer: int
    weights: Nested | SparseWeights | None = Field(default=None, description="[heads][n][n]")
    outputs: Nested | None = Field(default=None, description="[n][heads·d_v]")
    scores: Nested | None = Field(default=None, description="[heads][n][n], scaled.")
    query: Nested | None = Field(default=None, description="[heads][n][d_k]")
    key: Nested | None = Field(default=None, description="[heads][n][d_k]")
    value: Nested | None = Field(default=None, description="[heads][n][d_v]")
    projected: Nested | None = Field(default=None, description="Outputs after the output projection, [n][d].")


class TextAnswer(BaseModel):
    """An answer in JSON. For a list of texts, `tokens` and every tensor are lists with one entry per text."""

    model: ModelName
    backend: BackendName
    tokens: list[TokenDescription] | list[list[TokenDescription]] | list[str] | list[list[str]] = Field(
        description="With the format bertviz, the tokens' texts alone."
    )
    layers: list[LayerAnswer] | None = Field(default=None, description="In the order of their numbers.")
    attention: list[Any] | None = Field(
        default=None, description="With the format bertviz, in place of `layers`: [layers][1][heads][n][n]."
    )


class TextRoute(NegotiatedRoute):
    """Text in, tensors out."""

    path = "/v1/text/attention"
    decoders = TEXT_DECODERS
    long_from = LONG_TEXT
    operation = Operation(
        id="attend_to_text",
        tag="text",
        summary="Attend to text: a sentence in, the attention weights of an encoder's layers out",
        description=DESCRIPTION,
        options=TextOptions,
        body=TextBody,
        answer=TextAnswer,
        examples=EXAMPLES,
        refusals={"404": "There is no such encoder or version."},
    )

    def understood(self, request: TextInput, engine: LocalEngine) -> Tokenised:
        """See `NegotiatedRoute.understood`."""
        return engine.tokenised(request)

    def check(self, request: Tokenised, engine: LocalEngine, bytes_in: int) -> Prepared:
        """See `NegotiatedRoute.check`."""
        return engine.prepare_text(request, bytes_in)
