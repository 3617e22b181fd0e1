import inspect
import re
import subprocess
import sys
from collections import Counter

import pytest

from models import errors as model_errors
from models.errors import AttentionError, FieldError, InvalidInput
from service import errors
from service.errors import Later, MethodNotAllowed, QueueFull
from service.metrics import OUTCOMES
from service.problems import (
    NEVER_ANSWERED,
    STATUS,
    known_problems,
    outcome_of,
    problem,
    status_of,
    title_of,
    type_of,
)


def defined_in(module):
    return [
        cls
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, AttentionError) and cls.__module__ == module.__name__
    ]


ERRORS = defined_in(model_errors) + defined_in(errors)


def test_errors_are_defined_in_two_modules_only():
    """Which types an answer may name must not depend on what has been imported."""
    script = (
        "import service.app, service.commands.serve\n"
        "from models.errors import AttentionError\n"
        "waiting, found = [AttentionError], set()\n"
        "while waiting:\n"
        "    found.add(cls := waiting.pop())\n"
        "    waiting += cls.__subclasses__()\n"
        "print(*{cls.__module__ for cls in found})"
    )

    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert set(found.stdout.split()) == {"models.errors", "service.errors"}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_says_in_one_sentence_what_it_means(error):
    """Its first line is the title of the problem and its page under /problems."""
    assert "__doc__" in vars(error), "an inherited docstring describes another error"
    title = inspect.getdoc(error).partition("\n")[0]
    assert title[0].isupper()
    assert title.endswith(".")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_a_word_of_its_own(error):
    """Callers decide by it, so it must be no other's, and safe in a URI."""
    assert "code" in vars(error)
    assert error.code == error.code.lower()
    assert error.code.replace("-", "").isalpha()


def test_no_two_errors_share_a_word():
    counts = Counter(error.code for error in ERRORS)

    assert [code for code, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_a_status(error):
    """That of its nearest ancestor in the table; none is a 500 by oversight."""
    nearest = next(cls for cls in error.__mro__ if cls in STATUS)

    assert status_of(error) == STATUS[nearest]
    assert 400 <= status_of(error) < 600
    if nearest is AttentionError:
        assert error in NEVER_ANSWERED | {errors.InternalError}, "a 500 that nobody meant"


CONTRACT = {
    400: {"Unparsable"},
    401: {"Unauthorized"},
    403: {"Forbidden"},
    404: {"NotFound"},
    405: {"MethodNotAllowed"},
    406: {"NotAcceptable"},
    408: {"ClientTimeout"},
    409: {"Conflict"},
    413: {"TooLarge"},
    415: {"UnsupportedMediaType"},
    422: {
        "InvalidInput", "WrongType", "ShapeMismatch", "NonFinite", "NumericOverflow", "UnknownField", "InvalidOption",
        "ConflictingFields", "UnservableModel",
    },
    429: {"RateLimited"},
    499: {"ClientGone"},
    503: {"Later", "Unavailable", "QueueFull", "Draining", "NotReady", "WorkerLost", "EngineLost", "NotInstalled"},
    504: {"DeadlineExceeded"},
}  # fmt: skip


def test_statuses_are_those_of_the_contract():
    for status, names in CONTRACT.items():
        assert {error.__name__ for error in ERRORS if status_of(error) == status} == names


@pytest.mark.parametrize(
    "error", [error for error in ERRORS if error is not MethodNotAllowed], ids=lambda e: e.__name__
)
def test_every_error_can_be_raised_for_a_place(error):
    """`at` names the place in the text too: many clients show nothing else."""
    raised = error.at("/inputs/3", "no")

    assert type(raised) is error
    assert str(raised) == raised.detail == "/inputs/3: no"
    assert raised.fields == (FieldError("/inputs/3", "no"),)
    assert str(error.at("", "no")) == "no"


@pytest.mark.parametrize(("module", "levels"), [(model_errors, 3), (errors, 4)])
def test_the_tree_in_the_docstring_is_true(module, levels):
    """It is what a newcomer reads first."""
    known = {cls.__name__: cls for cls in ERRORS}
    ancestors = {0: AttentionError}
    drawn = {"AttentionError"}
    for line in module.__doc__.splitlines():
        if match := re.match(r"([│ ]*)[├└]── (\w+)", line):
            depth = len(match[1]) // 4 + 1
            ancestors[depth] = known[match[2]]
            drawn.add(match[2])
            assert issubclass(known[match[2]], ancestors[depth - 1]), line

    assert len(ancestors) == levels
    assert drawn >= {cls.__name__ for cls in ERRORS if cls.__module__ == module.__name__}


def test_later_says_when():
    assert Later("busy").retry_after_s == 1
    assert QueueFull("busy", FieldError("/a", "b"), retry_after_s=7.2).retry_after_s == 7.2


def test_every_known_problem_has_a_page_of_its_own():
    """All but those that no answer can name."""
    known = known_problems()

    assert set(known) == set(ERRORS) - NEVER_ANSWERED
    assert len({type_of(error) for error in known}) == len(known)
    assert all(not title_of(error).endswith(".") for error in known)


def test_retry_after_is_in_whole_seconds_and_never_too_early():
    _, _, headers = problem(QueueFull("full", retry_after_s=7.2), "id")

    assert (b"retry-after", b"8") in headers


def test_a_class_that_is_not_in_the_table_has_the_status_of_its_ancestor():
    class Odd(InvalidInput):
        """Odd."""

        code = "odd"

    assert status_of(Odd) == 422
    assert Odd not in known_problems(), "made by a test, known to nobody"


@pytest.mark.parametrize("status", sorted(set(STATUS.values()) | {200}))
def test_every_status_is_an_outcome(status):
    """The counter of outcomes must have a place for each."""
    assert outcome_of(status) in OUTCOMES
