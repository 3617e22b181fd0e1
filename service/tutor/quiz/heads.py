"""Questions on several heads."""

from service.tutor.chance import Chance
from service.tutor.quiz.base import Choice, Posed, Question, fixed


def _pose(chance: Chance) -> Posed:
    heads, width = chance.choice((2, 3, 5)), chance.choice((4, 9, 16))
    return Posed(
        f"A layer has {heads} heads; queries and keys have {heads * width} columns altogether. What does each head"
        " divide its scores by?",
        Choice(f"√{width}", "Yes: a head's sums run over its own columns only."),
        (
            Choice(
                f"√{heads * width}",
                "That is the root of all columns together. A head never sees more than its own.",
                "scale.total_width",
            ),
            Choice(str(width), "Those are the columns of a head; but it is their root that is needed.", "scale.dk"),
            Choice(f"√{heads}", "How many heads there are makes no difference to a head's own sums."),
        ),
    )


QUESTIONS = (
    fixed(
        "heads.why",
        "What are several heads good for?",
        Choice(
            "A token can attend to different things at once.",
            "Yes: each head has queries, keys and values of its own. One may follow the grammar while another"
            " looks for what a word stands for.",
        ),
        Choice(
            "They do the same several times, and their average is more exact.",
            "They do different things, and are not averaged.",
            "heads.averaged",
        ),
        Choice(
            "Each works on some of the tokens.",
            "Every head sees all tokens; it is the columns that they share out.",
        ),
        Choice(
            "The first heads propose, and the last one decides.",
            "They work beside each other and know nothing of one another.",
        ),
    ),
    fixed(
        "heads.split",
        "Queries have eight columns, and there are two heads. Which columns belong to the first one?",
        Choice("The first four", "Yes: heads own neighbouring columns."),
        Choice("The first, third, fifth and seventh", "They are not dealt out in turn.", "heads.interleaved"),
        Choice("All eight", "They share the columns out, so that each has some to itself."),
        Choice("The first two", "Two is the number of heads; the columns are divided among them."),
    ),
    fixed(
        "heads.join",
        "How do the outputs of the heads become one table?",
        Choice(
            "They are written side by side: a row gets longer.",
            "Yes: every token keeps what each head has found for it.",
        ),
        Choice("They are averaged.", "That would blur what the heads have found apart.", "heads.averaged"),
        Choice(
            "Their numbers are read off one head after the other and refilled into rows.",
            "A row would then hold numbers of several tokens.",
            "heads.merge_order",
        ),
        Choice(
            "Only the head with the largest weight counts.",
            "No head is left out; what follows may use them all.",
        ),
    ),
    Question("heads.scale", _pose),
)
