"""Requests, answers, errors and what is served, as frames, and back. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import orjson

from models.encoder_spec import EncoderSpec
from models.encoder_weights import EncoderWeights
from models.errors import AttentionError, FieldError
from models.repository import BrokenEntry, EncoderEntry, ModelEntry
from models.spec import AttentionSpec
from models.tokenizer import Tokenizer, Tokens
from models.types import Array, Projections, SequenceInput
from models.weights import AttentionWeights
from service.backends.base import Backend, BackendInfo, Runner
from service.catalog import Catalog, Loaded, LoadedEncoder, LoadedModel
from service.devices import Device
from service.errors import InternalError, Later
from service.messages import Answer, AnswerOptions, AttentionInput, Options, TextInput, TextOptions, TopK
from service.remote.frames import BadFrame, Frame
from service.tickets import Limits

Head = dict[str, Any]
Verdicts = list[tuple[Answer, list[int]]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the engine gets it.

    Attributes:
        request: texts, if it brought such, are empty: `tokens` is what came of them.
        tokens: of each text, ids alone; None where the request brought embeddings.
        bytes_in: of the request as a caller sent it.
        deadline: by `time.monotonic`, which is one clock for all processes of a machine.
    """

    request: AttentionInput | TextInput
    tokens: list[Tokens] | None
    bytes_in: int
    deadline: float


def request_frame(asked: Asked, model: str) -> tuple[Head, list[Array]]:
    """A request for `model`, which is `name@version`; empty where it brings matrices of its own."""
    request = asked.request
    head: Head = {
        "options": request.options.model_dump_json(by_alias=True, exclude_defaults=True),
        "model": model,
        "form": request.form,
        "bytes_in": asked.bytes_in,
        "deadline": asked.deadline,
    }
    if asked.tokens is not None:
        return head | {"text": True}, [tokens.ids for tokens in asked.tokens]
    assert isinstance(request, AttentionInput)
    arrays: list[Array] = []
    has = []
    for sequence in request.sequences:
        parts = (sequence.inputs, sequence.attn_mask, sequence.attn_bias)
        arrays += [part for part in parts if part is not None]
        has.append(2 * (sequence.attn_mask is not None) + (sequence.attn_bias is not None))
    if (own := request.projections) is not None:
        arrays += [own.query, own.key, own.value]
    return head | {"has": has, "projections": own is not None}, arrays


def request_of(frame: Frame) -> Asked:
    """What `request_frame` was made of.

    Raises:
        BadFrame: if it is no request.
    """
    head, arrays = frame.head, iter(frame.arrays)
    try:
        model, bytes_in, deadline = head["model"], int(head["bytes_in"]), float(head["deadline"])
        if "text" in head:
            options = _options(TextOptions, head["options"], model)
            ids = list(arrays)
            text = TextInput(("",) * len(ids), head["form"], cast(TextOptions, options))
            return Asked(text, [Tokens(each, (), (), ()) for each in ids], bytes_in, deadline)
        sequences = [
            SequenceInput(next(arrays), next(arrays) if has & 2 else None, next(arrays) if has & 1 else None)
            for has in head["has"]
        ]
        own = Projections(next(arrays), next(arrays), next(arrays)) if head["projections"] else None
        options = _options(Options, head["options"], model)
        request = AttentionInput(tuple(sequences), head["form"], cast(Options, options), own)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise BadFrame(f"a request that cannot be read: {error!r}") from error
    return Asked(request, None, bytes_in, deadline)


@lru_cache(maxsize=256)
def _options(kind: type[AnswerOptions], text: str, model: str) -> AnswerOptions:
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in orjson.loads(text).items()}
    return kind.model_validate(fields).model_copy(update={"model": model or None})


Ran = tuple[float, float, int, int]
"""Of a ticket: when it was started and finished, its tokens, and its batch."""


def answer_frame(verdicts: Verdicts, ran: Ran) -> tuple[Head, list[Array]]:
    """The answer to a request, and how it was computed."""
    arrays: list[Array] = []
    names = []
    for answer, _ in verdicts:
        for value in answer.values():
            arrays += [value.indices, value.values] if isinstance(value, TopK) else [value]
        names.append([(name, isinstance(value, TopK)) for name, value in answer.items()])
    rows = [rows for _, rows in verdicts]
    return {"answers": names, "rows": rows, "ran": ran}, arrays


def answer_of(frame: Frame) -> tuple[Verdicts, Ran]:
    """What `answer_frame` was made of.

    Raises:
        BadFrame: if it is no answer.
    """
    head, arrays = frame.head, iter(frame.arrays)
    try:
        verdicts: Verdicts = []
        for names, rows in zip(head["answers"], head["rows"], strict=True):
            answer: Answer = {}
            for name, sparse in names:
                answer[name] = TopK(next(arrays), next(arrays)) if sparse else next(arrays)
            verdicts.append((answer, rows))
        started, finished, tokens, batch = head["ran"]
        return verdicts, (started, finished, tokens, batch)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise BadFrame(f"an answer that cannot be read: {error!r}") from error


def error_head(error: AttentionError) -> Head:
    """Why there is no answer."""
    fields = [(field.pointer, field.detail) for field in error.fields]
    later = error.retry_after_s if isinstance(error, Later) else None
    return {"code": error.code, "detail": error.detail, "fields": fields, "retry_after_s": later}


def error_of(head: Mapping[str, Any]) -> AttentionError:
    """The error that `error_head` was made of."""
    kind = _kinds().get(head["code"], InternalError)
    fields = [FieldError(*field) for field in head["fields"]]
    if issubclass(kind, Later):
        return kind(head["detail"], *fields, retry_after_s=head["retry_after_s"])
    return kind(head["detail"], *fields)


@lru_cache(maxsize=1)
def _kinds() -> dict[str, type[AttentionError]]:
    return {kind.code: kind for kind in _with_descendants(AttentionError)}


def _with_descendants(kind: type[AttentionError]) -> Iterator[type[AttentionError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _with_descendants(child)


# ---- what is served


class Elsewhere:
    """A runner, or a backend, of another process: it computes nothing, and what it takes is checked there."""

    batch_tokens = 0

    def __init__(self, info: BackendInfo) -> None:
        """Of the backend of that name."""
        self.info = info

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`: it is the engine that makes batches."""
        return n

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`: a request for which it matters is refused by the engine."""
        return False


def catalog_frame(catalog: Catalog, limits: Limits, serials: Mapping[int, str]) -> tuple[Head, list[Array]]:
    """What is served: all of it but the numbers.

    Args:
        catalog: of the engine.
        limits: of all that is in flight.
        serials: what tells each loaded model from others of its name, before and after; by `id`.
    """
    served = [model for versions in catalog.models.values() for model in versions.values()]
    tokenizers = [
        np.frombuffer(model.entry.tokenizer, np.uint8) for model in served if isinstance(model, LoadedEncoder)
    ]
    head = {
        "device": (catalog.device.kind, catalog.device.index, catalog.device.note),
        "backends": [backend.info._asdict() for backend in catalog.backends.values()],
        "models": [_model_head(model, serials[id(model)]) for model in served],
        "broken": [(entry.origin, entry.reason) for entry in catalog.broken],
        "failures": catalog.failures,
        "limits": asdict(limits),
    }
    return head, tokenizers


def _model_head(model: Loaded, serial: str) -> Head:
    entry = model.entry
    projects = isinstance(entry, ModelEntry) and entry.weights.output is not None
    return {
        "serial": serial,
        "encoder": isinstance(entry, EncoderEntry),
        "spec": entry.spec.model_dump_json(),
        "origin": entry.origin,
        "projects": projects,
        "parity": dict(model.parity),
        "digest": model.digest,
    }


def catalog_of(frame: Frame, known: dict[str, Loaded]) -> tuple[Catalog, Limits]:
    """What `catalog_frame` was made of, with stand-ins for runners and numbers.

    Args:
        frame: the frame.
        known: models by serial, so that statistics of those that are served already go on; brought up to date.
    """
    head, tokenizers = frame.head, iter(frame.arrays)
    backends = {info["name"]: Elsewhere(BackendInfo(**info)) for info in head["backends"]}
    runners = cast(Mapping[str, Runner], backends)
    catalog = Catalog(
        Device(*head["device"]),
        cast(dict[str, Backend], backends),
        projections=dict(runners),
        broken=[BrokenEntry(*entry) for entry in head["broken"]],
        failures=head["failures"],
    )
    before, serials = dict(known), [said["serial"] for said in head["models"]]
    known.clear()
    for said, serial in zip(head["models"], serials, strict=True):
        tokenizer = next(tokenizers).tobytes() if said["encoder"] else b""
        model = known[serial] = before.get(serial) or _model_of(said, tokenizer, runners)
        catalog.models.setdefault(model.entry.spec.name, {})[model.entry.spec.version] = model
    return catalog, Limits(**head["limits"])


def _model_of(said: Head, tokenizer: bytes, runners: Mapping[str, Runner]) -> Loaded:
    none = np.empty((0, 0), np.float32)
    if said["encoder"]:
        spec = EncoderSpec.model_validate_json(said["spec"])
        entry = EncoderEntry(spec, EncoderWeights(none, none, None, none, none, ()), tokenizer, said["origin"])
        reader = Tokenizer(tokenizer, spec.vocab_size)
        return LoadedEncoder(entry, reader, runners, said["parity"], said["digest"])
    weights = AttentionWeights(none, none, none, output=none if said["projects"] else None)
    layer = ModelEntry(AttentionSpec.model_validate_json(said["spec"]), weights, said["origin"])
    return LoadedModel(layer, runners, said["parity"], said["digest"])


def loaded_of(catalog: Catalog, wanted: Iterable[str]) -> list[Loaded]:
    """The models that are called so, `name@version` each."""
    return [catalog.find(name) for name in wanted]
