"""Formulas as MathML Core, which browsers draw and screen readers speak without a script."""

from functools import lru_cache
from html import unescape
from xml.etree.ElementTree import Element, SubElement, tostring

from latex2mathml.converter import convert_to_element

STYLE = "math mtd{text-align:left;padding:.1em .4em}"
"""What a page's style sheet says of formulas: MathML Core has no attribute that aligns a case to the left."""

LIMITS = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}
"""Where the limits of a large operator stand in a formula on a line of its own."""

LARGE = ("max", "min", "\N{N-ARY SUMMATION}", "\N{N-ARY PRODUCT}")


@lru_cache(maxsize=512)
def mathml(latex: str, *, block: bool = False) -> str:
    """A formula as a `<math>` element, with the LaTeX as its annotation.

    Args:
        latex: one formula, without dollar signs.
        block: whether it stands on a line of its own.

    Raises:
        ValueError: if the formula has a command that is not known, or does not close what it opens.
    """
    try:
        made = convert_to_element(latex, display="block" if block else "inline")
    except Exception as error:  # the library has a class of its own for each fault
        raise ValueError(f"{latex!r} is no formula: {type(error).__name__}") from error
    root = Element("math", {"display": "block"} if block else {})
    semantics = SubElement(root, "semantics")
    semantics.extend(made)
    for part in semantics.iter():
        part.attrib.pop("columnalign", None)
        part.text = unescape(part.text or "")
        if "\\" in part.text:
            raise ValueError(f"{latex!r} has {part.text}, which is not known")
        if block and part.tag in LIMITS and unescape(part[0].text or "") in LARGE:
            part.tag = LIMITS[part.tag]
    SubElement(semantics, "annotation", {"encoding": "application/x-tex"}).text = latex
    return tostring(root, encoding="unicode")
