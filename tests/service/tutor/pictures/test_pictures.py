import itertools
from pathlib import Path
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest

from service.tutor.explain import explain
from service.tutor.pictures import PICTURES
from service.tutor.pictures.canvas import ADVANCES, measure, shortened, wrapped
from service.tutor.prose import number
from tests.problems_at_hand import blind, drawn, lesson

SVG = "{http://www.w3.org/2000/svg}"
LABELS = ("<b>&", "a word that is longer than any picture is wide", "日本", "")
CASES = {
    "lesson": lesson(),
    "causal": lesson(is_causal=True),
    "strange": drawn(labels=LABELS),
    "blind": drawn(attn_mask=blind()),
    "nobody": drawn(attn_mask=np.zeros((4, 4), bool)),
    "heads": drawn(heads=3, v=9, k=9),
    "one": drawn(n=1),
    "sixteen": drawn(n=16, d=16, k=16, v=16),
}

BOTH_WAYS = list(itertools.product(PICTURES, CASES))


def texts(root) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("theme", ["light", "dark", "auto"])
@pytest.mark.parametrize(("picture", "case"), BOTH_WAYS)
def test_a_picture_says_its_finding_to_those_who_do_not_see_it(picture, case, theme):
    """role, title and description; text is text; nothing is fetched and no script is run."""
    found = explain(CASES[case])

    document = PICTURES[picture](found, theme)

    root = fromstring(document)
    assert root.get("role") == "img"
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert all(name in ids for name in root.get("aria-labelledby").split())
    assert found.summary in root.find(f"{SVG}desc").text
    assert root.find(f"{SVG}title").text
    for forbidden in ("script", "foreignObject", "image", "href", "@import", "http://www.w3.org/1999"):
        assert forbidden not in document
    assert ("prefers-color-scheme" in document) == (theme == "auto")
    assert "nan" not in document


@pytest.mark.parametrize("case", CASES)
def test_the_heatmap_has_every_number_and_every_label(case):
    """In its order, row by row; what is masked says so."""
    problem = CASES[case]
    found = explain(problem)
    keep = np.ones((problem.n, problem.n), bool) if problem.keep is None else problem.keep

    root = fromstring(PICTURES["heatmap"](found, "light"))

    shown = texts(root)
    weights = found.values["weights"][found.tale.head]
    cells = [number(weights[at], 2) if keep[at] else "masked" for at in np.ndindex(keep.shape)]
    rest = iter(shown)
    assert all(cell in rest for cell in cells)
    for label in problem.tokens:
        assert sum(label in text for text in shown) >= 2  # a row and a column; unabridged in a title at least
    assert sum(element.get("class") == "masked" for element in root.iter(f"{SVG}rect")) >= (~keep).sum()


@pytest.mark.parametrize("case", CASES)
def test_the_flow_has_the_askers_weights_and_its_output(case):
    problem = CASES[case]
    found = explain(problem)
    tale = found.tale

    shown = texts(fromstring(PICTURES["flow"](found, "light")))

    assert all(number(tale.weights[token], 2) in shown for token in tale.seen)
    assert shown.count("masked") == problem.n - len(tale.seen)
    output = found.step("outputs").values[tale.row]
    first = output[tale.head * problem.value_dim]
    assert number(first, 2) in shown or number(first, 0) in shown
    assert all(any(label in text for text in shown) for label in problem.tokens)


@pytest.mark.parametrize(("picture", "case"), BOTH_WAYS)
def test_nothing_is_drawn_outside_the_picture(picture, case):
    """Of text that lies level: it begins and ends within, by widths of a generous font."""
    root = fromstring(PICTURES[picture](explain(CASES[case]), "light"))
    width, height = float(root.get("width")), float(root.get("height"))

    for element in root.iter(f"{SVG}text"):
        if element.get("transform"):
            continue
        title = element.find(f"{SVG}title")
        content = element.text if title is None else title.tail
        wide = measure(content or "", float(element.get("font-size")))
        x = float(element.get("x")) - {"start": 0, "middle": wide / 2, "end": wide}[element.get("text-anchor", "start")]
        assert x >= 0
        assert x + wide <= width
        assert 0 < float(element.get("y")) <= height
    for element in root.iter(f"{SVG}rect"):
        if "%" not in element.get("width") and "x" in element.attrib:
            assert float(element.get("x")) + float(element.get("width")) <= width


def test_text_is_measured_cut_and_wrapped():
    assert len(ADVANCES) == 95
    assert measure("iii", 10) < measure("MMM", 10)
    assert measure("e\N{COMBINING ACUTE ACCENT}", 10) == measure("e", 10)
    assert shortened("short", 10, 100) == "short"
    assert measure(shortened("a long text that does not fit", 10, 50), 10) <= 50
    assert wrapped("one two three", 10, measure("one two", 10)) == ["one two", "three"]


def test_the_picture_of_the_documentation_is_the_one_that_is_drawn():
    place = Path(__file__).parents[4] / "docs/images/explain_flow.svg"

    assert place.read_text() == PICTURES["flow"](explain(CASES["lesson"]), "auto")
