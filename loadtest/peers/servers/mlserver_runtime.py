"""The MLServer peer: what `mlserver/model-settings.json` names."""

import numpy as np
from compute import Attention
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Served(MLModel):
    """One model for all widths."""

    async def load(self) -> bool:
        """Open the layers."""
        self.attention = Attention()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """A batch that MLServer has joined along the first axis."""
        inputs = np.ascontiguousarray(NumpyCodec.decode_input(payload.inputs[0]), np.float32)
        outputs, weights = self.attention.stacked(inputs)
        answered = [NumpyCodec.encode_output("outputs", outputs), NumpyCodec.encode_output("weights", weights)]
        return InferenceResponse(model_name=self.name, outputs=answered)
