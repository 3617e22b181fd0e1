"""`/widget`, `/widget.js` and `/oembed`: what they answer, to whom, and what they refuse."""

import asyncio
import json
import re
from urllib.parse import quote, urlsplit

import pytest
from pydantic import ValidationError
from wire import PROBLEM, Reply, asgi

from service.app import Service, create_app
from service.routes.widget import FOLDER
from service.settings import Settings

HERE = "http://attention.example"


def ask(app: Service, path: str, method: str = "GET", **headers: str) -> Reply:
    named = {"host": "attention.example"} | {name.replace("_", "-"): value for name, value in headers.items()}
    path, _, query = path.partition("?")
    return asyncio.run(asgi(app, method, path, b"", named, query))


@pytest.fixture
def app(settings: Settings) -> Service:
    return create_app(settings)


def framed_by(settings: Settings, *origins: str) -> Service:
    return create_app(settings.model_copy(update={"frame_ancestors": origins}))


def policy_of(reply: Reply) -> dict[str, str]:
    parts = (part.strip().partition(" ") for part in reply.headers["content-security-policy"].split(";"))
    return {name: value for name, _, value in parts}


# ---- who may frame what


def test_the_widget_may_be_framed_by_nobody_until_somebody_is_named(app: Service):
    """A page that takes answers must not appear inside a stranger's."""
    assert policy_of(ask(app, "/widget"))["frame-ancestors"] == "'none'"


def test_the_widget_may_be_framed_by_those_who_are_named(settings: Settings):
    """By the policy alone: X-Frame-Options knows no list, and browsers that see both may obey the wrong one."""
    reply = ask(framed_by(settings, "https://lms.example", "https://*.school.example"), "/widget")

    policy = policy_of(reply)
    assert policy["frame-ancestors"] == "https://lms.example https://*.school.example"
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["base-uri"] == "'none'"
    assert "x-frame-options" not in reply.headers
    assert 'name="attention-hosts" content="https://lms.example https://*.school.example"' in reply.body.decode()


@pytest.mark.parametrize("path", ["/", "/docs", "/problems", "/problems/not-found"])
def test_no_other_page_may_be_framed(settings: Settings, path: str):
    """Whoever may frame the widget may not frame the rest with it."""
    assert policy_of(ask(framed_by(settings, "https://lms.example"), path))["frame-ancestors"] == "'none'"


@pytest.mark.parametrize(
    "origin",
    ["https://lms.example", "https://lms.example:8443", "https://*.school.example", "http://localhost:3000",
     "http://127.0.0.1", "https://127.0.0.1:1"],
)  # fmt: skip
def test_origins_that_may_be_named(origin: str):
    assert Settings(frame_ancestors=f" {origin} ,https://b.example").frame_ancestors == (origin, "https://b.example")


@pytest.mark.parametrize(
    "origin",
    ["*", "https://*", "https://*.com", "https://lms.example/", "https://lms.example; script-src *", "'self'", '"x"',
     "https://a.example https://b.example", "https://a.example\r\nx: y", "http://lms.example", "lms.example",
     "https://LMS.example", "https://a..example", "https://-a.example", "null", "data:", "https://a.*.example"],
)  # fmt: skip
def test_what_is_no_origin_stops_the_start(origin: str):
    """It stands in a header: a separator in it would be a hole in the policy, and `*` would be everybody."""
    with pytest.raises(ValidationError, match="is no origin such as"):
        Settings(frame_ancestors=(origin,))


# ---- the page


def test_the_query_becomes_attributes(app: Service):
    page = ask(app, "/widget?mode=exercise&level=causal&seed=7&decimals=2&theme=dark&lang=de-CH").body.decode()

    assert '<self-attention mode="exercise" level="causal" seed="7" decimals="2" theme="dark" lang="de-CH">' in page
    assert 'data-theme="dark"' in page


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("mode=quiz", "/mode"),
        ("level=hard", "/level"),
        ("mode=whiteboard&level=softmax", "/level"),
        ("seed=-1", "/seed"),
        ("seed=9007199254740992", "/seed"),
        ("seed=x", "/seed"),
        ("decimals=7", "/decimals"),
        ("theme=pink", "/theme"),
        ("lang=%22%3E%3Cscript%3E", "/lang"),
        ("nothing=1", "/nothing"),
    ],
)
def test_a_query_that_cannot_be_is_refused_with_its_place(app: Service, query: str, pointer: str):
    """Whoever pastes an address with a slip in it shall not get another widget than they meant."""
    reply = ask(app, f"/widget?{query}")

    assert reply.status == 422
    assert reply.headers["content-type"] == PROBLEM
    assert [error["pointer"] for error in reply.json()["errors"]] == [pointer]


def test_the_page_loads_relative_paths_that_exist(app: Service):
    """Behind a proxy that adds a prefix, too; and nothing inline, which its own policy would forbid."""
    page = ask(app, "/widget").body.decode()

    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(loaded) == 4
    for place in loaded:
        if "oembed" not in place:
            assert ask(app, f"/{place}").status == 200
    assert "<style" not in page
    assert not re.search(r"<script[^>]*>[^<]", page)
    assert " style=" not in page


# ---- the script


def test_the_script_can_be_loaded_from_every_origin(app: Service):
    """Modules are fetched with CORS, and a page may isolate itself from what does not say cross-origin."""
    reply = ask(app, "/widget.js", origin="https://lms.example")

    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/javascript")
    assert reply.headers["access-control-allow-origin"] == "*"
    assert reply.headers["cross-origin-resource-policy"] == "cross-origin"


def test_origins_that_may_call_load_it_too(settings: Settings):
    """The service's own CORS must not contradict: two such headers are none."""
    app = create_app(settings.model_copy(update={"cors_origins": ("https://a.example",)}))

    named = ask(app, "/widget.js", origin="https://a.example").headers["access-control-allow-origin"]
    other = ask(app, "/widget.js", origin="https://b.example").headers["access-control-allow-origin"]

    assert (named, other) == ("https://a.example", "*")


def imported(reply: Reply) -> list[str]:
    return re.findall(r'(?:from|import) "(\.[^"]+)"', reply.body.decode())


def test_everything_that_it_imports_is_there_for_a_year(app: Service):
    """Their path has a digest of them all, so they never change; the script itself is asked for again soon."""
    script = ask(app, "/widget.js")
    assert script.headers["cache-control"] == "public, max-age=300"

    (first,) = imported(script)
    folder = first[1:].rpartition("/")[0]
    seen, ahead = set(), [first[1:]]
    while ahead:
        path = ahead.pop()
        if path in seen:
            continue
        seen.add(path)
        reply = ask(app, path, origin="https://lms.example")
        assert reply.status == 200, path
        assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert reply.headers["access-control-allow-origin"] == "*"
        ahead += [f"{folder}/{name.removeprefix('./')}" for name in imported(reply)]
    served = {path.rpartition("/")[2] for path in seen}
    assert served == {path.name for path in FOLDER.glob("*.js")} - {"frame.js", "messages.js"}


def test_what_a_browser_has_is_not_sent_again(app: Service):
    for path in ("/widget.js", imported(ask(app, "/widget.js"))[0][1:]):
        tag = ask(app, path).headers["etag"]

        again = ask(app, path, if_none_match=f'"other", W/{tag}')

        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == tag
        assert ask(app, path, if_none_match='"other"').status == 200


def test_a_part_of_another_version_is_ours_but_is_not_kept(app: Service):
    """While versions change, the script and its parts may come from different replicas."""
    reply = ask(app, "/widget/0123456789abcdef/element.js")

    assert reply.status == 200
    assert reply.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/widget/x/nothing.js", "/widget/x/..", "/widget/x/../../settings.py", "/widget/x"])
def test_there_is_nothing_else(app: Service, path: str):
    assert ask(app, path).status == 404


def test_the_script_is_open_where_the_interface_asks_for_keys(settings: Settings):
    """A script tag sends no header."""
    app = create_app(settings.model_copy(update={"api_keys": ("k",)}))

    for path in ("/widget", "/widget.js", f"/oembed?url={quote(HERE + '/widget')}"):
        assert ask(app, path).status == 200


# ---- oEmbed


def oembed(app: Service, url: str, more: str = "") -> Reply:
    return ask(app, f"/oembed?url={quote(url, safe='')}{more}")


def test_oembed_answers_a_frame(app: Service):
    """Version 1.0, type rich: what WordPress, Moodle and Discourse paste in for an address."""
    url = f"{HERE}/widget?mode=exercise&level=recipe"
    document = oembed(app, url).json()

    assert document["version"] == "1.0"
    assert document["type"] == "rich"
    assert (document["width"], document["height"]) == (960, 720)
    assert f'src="{url.replace("&", "&amp;")}"' in document["html"]
    assert 'width="960" height="720"' in document["html"]
    assert 'title="Self-attention, step by step"' in document["html"]
    assert document["title"] == "Self-attention, step by step"
    assert document["provider_url"] == f"{HERE}/"


def test_oembed_stays_within_the_consumers_limits(app: Service):
    small = oembed(app, f"{HERE}/widget", "&maxwidth=400&maxheight=300").json()
    large = oembed(app, f"{HERE}/widget", "&maxwidth=4000&maxheight=3000").json()

    assert (small["width"], small["height"]) == (400, 300)
    assert 'width="400" height="300"' in small["html"]
    assert (large["width"], large["height"]) == (960, 720)


@pytest.mark.parametrize(
    "url",
    ["https://other.example/widget", f"{HERE}/", f"{HERE}/widget.js", f"{HERE}/widget?mode=quiz", f"{HERE}/widget/x",
     "https://attention.example@other.example/widget", f"{HERE}:81/widget", "//attention.example/widget",
     "javascript:alert(1)", "http://[", f"{HERE}/v1/models", f"{HERE}/widget?unknown=1"],
)  # fmt: skip
def test_oembed_knows_no_other_address(app: Service, url: str):
    """Else it would answer frames of strangers under our name."""
    assert oembed(app, url).status == 404


def test_oembed_keeps_markup_out_of_the_frame(app: Service):
    """The address is the caller's: what follows `#` is not looked at, and must not close the attribute."""
    html = oembed(app, f'{HERE}/widget#"><script>alert(1)</script>').json()["html"]

    assert "<script" not in html
    assert html.count("<") == 2


def test_oembed_takes_an_address_of_the_tls_in_front(app: Service):
    """A proxy that ends TLS speaks http to us; the address people paste begins with https."""
    assert oembed(app, "https://attention.example/widget").status == 200


def test_oembed_is_json_only(app: Service):
    """501, as its specification says."""
    reply = oembed(app, f"{HERE}/widget", "&format=xml")

    assert reply.status == 501
    assert reply.json()["type"] == "/problems/not-offered"


@pytest.mark.parametrize("query", ["", "?url=x&maxwidth=0", "?url=x&maxheight=-1", "?url=x&maxwidth=wide"])
def test_oembed_says_what_is_wrong_with_a_question(app: Service, query: str):
    assert ask(app, f"/oembed{query}").status == 422


def test_oembed_takes_parameters_of_consumers(app: Service):
    """WordPress sends some of its own."""
    assert oembed(app, f"{HERE}/widget", "&dnt=1&_jsonp=x").status == 200


def test_the_page_leads_to_its_own_oembed(app: Service):
    """By a link in the head, early: consumers read only the beginning."""
    page = ask(app, "/widget?mode=exercise&seed=7").body.decode()
    (link,) = re.findall(r'<link rel="alternate" type="application/json\+oembed" href="([^"]+)"', page[:1_000])

    parts = urlsplit(link.replace("&amp;", "&"))
    document = json.loads(ask(app, f"{parts.path}?{parts.query}").body)

    assert 'src="http://attention.example/widget?mode=exercise&amp;seed=7"' in document["html"]
