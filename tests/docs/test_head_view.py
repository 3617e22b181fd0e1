"""The head view of docs/examples: what it draws of a running service's answer, and how it looks in a browser."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from browsing import ARTIFACTS, SCREENS
from wire import JSON, call

from tests.conftest import ROOT

SCRIPT = ROOT / "docs/examples/head_view.py"
TEXT = "The cat sat on the <b>😀</b> & café."
SVG = "{http://www.w3.org/2000/svg}"

pytestmark = pytest.mark.server


def draw(url: str, output: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, SCRIPT, "--url", url, "--output", output, *options, TEXT],
        capture_output=True,
        text=True,
        timeout=60,
    )


def drawn(url: str, output: Path, *options: str) -> str:
    done = draw(url, output, *options)
    assert done.returncode == 0, done.stderr
    return output.read_text()


def answered(url: str, layer: int) -> tuple[list[str], list[list[list[float]]]]:
    """Tokens, and the weights of a layer's heads, from the service."""
    request = json.dumps({"model": "minilm-l6", "text": TEXT, "layers": [layer]}).encode()
    answer = call(url, "POST", "/v1/text/attention", request, {"Content-Type": JSON}).json()
    return [token["token"] for token in answer["tokens"]], answer["layers"][0]["weights"]


def check_drawing(svg: str, tokens: list[str], weights: list[list[float]]) -> None:
    """Tokens stand in two columns, and each weight that can be seen is a line between them, of its opacity."""
    root = ElementTree.fromstring(svg)
    texts = [(text.text, text.get("text-anchor"), float(text.get("y", "")) - 5) for text in root.iter(f"{SVG}text")]
    left, right = ([(text, y) for text, anchor, y in texts if anchor == side] for side in ("end", "start"))
    assert left == right
    assert [text for text, _ in left] == tokens
    assert len(list(root.iter(f"{SVG}rect"))) == 2 * sum(token.startswith("[") for token in tokens)

    row_at = {y: row for row, (_, y) in enumerate(left)}
    lines = {}
    for path in root.iter(f"{SVG}path"):
        numbers = [float(number) for number in re.findall(r"[\d.]+", path.get("d", ""))]
        place = row_at[numbers[1]], row_at[numbers[-1]]
        assert place not in lines
        lines[place] = path.get("stroke-opacity")
        assert path[0].text == f"{tokens[place[0]]} looks at {tokens[place[1]]}: {lines[place]}"
    seen = {(i, j): f"{w:.3f}" for i, row in enumerate(weights) for j, w in enumerate(row) if w >= 0.01}
    assert lines == seen


@pytest.mark.parametrize(("heads", "shown"), [("all", [0, 1, 2, 3]), ("2", [2]), ("3,1", [3, 1])])
def test_a_page_draws_every_weight_of_the_heads_asked_for(server, tmp_path, heads, shown):
    """One drawing per head, in the order asked for, and the largest weight of each row as a table."""
    tokens, weights = answered(server.url, 1)

    page = drawn(server.url, tmp_path / "head_view.html", "--layer", "1", "--heads", heads)

    assert re.findall(r"<h2>(.*?)</h2>", page) == [f"Head {head}" for head in shown]
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for head, svg in zip(shown, drawings, strict=True):
        check_drawing(svg, tokens, weights[head])
    largest = [float(number) for number in re.findall(r"<td>([\d.]+)(?=<tr>|</table>)", page)]
    assert largest == pytest.approx([max(row) for head in shown for row in weights[head]], abs=5.1e-4)
    assert "<p>“The cat sat on the &lt;b&gt;😀&lt;/b&gt; &amp; café.”" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_one_head_is_drawn_as_a_picture_by_itself(server, tmp_path):
    """For a page of documentation, say."""
    tokens, weights = answered(server.url, 0)

    check_drawing(drawn(server.url, tmp_path / "head.svg", "--heads", "2"), tokens, weights[2])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--heads", "4"), "layer 0 has the heads 0 to 3"),
        (("--heads", "x"), "layer 0 has the heads 0 to 3"),
        (("--layer", "3"), "its layers are 0 to 2"),
        (("--model", "lesson"), "takes embeddings, not text"),
        (("--url", "http://127.0.0.1:9"), "http://127.0.0.1:9: "),
        (("--output", "heads.svg"), "choose it with --heads"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(server, tmp_path, options, says):
    """Without a traceback."""
    done = draw(server.url, tmp_path / "head_view.html", *options)

    assert done.returncode != 0
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_picture_of_the_documents_shows_each_token_looking_at_the_one_before():
    """Layer 0, head 2 of MiniLM, as docs/text.md says."""
    root = ElementTree.parse(ROOT / "docs/images/head_view.svg").getroot()
    tokens = [text.text for text in root.iter(f"{SVG}text")][::2]

    strong = [path[0].text for path in root.iter(f"{SVG}path") if float(path.get("stroke-opacity", "")) > 0.5]

    assert len(strong) == len(tokens)
    assert set(strong) == {
        f"{token} looks at {before}: 1.000" for before, token in zip(["[CLS]", *tokens], tokens, strict=False)
    }


# ---- in a browser


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_a_page_fits_every_screen_and_axe_finds_nothing(browser, server, tmp_path, scheme, width):
    """No sideways scrolling at 320 px, no rule of accessibility broken, nothing fetched, with tables open and shut."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for heads in ("2", "all"):
        drawn(server.url, tmp_path / "head_view.html", "--heads", heads)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        asked_for = []
        page.on("request", lambda request, found=asked_for: found.append(request.url))
        page.goto((tmp_path / "head_view.html").as_uri())
        assert axe.run(page).response["violations"] == []
        assert page.locator("details[open]").count() == (heads == "2")
        for closed in page.locator("details:not([open])").element_handles():
            closed.query_selector("summary").click()

        assert axe.run(page).response["violations"] == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator("svg text").first.is_visible()
        assert len(asked_for) == 1
        page.screenshot(path=ARTIFACTS / f"head-view-{heads}-{scheme}-{width}.png", full_page=True)
        context.close()
