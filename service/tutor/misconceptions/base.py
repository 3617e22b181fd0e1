"""What a misconception is: a step of the recipe that somebody does in another way, and why they might."""

from collections.abc import Mapping
from dataclasses import dataclass

from service.tutor.steps import Compute, StepId


@dataclass(frozen=True, slots=True)
class Misconception:
    """A named mistake. Ids are stable and never used again for anything else.

    Attributes:
        id: such as `scale.none`.
        title: what somebody did, in a few words.
        formula: what they computed, LaTeX.
        explanation: why it is not right, to the learner, in plain words.
        remedy: what to do instead, to the learner; it gives no numbers away.
        replaces: the steps that come out otherwise, first the one where it happens, each with what is computed there
            instead. A function raises `Stuck` where the mistake cannot be made: the problem's shapes do not let it, or
            it has no mask, heads or biases for it.
        twins: ids of those that some problems cannot tell from it, with the reason.
        warns: it is told and costs nothing: what it leads to may well be within tolerance.
    """

    id: str
    title: str
    formula: str
    explanation: str
    remedy: str
    replaces: Mapping[StepId, Compute]
    twins: Mapping[str, str]
    warns: bool = False

    @property
    def step(self) -> StepId:
        """The step where it happens."""
        return next(iter(self.replaces))
