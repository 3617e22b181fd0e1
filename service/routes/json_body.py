"""JSON bodies of ordinary endpoints, read within the limits of all bodies and checked by a model."""

from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from models.errors import FieldError, InvalidInput
from service.codecs.strict_json import escaped, json_object
from service.observe import Exchange
from service.runtime import Runtime

M = TypeVar("M", bound=BaseModel)


async def read(runtime: Runtime, request: Request, model: type[M], needed: str) -> M:
    """The body of a request.

    Args:
        runtime: whose limits hold.
        request: its Content-Type is not looked at.
        model: what the body must be.
        needed: the field it cannot do without, for messages.

    Raises:
        InvalidInput: if it is not what the model says, with a pointer to each place.
        AttentionError: if it cannot be read, as by `Intake.read` and `json_object`.
    """
    exchange: Exchange = request.scope["exchange"]
    deadline = exchange.arrived + runtime.settings.request_timeout_ms / 1e3
    fields = json_object(await runtime.intake.read(exchange, request.receive, deadline), needed)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        places = [
            FieldError("".join(f"/{escaped(str(part))}" for part in fault["loc"]), fault["msg"])
            for fault in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidInput("; ".join(f"{place.pointer}: {place.detail}" for place in places), *places) from None


def described(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads such a body; the model holds no other models."""
    content = {"schema": model.model_json_schema(), "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}
