import asyncio
import base64
import time

import pytest

from service.access import Access
from service.errors import Forbidden, RateLimited, Unauthorized
from service.exchange import Exchange
from service.metrics import Metrics
from service.peers import Alone
from service.settings import Settings


class Gate:
    """Access of a service with these settings, and its metrics."""

    def __init__(self, **fields):
        self.metrics = Metrics()
        settings = Settings(**fields)
        self.access = Access(settings, self.metrics, Alone(settings.rate_limit))

    def check(self, client=("192.0.2.1", 1234), **headers):
        """Raises unless a request with these headers may pass."""
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        asyncio.run(self.access.check(Exchange({"headers": raw}), client))

    def refused(self):
        return self.metrics.registry.get_sample_value("attention_rejected_total", {"reason": "rate"}) or 0


@pytest.mark.parametrize("client", [("192.0.2.1", 1), None])
def test_everybody_may_pass_by_default(client):
    """`make serve` needs no key; a client is unknown on a unix socket."""
    gate = Gate()

    for _ in range(1_000):
        gate.check(client)
    gate.check(client, authorization="Bearer whatever")
    assert gate.refused() == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer two"},
        {"authorization": "bearer two"},
        {"authorization": "BEARER   two "},
        {"x_api_key": "two"},
        {"x_api_key": "two", "authorization": "Basic dXNlcjpwYXNz"},
    ],
    ids=str,
)
def test_a_known_key_passes_in_either_header(headers):
    """A proxy in front may use Authorization for itself."""
    Gate(api_keys="one,two").check(**headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer  "},
        {"authorization": "Basic two"},
        {"authorization": "two"},
        {"x_api_key": ""},
    ],
    ids=str,
)
def test_without_a_key_the_caller_is_told_to_send_one(headers):
    with pytest.raises(Unauthorized, match="Authorization: Bearer KEY"):
        Gate(api_keys="one,two").check(**headers)


def basic(credentials):
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


@pytest.mark.parametrize("credentials", ["me:two", "two:", "two:whatever", ":two", "one:two"])
def test_a_client_that_can_send_a_user_and_a_password_only_sends_the_key_as_either(credentials):
    """The authentication plugin of tritonclient is one of those."""
    Gate(api_keys="one,two").check(authorization=basic(credentials))


@pytest.mark.parametrize(
    ("credentials", "error"), [("me:three", Forbidden), ("two", Unauthorized), (":", Unauthorized), ("", Unauthorized)]
)
def test_credentials_without_a_known_key_are_refused(credentials, error):
    with pytest.raises(error):
        Gate(api_keys="one,two").check(authorization=basic(credentials))


@pytest.mark.parametrize("key", ["three", "tw", "twoo", "TWO", "one,two", "ключ"])
def test_a_key_that_is_not_known_is_refused_and_not_repeated(key):
    """Nothing of a key goes into an answer or a log."""
    for headers in ({"authorization": f"Bearer {key}"}, {"x_api_key": key}):
        with pytest.raises(Forbidden) as error:
            Gate(api_keys="one,two").check(**headers)
        assert str(error.value) == "the API key is not known"


def test_a_key_outside_ascii_passes():
    """Headers are bytes; they are compared as the bytes of UTF-8."""
    Gate(api_keys="schlüssel,ключ").check(x_api_key="ключ")


def test_keys_are_not_kept_in_the_clear():
    """A dump of the memory of `Access` must not give them away."""
    assert "secret" not in str(vars(Gate(api_keys="secret").access))


def test_a_caller_over_its_rate_is_refused_until_the_window_has_moved():
    gate = Gate(rate_limit="2/minute")
    gate.check()
    gate.check()

    with pytest.raises(RateLimited, match="more than 2 per 1 minute from one caller") as error:
        gate.check()

    assert 50 < error.value.retry_after_s <= 60
    assert gate.refused() == 1


def test_the_rate_holds_again_when_the_window_has_moved(monkeypatch):
    """Moving: the first request leaves the window a minute after it came, the second later."""
    gate, now = Gate(rate_limit="2/minute"), [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    gate.check()
    now[0] += 40
    gate.check()
    now[0] += 10

    with pytest.raises(RateLimited) as error:
        gate.check()
    assert error.value.retry_after_s == pytest.approx(10, abs=0.1)

    now[0] += 11
    gate.check()
    with pytest.raises(RateLimited) as error:
        gate.check()
    assert error.value.retry_after_s == pytest.approx(39, abs=0.1)


def test_retry_after_is_a_second_at_least():
    gate = Gate(rate_limit="1/second")
    gate.check()

    with pytest.raises(RateLimited) as error:
        gate.check()

    assert error.value.retry_after_s == 1


def test_one_caller_does_not_use_up_anothers_rate():
    """Without keys a caller is its address, from whatever port."""
    gate = Gate(rate_limit="1/hour")
    gate.check(("192.0.2.1", 1))

    gate.check(("192.0.2.2", 1))
    gate.check(None)
    for client in (("192.0.2.1", 2), ("192.0.2.2", 2), None):
        with pytest.raises(RateLimited):
            gate.check(client)


def test_with_keys_a_caller_is_its_key():
    """Many callers share an address behind a proxy, and one has many addresses."""
    gate = Gate(rate_limit="1/hour", api_keys="one,two")
    gate.check(("192.0.2.1", 1), x_api_key="one")
    gate.check(("192.0.2.1", 1), x_api_key="two")

    with pytest.raises(RateLimited):
        gate.check(("192.0.2.9", 1), authorization="Bearer one")


def test_a_request_without_a_key_uses_up_nobodys_rate():
    gate = Gate(rate_limit="1/hour", api_keys="one")
    for _ in range(3):
        with pytest.raises(Unauthorized):
            gate.check()
        with pytest.raises(Forbidden):
            gate.check(x_api_key="x")

    gate.check(x_api_key="one")


# ---- admins


class AdminGate(Gate):
    """What stands before an operation for admins only: first what everybody passes, then that."""

    def check(self, **headers):
        super().check(**headers)
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.access.check_admin(Exchange({"headers": raw}))


@pytest.mark.parametrize(
    ("keys", "headers"),
    [("", {}), ("", {"x_api_key": "one"}), ("one", {"x_api_key": "one"}), ("one", {"authorization": "Bearer one"})],
    ids=str,
)
def test_without_admin_keys_nobody_is_an_admin(keys, headers):
    """Whoever runs the service has not said that anybody may; whoever wants to is told how."""
    with pytest.raises(Forbidden, match="set ATTENTION_ADMIN_KEYS"):
        AdminGate(api_keys=keys).check(**headers)


@pytest.mark.parametrize("keys", ["", "one"])
def test_an_admin_has_one_of_the_admin_keys(keys):
    """With or without keys for the others, in either header."""
    gate = AdminGate(api_keys=keys, admin_keys="root, toor")

    for headers in ({"x_api_key": "root"}, {"authorization": "Bearer toor"}):
        gate.check(**headers)
    with pytest.raises(Unauthorized):
        gate.check()
    with pytest.raises(Forbidden):
        gate.check(x_api_key="one")
    with pytest.raises(Forbidden):
        gate.check(x_api_key="roo")


def test_an_admin_key_is_an_api_key_too():
    """An admin who may load a model may also ask it."""
    Gate(api_keys="one", admin_keys="root").check(x_api_key="root")


def test_admin_keys_alone_ask_nobody_else_for_a_key():
    Gate(admin_keys="root").check()


def test_admin_keys_are_not_kept_in_the_clear():
    assert "secret" not in str(vars(Gate(admin_keys="secret").access))


# ---- tutors


@pytest.mark.parametrize("other", ["", "root"])
def test_a_tutor_is_whoever_has_a_tutor_key(other):
    """And nobody else: an admin sees no solutions, a tutor changes no models."""
    access = AdminGate(admin_keys=other, tutor_keys="mentor").access

    access.check_tutor(Exchange({"headers": [(b"x-api-key", b"mentor")]}))
    with pytest.raises(Unauthorized):
        access.check_tutor(Exchange({"headers": []}))
    with pytest.raises(Forbidden, match="ATTENTION_TUTOR_KEYS"):
        access.check_tutor(Exchange({"headers": [(b"x-api-key", b"root")]}))
    with pytest.raises(Forbidden, match="ATTENTION_ADMIN_KEYS"):
        access.check_admin(Exchange({"headers": [(b"x-api-key", b"mentor")]}))


def test_without_tutor_keys_nobody_is_a_tutor():
    with pytest.raises(Forbidden, match="set ATTENTION_TUTOR_KEYS"):
        AdminGate(admin_keys="root").access.check_tutor(Exchange({"headers": [(b"x-api-key", b"root")]}))


def test_a_tutor_key_lets_through_where_keys_are_asked_for():
    Gate(api_keys="one", tutor_keys="mentor").check(x_api_key="mentor")
    assert "secret" not in str(vars(Gate(tutor_keys="secret").access))
