"""What one would write by hand: FastAPI, raw bodies, each computed in a pool of threads, nothing batched."""

from loadtest.peers.base import SERVERS, Peer
from loadtest.peers.formats import packed, plain_json

PEERS = (
    Peer(
        name="fastapi",
        title="FastAPI 0.165 by hand: orjson or msgpack, ONNX Runtime in a thread pool, no batching",
        environment="fastapi",
        requirements=(
            "fastapi==0.165.0",
            "msgpack==1.2.4",
            "numpy==2.4.6",
            "onnxruntime==1.31.1",
            "orjson==3.13.0",
            "uvicorn[standard]==0.54.0",
        ),
        command=("{bin}/python", str(SERVERS / "fastapi_server.py"), "{port}"),
        ready="/ready",
        formats={"json": plain_json("/json"), "binary": packed("/msgpack")},
        scales=True,
    ),
)
