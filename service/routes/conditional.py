"""Answers that are the same for everybody who asks the same: a client that has one already is told so."""

import hashlib
from typing import Any

from fastapi import Request, Response

SECONDS_KEPT = 3_600
"""How long a client may use such an answer without asking again."""

UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client has this answer already: `If-None-Match` names it."}
}
"""For `responses` of a route."""


def conditional(request: Request, body: bytes, media_type: str = "application/json") -> Response:
    """An answer with an `ETag`, its digest; or 304 without a body where `If-None-Match` has it."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": f"max-age={SECONDS_KEPT}"}
    if _names(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _names(condition: str, tag: str) -> bool:
    """Whether a condition, RFC 9110 section 13.1.2, holds for a tag; what a proxy has made weak counts too."""
    given = [one.strip().removeprefix("W/") for one in condition.split(",")]
    return "*" in given or tag in given
