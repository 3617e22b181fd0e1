"""Exponentials after taking off the maximum, taken for weights."""

from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="softmax.max_subtracted_shown_as_exp",
    title="After taking off the maximum, the division was forgotten",
    formula=r"A_{ij} = e^{T_{ij} - m_i}",
    explanation=(
        "Taking the largest score off first is good practice, and it keeps the exponentials small. They look"
        " like shares then, with a one in every row, but they have not been divided by their sum yet."
    ),
    remedy=("Go on as without the maximum: add up the exponentials of the row, and divide each by the sum."),
    ways=({"weights": lambda _, values: values["softmax_exp"]},),
    twins={
        "softmax.no_denominator": "where a row's largest score is zero, taking it off changes nothing",
    },
)
