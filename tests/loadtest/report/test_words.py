import dataclasses

import numpy as np
import pytest
from recorded import document, plan, recorded, samples

from loadtest.report import words
from loadtest.report.plan import Subject


def headline(rates, **changed):
    run = recorded(plan(subjects=tuple(Subject(name, name, "cpu") for name in rates), **changed))
    run.knees = {name: [rate] if rate is not None else [] for name, rate in rates.items()}
    return words.headline(document(run))


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ({"onnx": 412.4, "eager": 229.0}, "onnx holds 412 requests/s with p99 ≤ 50 ms, 1.8 times eager (229)."),
        ({"eager": 229.0, "onnx": 412.4}, "onnx holds 412 requests/s with p99 ≤ 50 ms, 1.8 times eager (229)."),
        ({"onnx": 412.0, "eager": 405.0}, "onnx holds 412 requests/s with p99 ≤ 50 ms, eager about as many (405)."),
        (
            {"onnx": 1412.0, "eager": 0.0},
            "onnx holds 1,412 requests/s with p99 ≤ 50 ms; eager keeps it at no rate that was tried.",
        ),
        ({"onnx": 5.25}, "onnx holds 5.2 requests/s with p99 ≤ 50 ms."),
        (
            {"onnx": 400.0, "eager": 200.0, "reference": 3.0},
            "onnx holds 400 requests/s with p99 ≤ 50 ms, 2.0 times eager (200); reference 3.0.",
        ),
        ({"onnx": None, "eager": None}, "Broken off before it was known which rate keeps p99 ≤ 50 ms."),
    ],
)
def test_the_result_in_a_sentence(rates, said):
    """The best first, whatever the order they were asked for in."""
    assert headline(rates) == said


def test_rounds_that_overlap_decide_nothing():
    """The medians of two noisy ones differ by chance."""
    run = recorded()
    run.knees = {"eager": [900.0, 1100.0], "onnx": [700.0, 980.0]}

    found = document(run)

    assert found["headline"] == (
        "eager holds 1,000 requests/s with p99 ≤ 50 ms, onnx 840; their rounds overlap, so neither is ahead."
    )
    assert len(found["warnings"]) == 1
    assert found["warnings"][0].startswith("onnx held between 700 and 980 requests/s from round to round")


def test_where_no_rate_holds_a_lone_caller_says_why():
    """No rate is faster than none."""
    said = headline({"onnx": 0.0, "eager": 0.0})

    assert said.startswith("No rate that was tried keeps p99 ≤ 50 ms: with a single connection, p99 is already onnx ")


def test_a_calm_run_warns_of_nothing():
    """Else nobody reads warnings."""
    assert document()["warnings"] == []


def test_counts_that_differ_are_a_loud_warning():
    """Somebody else asked, or requests were lost."""
    (eager, onnx) = document(recorded(counted=2))["warnings"]

    assert eager.startswith("COUNTS DIFFER: the generator had 19,500 answers of eager, which counted 19,474")
    assert "onnx" in onnx


def test_what_makes_figures_worth_less_is_said():
    """Each in a line."""
    run = recorded(plan(subjects=(Subject("onnx", "onnx", "cpu"),)))
    few = samples(np.full(20, 5.0), errors=["wrong answer: weights[0] sum to 2"] * 2, cpu=0.95)
    run.steps = [
        step
        if step.phase != "open"
        else dataclasses.replace(step, samples=few, figures=run._figures(few, 10), grown=None, holds=False)
        for step in run.steps
    ]

    found = document(run) | {"cores": "not pinned: all"}
    found["machine"]["load average before"] = "3.5"
    said = "\n".join(words.warnings(found, stopped=True))

    assert "The run was broken off" in said
    assert "load average 3.5 on 2 cores" in said
    assert "shared the cores" in said
    assert "onnx gave 4 wrong answers" in said
    assert "onnx missed the target at 70 % of the rate that it holds" in said
    assert "busy 95 % of a core" in said
    assert "rest on 40 requests" in said
    assert "failed 4 requests outside of the search" in said


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (float("nan"), "–"), (True, "yes"), (1234, "1,234"), (0.5, "0.500"), ("a", "a")]
)
def test_figures_are_written_one_way(value, text):
    """On the page, and on the terminal."""
    assert words.shown(value) == text
