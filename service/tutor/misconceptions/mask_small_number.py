"""A number that is not small enough for minus infinity."""

from service.tutor.arithmetic import hidden_as, mask_of
from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import Compute


def _with(number: float) -> Compute:
    return lambda problem, values: hidden_as(values["scaled_scores"], mask_of(problem), number)


MISCONCEPTION = Misconception(
    id="mask.small_number",
    title="The hidden scores were not small enough",
    formula=r"M_{ij} = -c \quad \text{where } i \text{ may not see } j,\ c \in \{1, 10, 100\}",
    explanation=(
        "A negative number pushes a token down but does not hide it: its exponential is small and not zero,"
        " and next to other low scores it may even win. How well it hides should not depend on how large the"
        " scores happen to be."
    ),
    remedy="Use minus infinity, or write down at once that the weight in this place is zero.",
    ways=tuple({"masked_scores": _with(number)} for number in (-1.0, -10.0, -100.0)),
    twins={},
)
