"""JSON bodies of ordinary endpoints, read within the limits of all bodies and checked by a model."""

from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from models.errors import FieldError, InvalidInput
from service.codecs.options import nearest
from service.codecs.strict_json import escaped, json_object
from service.errors import UnknownField
from service.exchange import Exchange
from service.runtime import Runtime

M = TypeVar("M", bound=BaseModel)


async def read(
    runtime: Runtime, request: Request, model: type[M], needed: str, most: int | None = None, *, optional: bool = False
) -> M:
    """The body of a request.

    Args:
        runtime: whose limits hold.
        request: its Content-Type is not looked at.
        model: what the body must be.
        needed: the field it cannot do without, for messages.
        most: bytes, where fewer are allowed than for all bodies.
        optional: whether there may be none, which is as good as an empty object.

    Raises:
        InvalidInput: if it is not what the model says, with a pointer to each place.
        AttentionError: if it cannot be read, as by `Intake.read` and `json_object`.
    """
    exchange: Exchange = request.scope["exchange"]
    deadline = exchange.arrived + runtime.settings.request_timeout_ms / 1e3
    body = await runtime.intake.read(exchange, request.receive, deadline, most=most)
    fields = {} if optional and not body.strip() else json_object(body, needed)
    for name in fields:
        if name not in model.model_fields:
            raise UnknownField.at(f"/{escaped(name)}", f"no such field; {nearest(name, tuple(model.model_fields))}")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        places = [
            FieldError("".join(f"/{escaped(str(part))}" for part in fault["loc"]), fault["msg"])
            for fault in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidInput("; ".join(f"{place.pointer}: {place.detail}" for place in places), *places) from None


def described(model: type[BaseModel], example: dict[str, Any], *, optional: bool = False) -> dict[str, Any]:
    """`openapi_extra` of a route that reads such a body; the model holds no other models."""
    content = {"schema": model.model_json_schema(), "example": example}
    return {"requestBody": {"required": not optional, "content": {"application/json": content}}}
