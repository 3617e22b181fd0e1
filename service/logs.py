"""Where log lines go, and what they look like."""

import logging

from service.settings import Settings


def set_up(settings: Settings, process: str = "") -> None:
    """Log to standard error: our own lines from `log_level` on, warnings of everybody else's.

    Args:
        settings: of the service.
        process: which one of the service's this is, if it is one of several.
    """
    who = f"{process}: " if process else ""
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s %(levelname)s %(name)s: {who}%(message)s")
    for name in ("service", "models"):
        logging.getLogger(name).setLevel(settings.log_level.upper())
