import numpy as np
import pytest
from learners import exercise

from service.tutor.slack import slack
from service.tutor.steps import steps_of, work


def rounded_at(given, places, known):
    """Work on from what is known, rounding the steps of `places` only."""
    values = dict(known)
    for step in steps_of(given.problem):
        if step not in values:
            found = work(given.problem, values, only=(step,))[step]
            values[step] = np.round(found, given.terms.decimals) if step in places else found
    return values


@pytest.mark.parametrize("level", ["recipe", "causal", "two-heads"])
def test_no_way_of_rounding_between_leads_further_than_is_allowed(level):
    """Each, all or some of the steps between are rounded; the last place of what is written comes on top."""
    for seed in range(20):
        given = exercise(level, seed, decimals=3)
        exact = work(given.problem)
        for known in ({}, {"scaled_scores": np.round(exact["scaled_scores"], 3)}):
            base = work(given.problem, known)
            for places in (("scaled_scores",), ("softmax_exp",), ("weights",), tuple(exact), tuple(exact)[::2]):
                found = rounded_at(given, places, known)
                for step in ("weights", "outputs"):
                    unknown = [each for each in tuple(exact) if each not in known and each != step]
                    last = {**found, step: rounded_at(given, set(places) & set(unknown), known)[step]}[step]
                    allowed = slack(given.problem, base, known, 3, step)
                    assert (np.abs(last - base[step]) <= 1.05 * allowed + 1e-9).all(), (seed, step, places)


def test_nothing_is_allowed_where_nothing_is_rounded():
    """Whole numbers stay what they are, and what is known is known."""
    given = exercise("recipe")
    values = work(given.problem)

    for step in ("query", "raw_scores"):
        assert not slack(given.problem, values, {}, 3, step).any()
    assert not slack(given.problem, values, values, 3, "outputs").any()
    assert slack(given.problem, values, {}, 3, "outputs").all()


def test_a_weight_that_has_no_choice_has_no_slack():
    """The first token of a causal row sees itself only."""
    given = exercise("causal")
    values = work(given.problem)

    allowed = slack(given.problem, values, {"scaled_scores": values["scaled_scores"]}, 3, "weights")

    assert allowed[0, 0].max() == 0
    assert allowed[0, 3].min() > 0
