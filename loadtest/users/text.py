"""Readers: they post a text and look at which word attends to which, in the first layer of an encoder."""

from argparse import Namespace
from functools import partial
from typing import ClassVar, Final

import numpy as np
import orjson

from loadtest.checks import WrongAnswer, load_json
from loadtest.session import Session
from loadtest.texts import check_text, draw_text
from loadtest.users.base import Caller, Script
from loadtest.wire import Answer, Request, Service

TEXTS: Final = 60
"""Requests that are made before the start; readers go round them, each from a place of its own."""

STRIDE: Final = 7
"""How far apart two readers start; it shares no factor with TEXTS."""

AVERAGE_SHARE: Final = 0.25
"""Share of the requests that want the mean over the heads."""


class TextUser(Caller):
    """A reader. Needs an encoder that the service has, which not every service does."""

    on_request = True
    requests: ClassVar[list[Request]]

    @classmethod
    def prepare(cls, session: Session, service: Service, options: Namespace) -> None:
        """Make the requests; see `Caller`."""
        super().prepare(session, service, options)
        random = np.random.default_rng(options.seed)
        cls.requests = [_request(service, options.encoder, random) for _ in range(TEXTS)]

    def script(self) -> Script:
        """Round the requests, for ever."""
        while True:
            yield self.requests[(self.number * STRIDE + self.asked) % len(self.requests)]


def _request(service: Service, encoder: str, random: np.random.Generator) -> Request:
    text, average = draw_text(random), bool(random.random() < AVERAGE_SHARE)
    fields = {"model": encoder, "text": text, "layers": [0], "average_heads": average}
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
    check = partial(_check, text, average)
    return service.request("POST", "/v1/text/attention", f"text {encoder}", check, headers, orjson.dumps(fields))


def _check(text: str, average: bool, answer: Answer) -> None:
    document = load_json(answer.body, "the answer")
    try:
        check_text(text, average_heads=average, answer=document)
    except (KeyError, TypeError, IndexError) as error:
        raise WrongAnswer(f"the answer cannot be read: {error!r}") from error
