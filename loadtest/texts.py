"""Sentences for an encoder, and what its answers about them must satisfy.

Pure: the same seed draws the same texts, on every machine.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from loadtest.checks import WrongAnswer, check_finite, check_weights, numbers

SENTENCES: Final = (
    "All human beings are born free and equal in dignity and rights.",
    "They are endowed with reason and conscience and should act towards one another in a spirit of brotherhood.",
    "Everyone has the right to life, liberty and security of person.",
    "No one shall be held in slavery or servitude; slavery and the slave trade shall be prohibited in all their forms.",
    "No one shall be subjected to torture or to cruel, inhuman or degrading treatment or punishment.",
    "Everyone has the right to recognition everywhere as a person before the law.",
    "All are equal before the law and are entitled without any discrimination to equal protection of the law.",
    "No one shall be subjected to arbitrary arrest, detention or exile.",
    "Everyone has the right to freedom of movement and residence within the borders of each State.",
    "Everyone has the right to leave any country, including his own, and to return to his country.",
    "Everyone has the right to a nationality.",
    "Everyone has the right to own property alone as well as in association with others.",
    "Everyone has the right to freedom of thought, conscience and religion.",
    "Everyone has the right to freedom of opinion and expression.",
    "No one may be compelled to belong to an association.",
    "The will of the people shall be the basis of the authority of government.",
    "Everyone, without any discrimination, has the right to equal pay for equal work.",
    "Everyone has the right to form and to join trade unions for the protection of his interests.",
    "Everyone has the right to rest and leisure, including reasonable limitation of working hours.",
    "Everyone has the right to education.",
    "Technical and professional education shall be made generally available.",
    "Parents have a prior right to choose the kind of education that shall be given to their children.",
    "Everyone has duties to the community in which alone the free and full development of his personality is possible.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
)
"""Of the Universal Declaration of Human Rights, 1948: short and long ones, and letters beyond ASCII."""

LENGTH_MU: Final = 0.4
"""Mean of ln(sentences): half of the texts are of one sentence."""
LENGTH_SIGMA: Final = 0.7
"""Standard deviation of ln(sentences)."""
MOST_SENTENCES: Final = 6
"""About 100 words: encoders take 512 tokens."""


def draw_text(random: np.random.Generator) -> str:
    """One sentence or some, as many as a log-normal variable says; assumed, as the lengths of `payloads`."""
    count = int(np.clip(random.lognormal(LENGTH_MU, LENGTH_SIGMA), 1, MOST_SENTENCES))
    return " ".join(str(sentence) for sentence in random.choice(SENTENCES, count, replace=False))


def check_text(text: str, *, average_heads: bool, answer: Mapping[str, Any]) -> None:
    """Check an answer about the weights of layer 0.

    Tokens stand for the text, in order, and leave out nothing but white space; there is one layer, and its weights are
    distributions over the tokens.

    Args:
        text: what was asked about.
        average_heads: whether the mean over the heads was asked for.
        answer: of `POST /v1/text/attention`.

    Raises:
        WrongAnswer: at the first thing that is wrong.
    """
    _check_tokens(text, answer["tokens"])
    if [layer["layer"] for layer in answer["layers"]] != [0]:
        raise WrongAnswer(f"layers are {[layer['layer'] for layer in answer['layers']]}, asked for was 0")
    weights = numbers("weights", answer["layers"][0]["weights"])  # (heads, n, n), or (n, n)
    n = len(answer["tokens"])
    if weights.ndim != (2 if average_heads else 3) or weights.shape[-2:] != (n, n):
        expected = f"[{n}][{n}]" if average_heads else f"[heads][{n}][{n}]"
        raise WrongAnswer(f"weights have shape {list(weights.shape)}, expected {expected}")
    check_finite("weights", weights)
    check_weights(weights)


def _check_tokens(text: str, tokens: Any) -> None:
    end = 0
    for i, token in enumerate(tokens):
        if token["special"]:
            continue
        if not end <= token["start"] < token["end"] <= len(text) or text[end : token["start"]].strip():
            raise WrongAnswer(
                f"token {i} stands for {token['start']}..{token['end']}, but what is before ends at {end}"
            )
        end = token["end"]
    if text[end:].strip():
        raise WrongAnswer(f"no token stands for {text[end:]!r}")
