"""mosec: an HTTP front in Rust that batches for Python workers. A worker takes one kind of body, so there are two."""

from loadtest.peers.base import SERVERS, Peer
from loadtest.peers.formats import packed, plain_json

REQUIREMENTS = ("mosec==0.9.8", "msgpack==1.2.4", "numpy==2.4.6", "onnxruntime==1.31.1", "orjson==3.13.0")
COMMAND = (
    "{bin}/python",
    str(SERVERS / "mosec_server.py"),
    *("--address", "127.0.0.1", "--port", "{port}", "--timeout", "120000", "--log-level", "warning"),
)
TITLE = "mosec 0.9.8, ONNX Runtime; batches of up to 16, a window of 1 ms"

PEERS = (
    Peer(
        name="mosec",
        title=f"{TITLE}; JSON by orjson",
        environment="mosec",
        requirements=REQUIREMENTS,
        command=COMMAND,
        ready="/",
        formats={"json": plain_json("/inference")},
        scales=True,
    ),
    Peer(
        name="mosec-msgpack",
        title=f"{TITLE}; msgpack",
        environment="mosec",
        requirements=REQUIREMENTS,
        command=COMMAND,
        ready="/",
        formats={"binary": packed("/inference")},
        variables={"BENCH_BINARY": "1"},
        scales=True,
    ),
)
