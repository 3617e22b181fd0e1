"""What a worker that starts later has to repeat."""

from hypothesis import given
from hypothesis import strategies as st

from service.workers.journal import Journal

NAMES, VERSIONS = ("a", "b"), ("1", "2")
FOLDER = {(name, version) for name in NAMES for version in VERSIONS}
"""What the model repository holds all along."""

WANTED = st.sampled_from([*NAMES, *(f"{name}@{version}" for name, version in sorted(FOLDER))])
CHANGES = st.lists(st.tuples(st.sampled_from(["load", "unload"]), WANTED), max_size=12)


def served(changes, start=FOLDER):
    """What is served after these changes."""
    found = set(start)
    for verb, wanted in changes:
        name, _, version = wanted.partition("@")
        concerned = {entry for entry in FOLDER if entry[0] == name and version in ("", entry[1])}
        found = found | concerned if verb == "load" else found - concerned
    return found


@given(CHANGES)
def test_a_worker_that_starts_late_arrives_at_what_the_others_serve(changes):
    journal = Journal()
    for verb, wanted in changes:
        journal.add(verb, wanted)

    assert served(journal.changes) == served(changes)


@given(CHANGES)
def test_the_journal_does_not_grow_with_every_change(changes):
    journal = Journal()
    for verb, wanted in changes * 20:
        journal.add(verb, wanted)

    assert len(journal.changes) <= len(NAMES) * (1 + len(VERSIONS))


def test_anything_else_is_not_a_change():
    journal = Journal()
    journal.add("metrics", None)

    assert journal.changes == []
