"""The PyTriton peer: ports for HTTP, gRPC and metrics are its arguments."""

import sys

import numpy as np
from compute import F32, MOST, Attention
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

attention = Attention()


@batch
def infer(inputs: F32) -> dict[str, F32]:
    """A batch that Triton has joined along the first axis."""
    outputs, weights = attention.stacked(np.ascontiguousarray(inputs))
    return {"outputs": outputs, "weights": weights}


if __name__ == "__main__":
    http, grpc, metrics = map(int, sys.argv[1:4])
    local = "127.0.0.1"
    listening = TritonConfig(
        http_port=http,
        grpc_port=grpc,
        metrics_port=metrics,
        http_address=local,
        grpc_address=local,
        metrics_address=local,
    )
    with Triton(config=listening) as triton:
        triton.bind(
            "attention",
            infer,
            inputs=[Tensor(name="inputs", dtype=np.float32, shape=(-1, -1))],
            outputs=[
                Tensor(name="outputs", dtype=np.float32, shape=(-1, -1)),
                Tensor(name="weights", dtype=np.float32, shape=(-1, -1)),
            ],
            config=ModelConfig(max_batch_size=MOST, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
            strict=False,
        )
        triton.serve()
