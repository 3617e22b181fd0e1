"""Tiny servers for the tests of the load generator."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = Callable[[int, bytes], tuple[int, bytes, float]]
"""Status, body and seconds to stall, by the number of the request, from 0 over all connections, and its body."""


@contextmanager
def answering(answer: Answer, rest_s: float = 60.0, headers: str = "") -> Iterator[int]:
    """Serve on a free port, which is yielded; connections that rest for longer than `rest_s` are closed.

    A stall stops the whole server, as a blocked event loop would.
    """
    seen = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        try:
            while head := await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), rest_s):
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                sent = await reader.readexactly(length)
                status, body, stall_s = answer(seen, sent)
                seen += 1
                if stall_s:
                    stop.wait(stall_s)  # blocks the loop on purpose, and no longer than the test
                # In two pieces, so that a reader has to put them together.
                writer.write(
                    f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nX-Seen: {seen}\r\n{headers}\r\n".encode()
                )
                await writer.drain()
                writer.write(body)
        except (asyncio.IncompleteReadError, TimeoutError):
            writer.close()

    stop, ready, ports = threading.Event(), threading.Event(), []

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            ports.append(server.sockets[0].getsockname()[1])
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait()
    try:
        yield ports[0]
    finally:
        stop.set()
        thread.join()
