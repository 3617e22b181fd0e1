"""What every renderer keeps, and what each one writes."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
from PIL import Image

from service.tutor.explain import explain
from service.tutor.prose import number
from service.tutor.render import RENDERERS
from service.tutor.render.base import Look
from service.tutor.render.json import step_json
from service.tutor.render.markdown import escaped as in_markdown
from service.tutor.render.tex import escaped as in_tex
from tests.problems_at_hand import blind, drawn, lesson

ROOT = Path(__file__).parents[4]
STRANGE = ("<b>&", "a|b `c` $d$", "日本\nx", "100% \\end{document} _ # ~ ^ {")
CASES = {
    "lesson": lesson(),
    "causal": lesson(is_causal=True),
    "whole": drawn(whole=True, k=2),
    "strange": drawn(labels=STRANGE),
    "blind": drawn(attn_mask=blind()),
    "heads": drawn(heads=2, is_causal=True),
    "one": drawn(n=1),
    "large": drawn(n=16, d=16, k=16, v=16),
}

PLAIN = Look()


def rendered(case: str, media_type: str, look: Look = PLAIN) -> bytes:
    return RENDERERS[media_type].render(explain(CASES[case]), look)


@pytest.mark.parametrize("media_type", RENDERERS)
@pytest.mark.parametrize("case", ["lesson", "strange", "heads"])
def test_the_same_explanation_is_the_same_bytes(case, media_type):
    assert rendered(case, media_type) == rendered(case, media_type)


@pytest.mark.parametrize("seed", ["1", "2"])
def test_bytes_are_the_same_in_another_process(seed):
    """Neither the order of sets nor the machine's fonts take part."""
    program = (
        "import hashlib; from service.tutor.explain import explain; from service.tutor.render import RENDERERS;"
        "from service.tutor.render.base import Look; from tests.problems_at_hand import lesson;"
        "x = explain(lesson(is_causal=True));"
        "print(*(hashlib.sha256(r.render(x, Look())).hexdigest() for r in RENDERERS.values()))"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )

    assert done.stderr == ""
    here = [hashlib.sha256(rendered("causal", media_type)).hexdigest() for media_type in RENDERERS]
    assert done.stdout.split() == here


@pytest.mark.parametrize("media_type", [name for name in RENDERERS if name.startswith(("text/", "application/"))])
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_written_with_its_words(case, media_type):
    found = explain(CASES[case])

    text = RENDERERS[media_type].render(found, PLAIN).decode()

    for step in found.steps:
        assert step.title in text
        assert step.formula.replace("\\", "\\\\" if "json" in media_type else "\\").replace(
            "&", "&amp;" if "html" in media_type else "&"
        ) in text  # fmt: skip
    assert "nan" not in text.lower().replace("nano", "")


def test_json_has_all_digits_and_null_where_a_score_is_masked():
    found = explain(CASES["causal"])

    answer = json.loads(rendered("causal", "application/json"))

    steps = {step["id"]: step for step in answer["steps"]}
    for step in found.steps:
        assert steps[step.id]["shape"] == list(step.values.shape)
        values = np.array(steps[step.id]["values"], float)
        np.testing.assert_array_equal(np.where(np.isnan(values), -np.inf, values), step.values)
    assert steps["masked_scores"]["values"][0][1] is None
    assert steps["raw_scores"]["operands"][0] == {"name": "query", "symbol": "Q", "shape": [4, 3]}
    assert np.array(steps["raw_scores"]["terms"])[2, 0, :, 2].sum() == pytest.approx(
        steps["raw_scores"]["values"][2][0]
    )
    assert "terms" not in steps["weights"]
    assert steps["weights"]["mathml"].startswith("<math")
    assert answer["summary"] == "'her' attends most to 'Mia', 0.91."
    assert answer["focus"] == {"head": 0, "row": 2, "token": "her"}
    assert answer["checks"]["row_sums"] == [1.0] * 4
    assert answer["labels"] == ["Mia", "reads", "her", "book"]


def test_json_is_rounded_where_asked_and_exact_where_possible():
    answer = json.loads(rendered("whole", "application/json", Look(decimals=2)))
    blank = json.loads(rendered("blind", "application/json"))

    scaled = next(step for step in answer["steps"] if step["id"] == "scaled_scores")
    assert all(round(x, 2) == x for row in scaled["values"] for x in row)
    assert all("√2" in form or form in ("0", "0/√2 = 0") for row in scaled["exact"] for form in row)
    assert blank["fully_masked_rows"] == [0]
    assert "fully_masked_rows" not in answer
    assert "exact" not in step_json(explain(CASES["lesson"]).step("weights"))


class Outline(HTMLParser):
    """What stands in a page, and whether its elements are closed."""

    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("case", CASES)
def test_the_page_has_real_tables_and_needs_nothing_from_elsewhere(case):
    found = explain(CASES[case])
    page = rendered(case, "text/html").decode()

    outline = Outline()
    outline.feed(page)

    assert outline.open == []
    names = [tag for tag, _ in outline.tags]
    assert names.count("table") == names.count("caption") >= len(found.steps)
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in outline.tags if tag == "th")
    assert names.count("math") == len(found.steps)
    assert names.count("svg") == 2
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(names)
    assert not re.search(r"(src|srcset|action)=|url\((?!#)|@import", page)
    links = [attributes["href"] for tag, attributes in outline.tags if "href" in attributes]
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert all(link.removeprefix("#") in ids for link in links)
    assert len(ids) == len(set(ids))
    assert page.startswith('<!doctype html>\n<html lang="en">')


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_may_be_of_one_theme(theme):
    assert "prefers-color-scheme" not in rendered("lesson", "text/html", Look(theme=theme)).decode()


def test_the_page_shows_the_exact_forms_and_the_sums():
    page = rendered("whole", "text/html").decode()

    assert re.search(r"<small>−?\d+/√2 = −?\d*√2(/2)?</small>", page)
    assert "product by product" in page


@pytest.mark.parametrize("case", CASES)
def test_tables_in_markdown_have_one_width(case):
    """And labels cannot break them."""
    text = rendered(case, "text/markdown").decode()

    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) >= len(explain(CASES[case]).steps)
    for lines in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert len(widths) == 1
        assert set(lines[1]) <= set("| -:")


def test_markdown_means_what_it_says():
    assert in_markdown("a|b *c*\n_d_") == r"a\|b \*c\* \_d\_"


@pytest.mark.parametrize("case", CASES)
def test_the_document_is_whole_latex(case):
    """Without LaTeX at hand: environments and braces are closed, rows have as many columns as their table."""
    text = rendered(case, "application/x-tex").decode()

    body = text.partition(r"\begin{document}")[2]
    assert text.startswith(r"\documentclass")
    assert body.rstrip().endswith(r"\end{document}")
    stack = []
    for verb, name in re.findall(r"(?<!\\)\\(begin|end)\{(\w+)\}", body.replace(r"\textbackslash{}", "")):
        if verb == "begin":
            stack.append(name)
        elif stack:
            assert stack.pop() == name
    assert stack == []
    bare = re.sub(r"\\[{}]", "", body)
    assert bare.count("{") == bare.count("}")
    for columns, table in re.findall(r"\\begin\{tabular\}\{l\|(r+)\}\n(.*?)\\end\{tabular\}", body, re.DOTALL):
        for line in table.splitlines():
            assert line == r"\hline" or len(re.findall(r"(?<!\\)&", line)) == len(columns)


def test_latex_reads_labels_as_text():
    assert in_tex(r"50% of \x_1 {a}") == r"50\% of \textbackslash{}x\_1 \{a\}"
    assert in_tex("$&#~^") == r"\$\&\#\textasciitilde{}\textasciicircum{}"


@pytest.mark.parametrize("picture", ["heatmap", "flow"])
def test_the_svg_is_the_picture(picture):
    root = fromstring(rendered("lesson", "image/svg+xml", Look(picture=picture)))

    assert root.tag.endswith("svg")
    weights = explain(CASES["lesson"]).values["weights"][0]
    assert number(weights[2, 0], 2) in "".join(root.itertext())


@pytest.mark.parametrize("theme", ["light", "dark", "auto"])
@pytest.mark.parametrize("picture", ["heatmap", "flow"])
def test_the_png_shows_the_picture_with_its_text(picture, theme):
    """Text really is there, without any font of the machine: the same picture without text has other pixels."""
    from service.tutor.pictures import PICTURES
    from service.tutor.render.png import rasterised

    look = Look(picture=picture, theme=theme)

    made = rendered("lesson", "image/png", look)

    image = Image.open(io.BytesIO(made)).convert("RGB")
    pixels = np.asarray(image, float)
    surround = "dark" if theme == "dark" else "light"
    document = PICTURES[picture](explain(CASES["lesson"]), surround, raster=True)
    width = int(re.search(r'width="(\d+)"', document)[1])
    assert image.width == 2 * width
    assert (pixels[0, 0].mean() < 60) == (theme == "dark")
    without = rasterised(re.sub(r"<text.*?</text>", "", document))
    blank = np.asarray(Image.open(io.BytesIO(without)).convert("RGB"), float)
    assert (np.abs(pixels - blank).max(axis=-1) > 100).sum() > 2_000
    assert rendered("lesson", "image/png", Look(picture=picture, theme=surround)) == made
