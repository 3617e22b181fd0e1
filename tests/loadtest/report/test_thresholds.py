import pytest
from recorded import document, plan, recorded

from loadtest.report.thresholds import load, misses, parse

NAMES = ("eager", "onnx")


def test_what_is_reached_is_not_said():
    """As much as wanted is enough."""
    text = """
[onnx]
rate = 400
throughput = 1000
p99_ms = 50
error_share = 0

[every]
rate = 200

[[ratio]]
of = "onnx.rate"
over = "eager.rate"
at_least = 1.0
"""
    wanted = parse(text, NAMES)

    assert len(wanted) == 7
    assert misses(wanted, document()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[onnx]\nrate = 500", "onnx.rate: wanted at least 500, got 418"),
        ("[eager]\np99_ms = 1.5", "eager.p99_ms: wanted at most 1.5, got 18.27"),
        (
            "[[ratio]]\nof = 'onnx.rate'\nover = 'eager.rate'\nat_most = 1",
            "onnx.rate over eager.rate: wanted at most 1, got 1.8",
        ),
    ],
)
def test_what_is_missed_is_said_in_a_line(text, said):
    """What, what was wanted, and what there is instead."""
    assert misses(parse(text, NAMES), document()) == [said]


def test_what_was_not_measured_is_missed():
    """A run that is broken off has not passed."""
    run = recorded()
    run.steps = [step for step in run.steps if step.phase != "open"]
    run.knees["eager"] = []

    text = "[onnx]\np99_ms = 50\n[[ratio]]\nof = 'onnx.rate'\nover = 'eager.rate'\nat_least = 1"

    assert misses(parse(text, NAMES), document(run)) == [
        "onnx.p99_ms: wanted at most 50, nothing was measured",
        "onnx.rate over eager.rate: wanted at least 1, nothing was measured",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[onnx]\nspeed = 3", r"\[onnx\] speed: known are rate, throughput, p50_ms"),
        ("[cuda]\nrate = 3", r"\[cuda\]: there are eager, onnx, every and \[\[ratio\]\]"),
        ("[onnx]\nrate = 'fast'", r"\[onnx\] rate = 'fast': give a number"),
        ("[onnx]\nrate = true", "give a number"),
        ("onnx = 3", r"write a section, \[onnx\]"),
        ("[onnx", "not TOML"),
        ("", "nothing is wanted"),
        ("[[ratio]]\nof = 'onnx.rate'", "takes of, over, and at_least or at_most"),
        ("[[ratio]]\nof = 'onnx.rate'\nover = 'cuda.rate'\nat_least = 1", "with a name of eager, onnx"),
        ("[[ratio]]\nof = 'onnx.speed'\nover = 'eager.rate'\nat_least = 1", "known are rate"),
    ],
)
def test_what_there_is_not_is_refused(text, said):
    """With what there is."""
    with pytest.raises(ValueError, match=said):
        parse(text, NAMES)


def test_a_file_is_named_in_what_is_wrong_with_it(tmp_path):
    """One of several may be meant."""
    file = tmp_path / "thresholds.toml"
    with pytest.raises(ValueError, match=r"thresholds.toml: No such file"):
        load(file, NAMES)
    file.write_text("[onnx]\nrate = 'x'")
    with pytest.raises(ValueError, match=r"thresholds.toml: \[onnx\] rate"):
        load(file, NAMES)
    file.write_text("[onnx]\nrate = 1")
    assert [threshold.what for threshold in load(file, NAMES)] == [("onnx.rate",)]
    assert plan().subjects[1].name == "onnx"
