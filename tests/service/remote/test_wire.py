"""Requests, answers, errors and catalogs survive the way to another process and back."""

import numpy as np
import pytest

from models.errors import AttentionError, FieldError, NumericOverflow
from models.tokenizer import Tokens
from models.types import Projections, SequenceInput
from service import errors
from service.catalog import load_catalog
from service.errors import DeadlineExceeded, EngineLost, InternalError, Later, MethodNotAllowed, QueueFull
from service.messages import AttentionInput, Options, TextInput, TextOptions, TopK
from service.metrics import Metrics
from service.remote.frames import BadFrame, Frame
from service.remote.wire import (
    Asked,
    answer_frame,
    answer_of,
    catalog_frame,
    catalog_of,
    error_head,
    error_of,
    request_frame,
    request_of,
)
from service.tickets import Limits
from tests.service.remote.test_frames import packed, unpacked, whole

LIMITS = Limits(requests=1, sequences=2, tokens=3, bytes=4, batch_sequences=5)


def carried(head, arrays) -> Frame:
    """A frame as the other process gets it."""
    return unpacked(*whole(packed(head, arrays)))


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def same(one, other):
    assert (one is None) == (other is None)
    assert one is None or (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize("own", [None, Projections(numbers(4, 2), numbers(4, 2), numbers(4, 3))])
@pytest.mark.parametrize("form", ["one", "list", "stack"])
def test_a_request_arrives_as_it_was(form, own):
    sequences = (
        SequenceInput(numbers(3, 4)),
        SequenceInput(numbers(2, 4), np.eye(2, dtype=bool)),
        SequenceInput(numbers(1, 4), None, numbers(1, 1)),
        SequenceInput(numbers(2, 4), np.zeros((2, 2), bool), numbers(2, 2, 2)),
    )
    options = Options(**{"return": ["weights", "outputs"], "top_k": 2, "scale": 0.1, "is_causal": True,
                         "dtype": "float16", "backend": "eager", "model": "lesson"})  # fmt: skip
    asked = Asked(AttentionInput(sequences, form, options, own), None, 1_234, 56.789)

    found = request_of(carried(*request_frame(asked, "lesson@1")))

    assert (found.bytes_in, found.deadline, found.tokens) == (1_234, 56.789, None)
    assert found.request.options == options.model_copy(update={"model": "lesson@1"})
    assert found.request.form == form
    assert len(found.request.sequences) == len(sequences)
    for one, other in zip(found.request.sequences, sequences, strict=True):
        same(one.inputs, other.inputs)
        same(one.attn_mask, other.attn_mask)
        same(one.attn_bias, other.attn_bias)
    assert (found.request.projections is None) == (own is None)
    if own is not None:
        for name in ("query", "key", "value"):
            same(getattr(found.request.projections, name), getattr(own, name))


def test_of_a_text_its_tokens_arrive():
    options = TextOptions(layers=(0, 2), average_heads=True)
    tokens = [Tokens(np.arange(n), ("a",) * n, ((0, 0),) * n, (False,) * n) for n in (3, 1)]
    asked = Asked(TextInput(("x y z", "x"), "list", options), tokens, 8, 1.0)

    found = request_of(carried(*request_frame(asked, "mini@2")))

    assert found.request == TextInput(("", ""), "list", options.model_copy(update={"model": "mini@2"}))
    for one, other in zip(found.tokens, tokens, strict=True):
        same(one.ids, other.ids)


@pytest.mark.parametrize("missing", ["options", "model", "bytes_in", "deadline", "has", "projections"])
def test_half_a_request_is_none(missing):
    asked = Asked(AttentionInput((SequenceInput(numbers(2, 3)),), "one", Options()), None, 1, 1.0)
    head, arrays = request_frame(asked, "lesson@1")
    del head[missing]

    with pytest.raises(BadFrame):
        request_of(carried(head, arrays))
    with pytest.raises(BadFrame):
        request_of(carried(request_frame(asked, "lesson@1")[0], []))


def test_an_answer_arrives_as_it_was():
    verdicts = [
        ({"outputs": numbers(3, 2), "weights": TopK(np.array([[2, 1]], np.int32), numbers(1, 2))}, [0, 2]),
        ({"layers.5.scores": np.full((2, 2), -np.inf, np.float32)}, []),
    ]

    found, ran = answer_of(carried(*answer_frame(verdicts, (1.25, 2.5, 3, 4))))

    assert ran == (1.25, 2.5, 3, 4)
    assert [rows for _, rows in found] == [[0, 2], []]
    assert [list(answer) for answer, _ in found] == [["outputs", "weights"], ["layers.5.scores"]]
    same(found[0][0]["outputs"], verdicts[0][0]["outputs"])
    same(found[0][0]["weights"].indices, verdicts[0][0]["weights"].indices)
    same(found[0][0]["weights"].values, verdicts[0][0]["weights"].values)
    same(found[1][0]["layers.5.scores"], verdicts[1][0]["layers.5.scores"])


def test_half_an_answer_is_none():
    head, arrays = answer_frame([({"outputs": numbers(3, 2)}, [])], (1.0, 2.0, 3, 1))

    for broken in ((head, []), ({**head, "rows": []}, arrays), ({}, arrays)):
        with pytest.raises(BadFrame):
            answer_of(carried(*broken))


@pytest.mark.parametrize(
    "error",
    [
        QueueFull("full", retry_after_s=7.5),
        EngineLost("gone", FieldError("/model", "it"), retry_after_s=1),
        DeadlineExceeded("late"),
        NumericOverflow.at("/inputs/3", "too large"),
    ],
)
def test_an_error_arrives_as_it_was(error):
    found = error_of(carried(error_head(error), []).head)

    assert type(found) is type(error)
    assert (found.detail, found.fields) == (error.detail, error.fields)
    if isinstance(error, Later):
        assert found.retry_after_s == error.retry_after_s


def test_every_error_of_the_service_has_a_code_of_its_own():
    """So that none arrives as another."""

    def below(kind):
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    own = [kind for kind in below(AttentionError) if kind.__module__ in (errors.__name__, "models.errors")]
    for kind in own:
        if kind is not MethodNotAllowed:
            assert type(error_of(error_head(kind("x")))) is kind
    assert type(error_of({"code": "of a newer version", "detail": "x", "fields": []})) is InternalError


def test_a_worker_knows_of_models_all_but_their_numbers(settings):
    catalog = load_catalog(settings, Metrics())
    served = [model for versions in catalog.models.values() for model in versions.values()]
    serials = {id(model): f"1.{i}" for i, model in enumerate(served)}
    catalog.failures.append("x disagrees")
    known = {}

    found, limits = catalog_of(carried(*catalog_frame(catalog, LIMITS, serials)), known)

    assert limits == LIMITS
    assert (found.device, found.failures, found.broken) == (catalog.device, catalog.failures, catalog.broken)
    assert {name: backend.info for name, backend in found.backends.items()} == {
        name: backend.info for name, backend in catalog.backends.items()
    }
    assert {name: list(versions) for name, versions in found.models.items()} == {
        name: list(versions) for name, versions in catalog.models.items()
    }
    assert list(known) == list(serials.values())
    for model, there in zip(known.values(), served, strict=True):
        assert model.entry.spec == there.entry.spec
        assert model.entry.weights.tensor_names == there.entry.weights.tensor_names
        assert (model.entry.origin, model.digest, dict(model.parity)) == (
            there.entry.origin, there.digest, dict(there.parity))  # fmt: skip
        assert list(model.runners) == list(there.runners)
    assert set(found.projections) == set(catalog.projections)


def test_statistics_go_on_until_a_model_is_loaded_again(settings):
    catalog = load_catalog(settings, Metrics())
    served = [model for versions in catalog.models.values() for model in versions.values()]
    serials = {id(model): model.entry.spec.id for model in served}
    known = {}
    before, _ = catalog_of(carried(*catalog_frame(catalog, LIMITS, serials)), known)
    serials[id(catalog.models["lesson"]["1"])] = "another"

    after, _ = catalog_of(carried(*catalog_frame(catalog, LIMITS, serials)), known)

    assert after.layer("single-head-64") is before.layer("single-head-64")
    assert after.layer("lesson") is not before.layer("lesson")
    assert set(known) == set(serials.values())
