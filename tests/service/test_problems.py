"""Errors as problem documents."""

import json
from typing import Any

import pytest

from models import errors as model_errors
from models.errors import AttentionError, FieldError, InvalidInput, InvalidModel, NonFinite, ShapeMismatch
from service import errors
from service.metrics import OUTCOMES
from service.problems import (
    MOST_TEXT,
    NEVER_ANSWERED,
    OPEN_INFERENCE,
    RFC9457,
    dialect_of,
    known_problems,
    outcome_of,
    problem,
    rpc_code_of,
    status_of,
    title_of,
)

STATUSES: list[tuple[type[AttentionError], int, str, str]] = [
    (errors.Unparsable, 400, "unparsable", "invalid"),
    (errors.Unauthorized, 401, "unauthorized", "invalid"),
    (errors.Forbidden, 403, "forbidden", "invalid"),
    (errors.NotFound, 404, "not-found", "invalid"),
    (errors.MethodNotAllowed, 405, "method-not-allowed", "invalid"),
    (errors.NotAcceptable, 406, "not-acceptable", "invalid"),
    (errors.ClientTimeout, 408, "client-timeout", "expired"),
    (errors.Conflict, 409, "conflict", "invalid"),
    (errors.TooLarge, 413, "too-large", "rejected"),
    (errors.UnsupportedMediaType, 415, "unsupported-media-type", "invalid"),
    (InvalidInput, 422, "invalid-input", "invalid"),
    (ShapeMismatch, 422, "shape-mismatch", "invalid"),
    (NonFinite, 422, "non-finite", "invalid"),
    (model_errors.NumericOverflow, 422, "numeric-overflow", "invalid"),
    (errors.WrongType, 422, "wrong-type", "invalid"),
    (errors.UnknownField, 422, "unknown-field", "invalid"),
    (errors.InvalidOption, 422, "invalid-option", "invalid"),
    (errors.ConflictingFields, 422, "conflicting-fields", "invalid"),
    (errors.UnservableModel, 422, "unservable-model", "invalid"),
    (errors.RateLimited, 429, "rate-limited", "rejected"),
    (errors.BackendFailed, 500, "backend-failed", "failed"),
    (errors.InternalError, 500, "internal-error", "failed"),
    (errors.NotOffered, 501, "not-offered", "invalid"),
    (errors.Unavailable, 503, "unavailable", "rejected"),
    (errors.QueueFull, 503, "queue-full", "rejected"),
    (errors.Draining, 503, "draining", "rejected"),
    (errors.NotInstalled, 503, "not-installed", "rejected"),
    (errors.NotReady, 503, "not-ready", "rejected"),
    (errors.WorkerLost, 503, "worker-lost", "rejected"),
    (errors.EngineLost, 503, "engine-lost", "rejected"),
    (errors.DeadlineExceeded, 504, "deadline-exceeded", "expired"),
]


def make(cls: type[AttentionError], detail: str = "why", *fields: FieldError) -> AttentionError:
    return errors.MethodNotAllowed(detail, ("GET",)) if cls is errors.MethodNotAllowed else cls(detail, *fields)


def document(error: AttentionError) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(problem(error, "some id")[1])
    return found


@pytest.mark.parametrize(("cls", "status", "code", "outcome"), STATUSES)
def test_every_error_has_its_status_and_type(cls: type[AttentionError], status: int, code: str, outcome: str):
    """The contract's table; clients branch on `type`, load balancers on `status`."""
    found_status, body, _ = problem(make(cls), "some id")
    found = json.loads(body)

    assert found_status == status
    assert found["status"] == status
    assert found["type"] == f"/problems/{code}"
    assert found["detail"] == "why"
    assert found["instance"] == "some id"
    assert found["title"] == title_of(cls)
    assert outcome_of(status) == outcome
    assert outcome in OUTCOMES


def test_the_table_has_every_error_that_can_be_answered():
    """A new error class without a row here is an oversight."""
    assert {cls for cls, *_ in STATUSES} == set(known_problems())


def test_every_error_class_has_a_status_a_code_and_a_title_of_its_own():
    """Also those that a caller never sees: a bug must not turn into another one."""
    classes = {
        cls for module in (model_errors, errors) for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, AttentionError)
    }  # fmt: skip
    for cls in classes:
        assert 400 <= status_of(cls) < 600
        assert title_of(cls)
        assert not title_of(cls).endswith(".")
    codes = [cls.code for cls in classes]
    assert len(set(codes)) == len(codes)
    assert set(known_problems()) == classes - NEVER_ANSWERED


def test_faults_of_the_service_itself_are_500():
    """A model that cannot be served is never the caller's fault."""
    assert status_of(InvalidModel) == 500
    assert status_of(AttentionError) == 500
    assert status_of(errors.ConfigurationError) == 500


def test_fields_at_fault_are_listed_with_their_pointers():
    """`errors` is there where fields are, and only there."""
    found = document(ShapeMismatch("both", FieldError("/inputs/3/17", "one"), FieldError("/attn_mask", "two")))

    assert found["errors"] == [
        {"pointer": "/inputs/3/17", "detail": "one"}, {"pointer": "/attn_mask", "detail": "two"},
    ]  # fmt: skip
    assert document(NonFinite.at("/inputs/0", "is NaN"))["detail"] == "/inputs/0: is NaN"
    assert "errors" not in document(errors.NotFound("no"))


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (errors.QueueFull("full", retry_after_s=0.2), {b"retry-after": b"1"}),
        (errors.QueueFull("full", retry_after_s=7.1), {b"retry-after": b"8"}),
        (errors.Draining("bye"), {b"retry-after": b"1"}),
        (errors.NotReady("wait", retry_after_s=5), {b"retry-after": b"5"}),
        (errors.RateLimited("slowly", retry_after_s=60), {b"retry-after": b"60"}),
        (errors.MethodNotAllowed("no", ("GET", "HEAD")), {b"allow": b"GET, HEAD"}),
        (errors.Unauthorized("key"), {b"www-authenticate": b"Bearer"}),
        (errors.Forbidden("key"), {}),
        (errors.DeadlineExceeded("late"), {}),
        (InvalidInput("wrong"), {}),
    ],
)
def test_some_problems_carry_a_header(error: AttentionError, headers: dict[bytes, bytes]):
    """Retry-After in whole seconds rounded up, Allow with 405, WWW-Authenticate with 401."""
    assert dict(problem(error, "id")[2]) == headers


def test_a_detail_may_quote_anything_that_a_caller_sent():
    """Half a surrogate pair can be a field's name; it cannot be sent as it is, and it was a 500 once."""
    found = document(errors.UnknownField.at("/\ud800", "no such field '\udfff'"))

    assert found["errors"] == [{"pointer": "/\\ud800", "detail": "no such field '\\udfff'"}]


def test_a_detail_never_echoes_megabytes():
    """Names of fields are the caller's and may be of any length."""
    found = document(errors.UnknownField.at("/" + "a" * 1_000_000, "b" * 1_000_000))

    assert len(found["detail"]) == MOST_TEXT + 1
    assert found["detail"].endswith("…")
    assert len(found["errors"][0]["pointer"]) == MOST_TEXT + 1


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "ok"), (204, "ok"), (307, "ok"), (400, "invalid"), (404, "invalid"), (408, "expired"), (413, "rejected"),
     (422, "invalid"), (429, "rejected"), (499, "cancelled"), (500, "failed"), (502, "failed"), (503, "rejected"),
     (504, "expired")],
)  # fmt: skip
def test_every_status_has_an_outcome(status: int, outcome: str):
    """The outcomes of the metrics sum to the requests received."""
    assert outcome_of(status) == outcome


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Unparsable("no"), 400),
        (NonFinite.at("/inputs/0", "is NaN"), 400),
        (errors.UnknownField("no"), 400),
        (errors.UnservableModel("broken"), 400),
        (errors.Unauthorized("key"), 401),
        (errors.Forbidden("key"), 403),
        (errors.NotFound("no"), 404),
        (errors.NotInstalled("no", retry_after_s=60), 404),
        (errors.MethodNotAllowed("no", ("POST",)), 405),
        (errors.Conflict("no"), 409),
        (errors.TooLarge("no"), 413),
        (errors.UnsupportedMediaType("no"), 415),
        (errors.RateLimited("slowly"), 429),
        (errors.BackendFailed("bug"), 500),
        (errors.QueueFull("full"), 503),
        (errors.Draining("bye"), 503),
        (errors.NotReady("wait"), 503),
        (errors.DeadlineExceeded("late"), 504),
    ],
)
def test_the_open_inference_protocol_has_its_own_statuses_and_its_own_field(error: AttentionError, status: int):
    """Its clients read `error` from any answer but a 200; what RFC 9457 says stands beside it."""
    found, body, headers = problem(error, "some id", dialect_of("/v2/models/x/infer"))

    fields = json.loads(body)
    assert found == fields["status"] == status
    assert fields["error"] == fields["detail"] == error.detail
    assert fields["type"] == f"/problems/{error.code}"
    assert fields["instance"] == "some id"
    assert (b"retry-after" in dict(headers)) is (status in (429, 503))


@pytest.mark.parametrize("path", ["/", "/v1/attention", "/v20", "/v2x/models", "/healthz/ready"])
def test_every_other_path_answers_as_rfc_9457_has_it(path: str):
    assert dialect_of(path) is RFC9457
    assert dialect_of("/v2") is OPEN_INFERENCE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Unparsable, "INVALID_ARGUMENT"),
        (NonFinite, "INVALID_ARGUMENT"),
        (errors.UnservableModel, "INVALID_ARGUMENT"),
        (errors.Unauthorized, "UNAUTHENTICATED"),
        (errors.Forbidden, "PERMISSION_DENIED"),
        (errors.NotFound, "NOT_FOUND"),
        (errors.NotInstalled, "NOT_FOUND"),
        (errors.Conflict, "FAILED_PRECONDITION"),
        (errors.TooLarge, "RESOURCE_EXHAUSTED"),
        (errors.RateLimited, "RESOURCE_EXHAUSTED"),
        (errors.ClientGone, "CANCELLED"),
        (errors.BackendFailed, "INTERNAL"),
        (errors.InternalError, "INTERNAL"),
        (errors.QueueFull, "UNAVAILABLE"),
        (errors.Draining, "UNAVAILABLE"),
        (errors.NotReady, "UNAVAILABLE"),
        (errors.ClientTimeout, "DEADLINE_EXCEEDED"),
        (errors.DeadlineExceeded, "DEADLINE_EXCEEDED"),
    ],
)
def test_grpc_has_codes_of_its_own(error: type[AttentionError], code: str):
    assert rpc_code_of(error) == code


def test_every_error_that_grpc_can_answer_has_a_code():
    """405, 406, 415 and 501 are of HTTP: methods and media types."""
    http_only = {errors.MethodNotAllowed, errors.NotAcceptable, errors.NotOffered, errors.UnsupportedMediaType}

    assert {cls for cls in known_problems() if rpc_code_of(cls) == "UNKNOWN"} == http_only
