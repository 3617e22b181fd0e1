"""The FastAPI peer: the event loop reads and writes, a pool of as many threads as there are cores computes."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import msgpack
import numpy as np
import orjson
import uvicorn
from compute import F32, Answer, Attention
from fastapi import FastAPI, Request, Response

# One thread for each computation, as many computations as cores: less is lost than by sharing each among all.
app, attention, pool = FastAPI(), Attention(threads=1), ThreadPoolExecutor(int(os.environ["BENCH_THREADS"]))


def compute(x: F32) -> Answer:
    """One sequence."""
    outputs, weights = attention.stacked(x[None])
    return outputs[0], weights[0]


@app.get("/ready")
async def ready() -> str:
    """200 once it serves."""
    return "ready"


@app.post("/json")
async def as_json(request: Request) -> Response:
    """Numbers as decimals."""
    x = np.array(orjson.loads(await request.body())["inputs"], np.float32)
    outputs, weights = await asyncio.get_running_loop().run_in_executor(pool, compute, x)
    body = orjson.dumps({"outputs": outputs, "weights": weights}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, media_type="application/json")


@app.post("/msgpack")
async def as_msgpack(request: Request) -> Response:
    """Numbers as bytes."""
    found = msgpack.unpackb(await request.body())
    x = np.frombuffer(found["inputs"], np.float32).reshape(found["shape"])
    outputs, weights = await asyncio.get_running_loop().run_in_executor(pool, compute, x)
    body = msgpack.packb({"outputs": outputs.tobytes(), "weights": weights.tobytes()})
    return Response(body, media_type="application/msgpack")


if __name__ == "__main__":
    uvicorn.run(
        "fastapi_server:app",
        host="127.0.0.1",
        port=int(sys.argv[1]),
        workers=int(os.environ["BENCH_WORKERS"]),
        access_log=False,
        log_level="warning",
    )
