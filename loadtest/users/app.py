"""Programs that send embeddings and take weights and outputs, each in a format of its own."""

from argparse import Namespace
from functools import partial
from typing import ClassVar, Final

from loadtest.checks import check_answer
from loadtest.payloads import Format, Payload, generate, parse_models, parse_tokens
from loadtest.session import Session
from loadtest.users.base import Caller, Script
from loadtest.wire import Request, Service

PAYLOADS: Final = 120
"""Requests made for each format; users go round them, each from a place of its own."""

STRIDE: Final = 7
"""How far apart two users start. It shares no factor with PAYLOADS, so the first 120 users start in 120 places."""


class AttentionUser(Caller):
    """A program that asks for attention. Subclasses say in which format."""

    abstract = True
    format: ClassVar[Format]
    requests: ClassVar[list[Request]]

    @classmethod
    def prepare(cls, session: Session, service: Service, options: Namespace) -> None:
        """Make the requests; see `Caller`."""
        super().prepare(session, service, options)
        models, tokens = parse_models(options.models), parse_tokens(options.tokens)
        payloads = generate(cls.format, models, seed=options.seed, count=PAYLOADS, tokens=tokens)
        cls.requests = [request_of(service, payload) for payload in payloads]

    def script(self) -> Script:
        """Round the requests, for ever."""
        while True:
            yield self.requests[(self.number * STRIDE + self.asked) % len(self.requests)]


class JsonUser(AttentionUser):
    """Numbers in JSON, both ways."""

    format = "json"


class Base64User(AttentionUser):
    """Tensor objects in JSON, both ways."""

    format = "base64"


class BinaryUser(AttentionUser):
    """safetensors, both ways."""

    format = "safetensors"


class V2BinaryUser(AttentionUser):
    """The Open Inference Protocol over REST, with binary tensors both ways."""

    format = "v2"


def request_of(service: Service, payload: Payload) -> Request:
    """A payload as a request to a service, counted by format and model."""
    name = f"{payload.format} {payload.model}"
    return service.request("POST", payload.path, name, partial(check_answer, payload), payload.headers, payload.body)
