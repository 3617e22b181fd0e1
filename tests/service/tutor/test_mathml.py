from xml.etree.ElementTree import fromstring

import pytest

from service.tutor.mathml import mathml
from service.tutor.steps import STEPS


@pytest.mark.parametrize("latex", [text for step in STEPS.values() for text in (step.symbol, step.formula)])
def test_every_formula_of_the_recipe_can_be_drawn_and_copied(latex):
    """What is drawn is MathML Core alone, and the LaTeX stays with it."""
    root = fromstring(mathml(latex))

    assert root.tag == "math"
    assert root.find(".//annotation").text == latex
    core = {"math", "semantics", "annotation", "mrow", "mi", "mn", "mo", "mtext", "msub", "msup", "mfrac", "msqrt"}
    tables = {"mtable", "mtr", "mtd", "munder"}
    assert {part.tag for part in root.iter()} <= core | tables
    assert "\\" not in "".join(part.text or "" for part in root.iter() if part.tag != "annotation")


def test_a_formula_on_a_line_of_its_own_has_limits_below():
    """Otherwise the j of a sum stands beside it."""
    for latex in (r"m_i = \max_j T_{ij}", r"z_i = \sum_j E_{ij}"):
        assert fromstring(mathml(latex, block=True)).find(".//munder") is not None
    assert "display" not in fromstring(mathml("S")).attrib


@pytest.mark.parametrize("latex", [r"\foo{x}", r"\frac{1}{"])
def test_what_is_no_formula_is_refused(latex):
    """The library would draw the name of the command."""
    with pytest.raises(ValueError, match=r"formula|known"):
        mathml(latex)


def test_signs_are_characters_and_what_html_reserves_is_escaped():
    root = fromstring(mathml(r"a < b = -\infty \text{ and } c"))

    assert [part.text for part in root.iter("mo")] == ["<", "=", "−", "∞"]
