"""What Serve's proxy says on its own account, as problems of ours.

A proxy answers in plain text where it has no replica to ask, and not at all where the replica ends before it has
answered: its server then says 500, which clients do not try again. Every node's proxy takes `middlewares` up where its
environment has `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=deploy.ray.proxy.middlewares`.
"""

from collections.abc import Iterable

from starlette.middleware import Middleware

from models.errors import AttentionError
from service.errors import DeadlineExceeded, QueueFull, Unavailable, WorkerLost
from service.exchange import Application, Message, Receive, Scope, Send
from service.problems import dialect_of, problem

PLAIN = b"text/plain"
"""What the proxy's own answers are. Errors of the application never are."""


ID = b"x-request-id"
Headers = Iterable[tuple[bytes, bytes]]


def problem_of(status: int, *, queue_full: bool) -> AttentionError | None:
    """What the proxy means by a status; None for what it may say as it is."""
    if status == 408:
        return DeadlineExceeded("no answer came in the time that the proxy gives, `http_options.request_timeout_s`")
    if status == 503 and queue_full:
        return QueueFull("as many requests wait for an ingress replica as may")
    if status == 503:
        return Unavailable("there is no ingress replica now")
    return None


class Spoken:
    """ASGI middleware of the proxy."""

    def __init__(self, app: Application) -> None:
        """In front of `app`, the proxy."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = replaced = False

        async def spoken(message: Message) -> None:
            nonlocal started, replaced
            if message["type"] == "http.response.start":
                started = True
                headers = {name.lower(): value for name, value in message.get("headers", ())}
                error = None
                if headers.get(b"content-type", PLAIN).startswith(PLAIN):
                    error = problem_of(message["status"], queue_full=b"retry-after" in headers)
                if error is not None:
                    replaced = True
                    await _answer(send, error, scope["path"], headers.get(ID, b""))
                    return
                message = {**message, "headers": _with_one_id(message.get("headers", ()))}
            if not replaced:
                await send(message)

        await self._app(scope, receive, spoken)
        if not started:
            lost = WorkerLost("the ingress replica that had the request has ended; others take its place")
            await _answer(send, lost, scope["path"], dict(scope["headers"]).get(ID, b""))


def _with_one_id(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Serve adds its id of the request to answers that have it already."""
    has = [(name, value) for name, value in headers if name.lower() == ID]
    return [*((name, value) for name, value in headers if name.lower() != ID), *has[:1]]


async def _answer(send: Send, error: AttentionError, path: str, request_id: bytes) -> None:
    dialect = dialect_of(path)
    status, body, headers = problem(error, request_id.decode("latin-1"), dialect)
    headers += [
        (b"content-type", dialect.media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (ID, request_id),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def middlewares() -> list[Middleware]:
    """What Serve asks for."""
    return [Middleware(Spoken)]
