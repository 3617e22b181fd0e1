"""PyTriton: NVIDIA's Triton server with a Python function behind its dynamic batcher.

Triton batches requests of one shape only. Its wheel needs glibc 2.35, and the shared library of the very Python that
made the environment.
"""

import sysconfig

from loadtest.peers.base import SERVERS, Peer
from loadtest.peers.formats import protocol_binary, protocol_json

PATH = "/v2/models/attention/infer"

PEERS = (
    Peer(
        name="pytriton",
        title="PyTriton 0.7.0 (Triton's own server), ONNX Runtime; batches of up to 16, no delay",
        environment="pytriton",
        requirements=("nvidia-pytriton==0.7.0", "numpy", "onnxruntime==1.31.1"),
        command=("{bin}/python", str(SERVERS / "pytriton_server.py"), "{port}", "{port1}", "{port2}"),
        ready="/v2/models/attention/ready",
        formats={"json": protocol_json(PATH), "binary": protocol_binary(PATH)},
        variables={"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))},
    ),
)
