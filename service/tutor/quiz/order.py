"""Questions on the order of the steps."""

from service.tutor.quiz.base import Choice, fixed

QUESTIONS = (
    fixed(
        "order.steps",
        "Queries, keys and values are made. In which order does it go on?",
        Choice("dot products, scale, softmax, mix the values", "Yes: compare, calm down, share out, mix."),
        Choice(
            "dot products, softmax, scale, mix the values",
            "Scaled after the softmax, the weights no longer add up to one.",
            "scale.after_softmax",
        ),
        Choice(
            "softmax, dot products, scale, mix the values",
            "The softmax needs scores, and those come from the dot products.",
        ),
        Choice(
            "dot products, scale, mix the values, softmax",
            "The softmax makes the weights that the values are mixed with.",
            "softmax.skipped",
        ),
    ),
    fixed(
        "order.mask",
        "Where does a mask come in?",
        Choice("between scaling and the softmax", "Yes: the softmax must not see what is hidden."),
        Choice(
            "between the softmax and mixing",
            "Too late: what is hidden had its part in the sum.",
            "mask.after_softmax",
        ),
        Choice("before the dot products", "It says who may look at whom, and only scores are about two tokens."),
        Choice("after mixing", "What has been mixed cannot be told apart any more.", "mask.ignored"),
    ),
    fixed(
        "order.values",
        "At which step are the values used for the first time?",
        Choice("when they are mixed, last of all", "Yes: until then it is queries and keys alone."),
        Choice("when they are compared with the queries", "Keys are compared with queries.", "score.qvt"),
        Choice("when they are scaled", "Scores are scaled. Values stay as they are."),
        Choice("when the softmax is taken of them", "It is taken of scores."),
    ),
)
