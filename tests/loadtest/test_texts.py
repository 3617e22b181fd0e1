import copy

import numpy as np
import pytest

from loadtest.checks import WrongAnswer
from loadtest.texts import MOST_SENTENCES, SENTENCES, check_text, draw_text

TEXT = "The cat  sat."


def answer(heads=2):
    """About TEXT, with a token before and one after."""
    tokens = [("[CLS]", 0, 0), ("the", 0, 3), ("cat", 4, 7), ("sat", 9, 12), (".", 12, 13), ("[SEP]", 13, 13)]
    weights = np.random.default_rng(0).dirichlet(np.ones(6), (heads, 6) if heads else 6)
    return {
        "tokens": [
            {"token": token, "start": start, "end": end, "special": token[0] == "["} for token, start, end in tokens
        ],
        "layers": [{"layer": 0, "weights": weights.tolist()}],
    }


def test_texts_are_sentences_of_many_lengths():
    """Some short, a few long, as people write."""
    random = np.random.default_rng(0)
    texts = [draw_text(random) for _ in range(2_000)]
    counts = np.array([sum(sentence in text for sentence in SENTENCES) for text in texts])

    assert counts.min() == 1
    assert counts.max() == MOST_SENTENCES
    assert 0.3 < (counts == 1).mean() < 0.7
    assert all(any(sentence in text for text in texts) for sentence in SENTENCES)
    assert [draw_text(np.random.default_rng(5)) for _ in range(2)] == [draw_text(np.random.default_rng(5))] * 2


def test_a_right_answer_passes():
    """A check that fails what is right would be switched off."""
    check_text(TEXT, average_heads=False, answer=answer())
    check_text(TEXT, average_heads=True, answer=answer(heads=0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a["tokens"].pop(2), r"token 2 stands for 9\.\.12, but what is before ends at 3"),
        (lambda a: a["tokens"].pop(4), "no token stands for '.'"),
        (lambda a: a["tokens"][1].update(start=3), r"token 1 stands for 3\.\.3"),
        (lambda a: a["tokens"].insert(5, a["tokens"][4]), r"token 5 stands for 12\.\.13"),
        (lambda a: a["layers"].append({"layer": 1}), r"layers are \[0, 1\], asked for was 0"),
        (
            lambda a: a["layers"][0].update(weights=[[1.0]]),
            r"weights have shape \[1, 1\], expected \[heads\]\[6\]\[6\]",
        ),
        (lambda a: a["layers"][0]["weights"][1][3].__setitem__(0, 0.9), r"weights\[1, 3\] sum to"),
        (lambda a: a["layers"][0]["weights"][1][3].__setitem__(0, None), "not a number"),
    ],
)
def test_a_wrong_answer_is_caught(change, message):
    """The answer to somebody else's text is most often seen by its tokens."""
    wrong = copy.deepcopy(answer())
    change(wrong)

    with pytest.raises(WrongAnswer, match=message):
        check_text(TEXT, average_heads=False, answer=wrong)
