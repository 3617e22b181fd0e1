"""Hidden scores set to zero."""

from service.tutor.arithmetic import hidden_as, mask_of
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="mask.zero_score",
    title="Hidden scores were set to zero",
    formula=r"M_{ij} = 0 \quad \text{where } i \text{ may not see } j",
    explanation=(
        "A score of zero does not hide anything: the exponential of zero is one, so the hidden token still"
        " gets a share, and more than any token with a negative score."
    ),
    remedy="Use minus infinity: it is the only score whose exponential is zero.",
    ways=({"masked_scores": lambda problem, values: hidden_as(values["scaled_scores"], mask_of(problem), 0.0)},),
    twins={
        "mask.ignored": (
            "where the hidden scores happen to be zero, leaving them and setting them to zero are the same"
        ),
    },
)
