"""What has been loaded and unloaded since the service started: a worker that starts later has to arrive at the same."""

VERBS = ("load", "unload")


class Journal:
    """Changes in order, without those that later ones made void.

    A worker that starts loads whatever is in the model repository, so only unloading, and loading again what a broader
    unloading took away, have to be repeated.

    Attributes:
        changes: verb and `name` or `name@version` of each.
    """

    def __init__(self) -> None:
        self.changes: list[tuple[str, str]] = []

    def add(self, verb: str, wanted: str) -> None:
        """Note a change; anything else that workers tell each other is none."""
        if verb not in VERBS:
            return
        name, _, version = wanted.partition("@")
        self.changes = [
            (before, what)
            for before, what in self.changes
            if not (what == wanted or (not version and what.partition("@")[0] == name))
        ]
        if verb == "unload" or ("unload", name) in self.changes:
            self.changes.append((verb, wanted))
