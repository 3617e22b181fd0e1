import itertools

import pytest

from service.tutor.pictures.palette import COLOURS, LEVELS, contrast, level, luminance, shade, style, text_on

BOTH = ["light", "dark"]


@pytest.mark.parametrize("surround", BOTH)
@pytest.mark.parametrize("step", range(LEVELS + 1))
def test_a_number_can_be_read_on_every_shade(surround, step):
    """WCAG 1.4.3: 4.5:1."""
    colour = shade(step, surround)

    assert contrast(colour, text_on(colour)) >= 4.5


@pytest.mark.parametrize("surround", BOTH)
def test_the_ramp_is_monotone_in_lightness(surround):
    """Who sees no colours, or prints without them, reads the same."""
    lights = [luminance(shade(step, surround)) for step in range(LEVELS + 1)]

    ordered = sorted(lights, reverse=surround == "light")
    assert lights == ordered
    assert len(set(lights)) == len(lights)


@pytest.mark.parametrize("surround", BOTH)
@pytest.mark.parametrize(("ink", "ground"), list(itertools.product(["ink", "soft"], ["paper", "card"])))
def test_words_can_be_read_on_the_paper(surround, ink, ground):
    assert contrast(COLOURS[surround][ink], COLOURS[surround][ground]) >= 4.5


@pytest.mark.parametrize("surround", BOTH)
@pytest.mark.parametrize("line", ["accent", "flow"])
def test_frames_and_ribbons_stand_out(surround, line):
    """WCAG 1.4.11: 3:1."""
    for ground in ("paper", "card"):
        assert contrast(COLOURS[surround][line], COLOURS[surround][ground]) >= 3


def test_contrast_and_levels_are_as_defined():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert [level(weight) for weight in (-1, 0, 0.614, 1, 2)] == [0, 0, 61, 100, 100]


def test_a_theme_that_follows_the_reader_has_the_rules_of_both():
    rules = style("auto", [3])

    assert style("light", [3]) in rules
    assert f"@media (prefers-color-scheme:dark){{{style('dark', [3])}}}" in rules
