"""MLServer: the Open Inference Protocol in JSON, with adaptive batching.

It batches requests whatever their shapes and mixes up the answers where they differ, so it is not given mixed lengths.
Its REST side takes no binary tensors.
"""

from loadtest.peers.base import SERVERS, Peer
from loadtest.peers.formats import protocol_json

PEERS = (
    Peer(
        name="mlserver",
        title="MLServer 1.7.1 in one process, ONNX Runtime; batches of up to 16, a window of 1 ms",
        environment="mlserver",
        requirements=("mlserver==1.7.1", "numpy", "onnxruntime==1.31.1"),
        command=("{bin}/mlserver", "start", str(SERVERS / "mlserver")),
        ready="/v2/models/attention/ready",
        formats={"json": protocol_json("/v2/models/attention/infer")},
        variables={
            "MLSERVER_HOST": "127.0.0.1",
            "MLSERVER_HTTP_PORT": "{port}",
            "MLSERVER_GRPC_PORT": "{port1}",
            "MLSERVER_METRICS_PORT": "{port2}",
            "MLSERVER_PARALLEL_WORKERS": "0",
            "MLSERVER_DEBUG": "false",
        },
        skips=frozenset({"mixed"}),
    ),
)
