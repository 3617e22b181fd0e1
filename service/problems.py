"""Errors as answers: the one table from error to status, and the ways in which answers spell them.

Everywhere but under `/v2` that is `application/problem+json`, RFC 9457. The Open Inference Protocol has its own, and
gRPC has codes of its own.
"""

import inspect
import math
import uuid
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson

from models import errors as model_errors
from models.errors import ArtifactError, AttentionError, DownloadFailed, InvalidInput, InvalidModel
from service import errors
from service.errors import Later, MethodNotAllowed

MEDIA_TYPE = "application/problem+json"

STATUS: dict[type[AttentionError], int] = {
    errors.Unparsable: 400,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.NotAcceptable: 406,
    errors.ClientTimeout: 408,
    errors.Conflict: 409,
    errors.TooLarge: 413,
    errors.UnsupportedMediaType: 415,
    InvalidInput: 422,
    errors.UnservableModel: 422,
    errors.RateLimited: 429,
    errors.ClientGone: 499,
    errors.BackendFailed: 500,
    errors.NotOffered: 501,
    InvalidModel: 500,
    ArtifactError: 500,
    errors.Later: 503,
    errors.DeadlineExceeded: 504,
    AttentionError: 500,
}
"""Status of an error's nearest ancestor. 499 is never sent: nobody is there; it labels metrics and log lines."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a family of routes spells errors.

    Attributes:
        media_type: of the answer.
        status: where it differs from `STATUS`.
        text: the field, beside those of RFC 9457, that repeats the detail; empty for none.
    """

    media_type: str
    status: dict[type[AttentionError], int] = field(default_factory=dict)
    text: str = ""


RFC9457 = Dialect(MEDIA_TYPE)

OPEN_INFERENCE = Dialect(
    "application/json",
    {
        InvalidInput: 400,  # the protocol knows one status for whatever is wrong with a request
        errors.UnservableModel: 400,
        errors.NotInstalled: 404,  # 503 would be asked again, though nobody installs it meanwhile
    },
    "error",
)
"""Clients of the protocol read `error`, and take any status but 200 for a failure."""


def dialect_of(path: str) -> Dialect:
    """The dialect of a path's answers."""
    return OPEN_INFERENCE if path == "/v2" or path.startswith("/v2/") else RFC9457


def status_of(error: type[AttentionError], dialect: Dialect = RFC9457) -> int:
    """The status of an error class."""
    table = STATUS | dialect.status
    return next(table[cls] for cls in error.__mro__ if cls in table)


RPC_CODE = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION",
    413: "RESOURCE_EXHAUSTED",  # as gRPC itself says of a message that is larger than allowed
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""gRPC's code for each status of `OPEN_INFERENCE` that such a call can have; `UNKNOWN` for none."""


def rpc_code_of(error: type[AttentionError]) -> str:
    """The name of gRPC's status code of an error class."""
    return RPC_CODE.get(status_of(error, OPEN_INFERENCE), "UNKNOWN")


def outcome_of(status: int) -> str:
    """How a request that was answered with `status` ended, one of `metrics.OUTCOMES`."""
    if status < 400:
        return "ok"
    if status in (413, 429, 503):
        return "rejected"
    if status in (408, 504):
        return "expired"
    if status == 499:
        return "cancelled"
    return "invalid" if status < 500 or status == 501 else "failed"  # 501: nothing is wrong with us


def title_of(error: type[AttentionError]) -> str:
    """The first line of the class's docstring, without its full stop."""
    return inspect.getdoc(error).partition("\n")[0].rstrip(".")  # type: ignore[union-attr]  # each of them has one


def type_of(error: type[AttentionError]) -> str:
    """The stable relative URI of an error class."""
    return f"/problems/{error.code}"


MOST_TEXT = 2_000
"""Characters of a detail or a pointer: they quote the request, whose field names may be megabytes."""


def text_of(error: AttentionError) -> str:
    """The detail of an error, as it is sent."""
    return _text(error.detail)


def _text(text: str) -> str:
    """Text that can be sent: a field's name may hold half a character, a surrogate without the other, as an escape."""
    brief = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
    return brief.encode("utf-8", "backslashreplace").decode()


def problem(
    error: AttentionError, request_id: str, dialect: Dialect = RFC9457
) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """Status, body and extra headers of the answer to a failed request."""
    kind = type(error)
    status = status_of(kind, dialect)
    body: dict[str, Any] = {
        "type": type_of(kind),
        "title": title_of(kind),
        "status": status,
        "detail": text_of(error),
        "instance": request_id,
    }
    if error.fields:
        body["errors"] = [{"pointer": _text(field.pointer), "detail": _text(field.detail)} for field in error.fields]
    if dialect.text:
        body = {dialect.text: body["detail"]} | body
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, Later) and status in (429, 503):
        headers.append((b"retry-after", str(math.ceil(error.retry_after_s)).encode()))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    if isinstance(error, errors.Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return status, orjson.dumps(body), headers


def whole_answer(error: AttentionError, dialect: Dialect = RFC9457) -> tuple[str, bytes]:
    """A request id, made, and a whole answer of HTTP/1.1 under it, after which the connection closes.

    For requests that no route sees: what is no HTTP, and what was lost with its process.
    """
    request_id = uuid.uuid4().hex
    status, body, extra = problem(error, request_id, dialect)
    headers = [
        (b"content-type", dialect.media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (b"x-request-id", request_id.encode()),
        *extra,
    ]
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()
    return request_id, b"\r\n".join((first, *(name + b": " + value for name, value in headers))) + b"\r\n\r\n" + body


NEVER_ANSWERED = frozenset({
    AttentionError, ArtifactError, InvalidModel, DownloadFailed, errors.Later, errors.ClientGone,
    errors.ConfigurationError, errors.ParityError,
})  # fmt: skip
"""Errors of starting and loading, abstract ones, and the one whose caller has left."""


def known_problems() -> list[type[AttentionError]]:
    """Every error class that an answer may name, by code."""
    found: dict[str, type[AttentionError]] = {}
    for cls in (*vars(model_errors).values(), *vars(errors).values()):
        if isinstance(cls, type) and issubclass(cls, AttentionError) and cls not in NEVER_ANSWERED:
            found[cls.code] = cls
    return [found[code] for code in sorted(found)]
