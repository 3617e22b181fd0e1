"""The mosec peer. `BENCH_WORKERS` workers, each a process."""

import os
from typing import Any

import numpy as np
import orjson
from compute import MOST, Answer, Attention
from mosec import Server, Worker
from mosec.mixin import MsgpackMixin


class Json(Worker):
    """Numbers as decimals."""

    def __init__(self) -> None:
        """Open the layers."""
        super().__init__()
        self.attention = Attention()

    def deserialize(self, data: bytes) -> Any:
        """One request."""
        return np.array(orjson.loads(data)["inputs"], np.float32)

    def forward(self, data: list[Any]) -> list[Answer]:
        """A batch."""
        return self.attention.batch(data)

    def serialize(self, data: Answer) -> bytes:
        """One answer."""
        outputs, weights = map(np.ascontiguousarray, data)
        return orjson.dumps({"outputs": outputs, "weights": weights}, option=orjson.OPT_SERIALIZE_NUMPY)


class Binary(MsgpackMixin, Worker):
    """Numbers as bytes."""

    def __init__(self) -> None:
        """Open the layers."""
        super().__init__()
        self.attention = Attention()

    def forward(self, data: list[Any]) -> list[dict[str, bytes]]:
        """A batch."""
        inputs = [np.frombuffer(item["inputs"], np.float32).reshape(item["shape"]) for item in data]
        return [{"outputs": o.tobytes(), "weights": w.tobytes()} for o, w in self.attention.batch(inputs)]


if __name__ == "__main__":
    server = Server()
    worker = Binary if os.environ.get("BENCH_BINARY") else Json
    server.append_worker(worker, num=int(os.environ["BENCH_WORKERS"]), max_batch_size=MOST, max_wait_time=1)
    server.run()
