"""Where log lines go, and what they look like."""

import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from service.settings import Settings

OURS = ("service", "models")
"""Loggers."""


def outline(error: BaseException) -> str:
    """Where an error was raised, of which type it is, and the same of its causes.

    Not what it says: an error that nobody foresaw may quote the request, which is nobody's business.
    """
    found: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        found.insert(0, "".join(traceback.format_tb(cause.__traceback__)) + type(cause).__qualname__)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n".join(found)


def unquoted(record: logging.LogRecord) -> bool:
    """A filter that outlines the errors of other people's lines, which may be about a request too; ours know better."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and not record.name.startswith(OURS):
        record.msg, record.args = f"{record.getMessage().rstrip()}\n{outline(error)}", None
        record.exc_info = record.exc_text = None
    return True


class JsonFormatter(logging.Formatter):
    """A line as one JSON object, with the fields of a line that has any."""

    def __init__(self, process: str) -> None:
        """Lines of a process of this name; empty for the only one."""
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._process,
            "message": record.getMessage(),
        }
        if isinstance(record.args, Mapping):
            line |= record.args
        if (request_id := getattr(record, "request_id", None)) is not None:
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def set_up(settings: Settings, process: str = "") -> None:
    """Log to standard error: our own lines from `log_level` on, warnings of everybody else's.

    Args:
        settings: of the service.
        process: which one of the service's this is, if it is one of several.
    """
    handler = logging.StreamHandler()
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter(process))
        logging.captureWarnings(capture=True)  # else Python writes them as they are
    else:
        who = f"{process}: " if process else ""
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s %(name)s: {who}%(message)s"))
    if settings.log_level != "debug":
        handler.addFilter(unquoted)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in OURS:
        logging.getLogger(name).setLevel(settings.log_level.upper())
