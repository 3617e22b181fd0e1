"""The application in this process, without a server: readiness, access, CORS, HEAD, pages."""

import asyncio
import gzip
import json
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import pytest
from wire import JSON, PROBLEM, Reply, asgi

from service.app import Service, create_app
from service.problems import known_problems
from service.settings import Settings

BODY = json.dumps({"model": "lesson", "inputs": [[1, 0, 0, 0, 0.5]]}).encode()


def ask(app: Service, method: str, path: str, body: bytes = b"", query: str = "", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(asgi(app, method, path, body, named, query))


def post(app: Service, **headers: str) -> Reply:
    return ask(app, "POST", "/v1/attention", BODY, content_type=JSON, **headers)


@pytest.fixture
def app(settings: Settings) -> Service:
    """An application whose models are not loaded: its lifespan has not begun."""
    return create_app(settings)


# ---- readiness


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/attention"), ("GET", "/v1/models"), ("GET", "/v1/models/x"), ("GET", "/healthz/ready")],
)
def test_until_models_are_loaded_the_service_says_that_it_is_not_ready(app: Service, method: str, path: str):
    """503 with Retry-After, never a wrong answer or a 500."""
    reply = post(app) if method == "POST" else ask(app, method, path)

    assert reply.status == 503
    assert reply.json()["type"] == "/problems/not-ready"
    assert reply.json()["detail"] == "models are still being loaded and checked"
    assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", ["/healthz/live", "/metrics", "/", "/docs", "/openapi.json", "/problems"])
def test_until_models_are_loaded_the_rest_is_served(app: Service, path: str):
    """Whoever waits for readiness must be able to see why."""
    assert ask(app, "GET", path).status == 200


def test_readiness_is_a_metric_too(app: Service):
    """Zero until it is ready."""
    assert b"\nattention_ready 0.0\n" in ask(app, "GET", "/metrics").body


def test_while_draining_new_work_is_refused_and_connections_are_closed(app: Service):
    """So that load balancers and keep-alive clients go elsewhere."""
    app.runtime.begin_drain()

    refused, ready, live = post(app), ask(app, "GET", "/healthz/ready"), ask(app, "GET", "/healthz/live")

    assert refused.status == ready.status == 503
    assert refused.json()["type"] == "/problems/draining"
    assert refused.headers["retry-after"] == "1"
    assert ready.json()["detail"] == "the service is shutting down"
    assert live.status == 200
    assert {refused.headers["connection"], ready.headers["connection"], live.headers["connection"]} == {"close"}
    assert app.runtime.metrics.registry.get_sample_value("attention_rejected_total", {"reason": "draining"}) == 1


@pytest.mark.parametrize("action", ["load", "unload"])
def test_nothing_is_changed_before_models_are_loaded_or_while_draining(settings: Settings, action: str):
    """And who may not change anything is not told which of them it is."""
    app = create_app(settings.model_copy(update={"admin_keys": ("root",)}))
    path = f"/v1/models/lesson/{action}"

    assert ask(app, "POST", path, x_api_key="root").json()["type"] == "/problems/not-ready"
    app.runtime.begin_drain()
    assert ask(app, "POST", path, x_api_key="root").json()["type"] == "/problems/draining"
    assert ask(app, "POST", path).status == 401


# ---- what is asked before the body is read


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "1e3", "9" * 13, " ", "0x10", "1_000"])
def test_a_deadline_that_is_none_is_refused(app: Service, value: str, monkeypatch: pytest.MonkeyPatch):
    """Whole milliseconds above 0; the detail names the header, as no pointer can."""
    monkeypatch.setattr(type(app.runtime), "engine", None)  # that it is not ready would be said first

    reply = post(app, x_request_timeout_ms=value)

    assert reply.status == 422
    assert reply.json()["type"] == "/problems/invalid-option"
    assert "X-Request-Timeout-Ms: expected whole milliseconds above 0" in reply.json()["detail"]


# ---- access


def test_without_a_key_the_service_asks_for_one(settings: Settings):
    """401 says how; health, metrics and pages stay open."""
    app = create_app(settings.model_copy(update={"api_keys": ("good", "other")}))

    for path in ("/v1/attention", "/v1/models", "/v1/models/lesson", "/v1/nothing"):
        reply = post(app) if path == "/v1/attention" else ask(app, "GET", path)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.json()["type"] == "/problems/unauthorized"
        assert "Authorization: Bearer KEY" in reply.json()["detail"]
    for path in ("/healthz/live", "/metrics", "/", "/docs", "/openapi.json"):
        assert ask(app, "GET", path).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer good"}, 503),
        ({"authorization": "bearer  good "}, 503),
        ({"x_api_key": "other"}, 503),
        ({"authorization": "Bearer bad"}, 403),
        ({"x_api_key": "bad"}, 403),
        ({"x_api_key": "good "}, 403),
        ({"authorization": "Basic good"}, 401),
        ({"authorization": "good"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"x_api_key": ""}, 401),
    ],
)
def test_a_key_is_known_or_not(settings: Settings, headers: dict[str, str], status: int):
    """Behind the keys this unloaded application says 503."""
    app = create_app(settings.model_copy(update={"api_keys": ("good", "other")}))

    assert post(app, **headers).status == status


def test_a_caller_over_its_rate_is_told_when_to_come_again(settings: Settings):
    """429 with Retry-After; callers without keys are told apart by address, and open paths do not count."""
    app = create_app(settings.model_copy(update={"rate_limit": "2/minute"}))

    assert [ask(app, "GET", "/healthz/live").status for _ in range(5)] == [200] * 5
    assert [post(app).status for _ in range(3)] == [503, 503, 429]
    reply = post(app)
    other = asyncio.run(asgi(app, "GET", "/v1/models", client=("192.0.2.9", 1)))

    assert reply.json()["type"] == "/problems/rate-limited"
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert other.status == 503


def test_with_keys_the_rate_is_of_the_key(settings: Settings):
    """Many callers share an address behind a proxy."""
    app = create_app(settings.model_copy(update={"api_keys": ("a", "b"), "rate_limit": "1/minute"}))

    assert [post(app, x_api_key=key).status for key in ("a", "a", "b", "b")] == [503, 429, 503, 429]


# ---- CORS


def test_without_a_setting_no_other_origin_may_read(app: Service):
    """CORS is off unless it is asked for."""
    reply = post(app, origin="https://a.example")

    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_pages_of_a_named_origin_may_call_and_read_errors_too(settings: Settings):
    """An error without the header is an opaque failure in a browser."""
    app = create_app(settings.model_copy(update={"cors_origins": ("https://a.example",)}))

    for reply in (
        ask(app, "GET", "/healthz/live", origin="https://a.example"),
        ask(app, "GET", "/nothing", origin="https://a.example"),
        post(app, origin="https://a.example"),
    ):
        assert reply.headers["access-control-allow-origin"] == "https://a.example"
        assert "X-Request-Id" in reply.headers["access-control-expose-headers"]
        assert "Retry-After" in reply.headers["access-control-expose-headers"]
        assert "Origin" in reply.headers["vary"]
        assert "x-request-id" in reply.headers
    assert "access-control-allow-origin" not in post(app, origin="https://b.example").headers


def test_a_preflight_is_answered_without_a_key(settings: Settings):
    """Browsers send none with it."""
    app = create_app(settings.model_copy(update={"cors_origins": ("https://a.example",), "api_keys": ("k",)}))

    reply = ask(
        app, "OPTIONS", "/v1/attention", origin="https://a.example", access_control_request_method="POST",
        access_control_request_headers="content-type, x-api-key",
    )  # fmt: skip

    assert reply.status == 200
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "content-type, x-api-key"
    assert post(app, origin="https://a.example").headers["access-control-allow-origin"] == "https://a.example"


def test_an_unforeseen_error_is_one_problem_with_cors_as_without(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    """The layer that adds headers must not double, lose or show it."""
    app = create_app(settings.model_copy(update={"cors_origins": ("https://a.example",)}))
    monkeypatch.setattr(app.runtime.access, "check", lambda *_: 1 / 0)

    reply = post(app, origin="https://a.example")

    assert reply.status == 500
    assert reply.json()["type"] == "/problems/internal-error"
    assert "division" not in reply.body.decode()
    assert reply.headers["access-control-allow-origin"] == "https://a.example"


# ---- methods and paths


@pytest.mark.parametrize(
    "path", ["/", "/healthz/live", "/metrics", "/docs", "/openapi.json", "/problems", "/static/page.css"]
)
def test_head_is_as_get(app: Service, path: str):
    """Same status and headers; the server leaves the body out."""
    head, get = ask(app, "HEAD", path), ask(app, "GET", path)

    assert head.status == get.status == 200
    assert head.headers["content-type"] == get.headers["content-type"]
    if path != "/metrics":
        assert head.headers["content-length"] == get.headers["content-length"]


def test_head_is_counted_as_head_under_its_route(app: Service):
    """The route's template, not `unmatched`."""
    ask(app, "HEAD", "/healthz/live")

    labels = {"route": "/healthz/live", "method": "HEAD", "status": "200", "outcome": "ok"}
    assert app.runtime.metrics.registry.get_sample_value("attention_requests_total", labels) == 1


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/attention", "POST"), ("HEAD", "/v1/attention", "POST"), ("OPTIONS", "/v1/attention", "POST"),
        ("PUT", "/v1/attention", "POST"), ("POST", "/v1/models", "GET, HEAD"), ("DELETE", "/v1/models/x", "GET, HEAD"),
        ("OPTIONS", "/healthz/live", "GET, HEAD"), ("PATCH", "/", "GET, HEAD"), ("POST", "/docs", "GET, HEAD"),
        ("POST", "/static/page.css", "GET, HEAD"), ("POST", "/openapi.json", "GET, HEAD"),
    ],
)  # fmt: skip
def test_a_wrong_method_is_told_the_right_ones(app: Service, method: str, path: str, allow: str):
    """405 must carry Allow."""
    reply = ask(app, method, path)

    assert reply.status == 405
    assert reply.headers["allow"] == allow
    assert reply.headers["content-type"] == PROBLEM
    assert reply.json()["type"] == "/problems/method-not-allowed"
    assert allow.replace(", ", " or ") in reply.json()["detail"]


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/", "/v1/attention/", "/v1/attention/x", "/static/nothing.js", "/static/\0",
             "/problems/nothing", "/static/../app.py", "/static/..%2fapp.py", "//v1/attention", "/V1/attention",
             "/" + "a" * 5000]
)  # fmt: skip
def test_a_path_that_is_not_there_is_a_problem(app: Service, path: str):
    """404 in the one error shape, wherever it comes from."""
    reply = ask(app, "GET", path)

    assert reply.status == 404
    assert reply.json()["type"] == "/problems/not-found"


# ---- pages


class Links(HTMLParser):
    """What a page loads or links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.inline = ""
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._tag = tag
        found = dict(attrs)
        if tag in ("script", "img", "iframe", "link") and (place := found.get("src") or found.get("href")):
            self.loaded.append(place)
        if tag == "a":
            self.linked.append(found.get("href", ""))

    def handle_data(self, data: str) -> None:
        self.inline += data if self._tag in ("script", "style") else ""


def links(reply: Reply) -> Links:
    found = Links()
    found.feed(reply.body.decode())
    return found


@pytest.mark.filterwarnings("ignore:open_binary is deprecated")  # by fastapi-swagger
@pytest.mark.parametrize("path", ["/", "/docs", "/problems", "/problems/queue-full"])
def test_a_page_loads_nothing_from_elsewhere(app: Service, path: str):
    """It must work in a closed network; and everything that it loads is there."""
    found = links(ask(app, "GET", path, host="testserver"))

    assert found.loaded
    for place in found.loaded:
        if place.startswith("data:"):
            continue
        whole = urljoin(f"http://testserver{path}", place)
        assert whole.startswith("http://testserver/"), place
        local = whole.removeprefix("http://testserver")
        assert ask(app, "GET", local).status == 200, place
    assert "http://" not in found.inline.replace("http://testserver", "")
    assert "https://" not in found.inline


def test_our_own_pages_forbid_what_comes_from_elsewhere(app: Service):
    """By Content-Security-Policy, so that a mistake would show."""
    for path in ("/", "/problems", "/problems/queue-full"):
        headers = ask(app, "GET", path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/docs", "/problems", "/problems/queue-full"])
def test_no_page_may_be_framed(app: Service, path: str):
    """Nobody shall lay ours under theirs; pages that a library makes say it too."""
    for method in ("GET", "HEAD"):
        policy = ask(app, method, path, host="testserver").headers["content-security-policy"]
        assert policy.endswith("frame-ancestors 'none'")


def test_every_problem_type_has_its_page(app: Service):
    """The `type` of a problem is a link that leads somewhere."""
    found = links(ask(app, "GET", "/problems"))

    for cls in known_problems():
        assert f"/problems/{cls.code}" in found.linked
        page = ask(app, "GET", f"/problems/{cls.code}")
        assert page.status == 200
        assert cls.code in page.body.decode()


def test_the_metrics_are_in_the_format_that_they_say(app: Service):
    """Prometheus looks at the type."""
    reply = ask(app, "GET", "/metrics")

    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert reply.body.endswith(b"\n")
    assert gzip.compress(reply.body)
