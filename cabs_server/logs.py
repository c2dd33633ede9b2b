"""Formats of the server's own log on standard error: one line a record, with the id of the request.

No prompt, answer or key is logged.
"""

import json
import logging
import textwrap
import time
from contextvars import ContextVar
from typing import Any

from cabs_core.base.errors import one_line, printable

#: id of the request that is being answered
REQUEST: ContextVar[str | None] = ContextVar("cabs_request", default=None)
#: attributes of every record of `logging`
_USUAL = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message",
    "asctime",
    "color_message",
}


class JsonFormatter(logging.Formatter):
    """A formatter of records as JSON objects.

    The fields are time (UTC), level, logger, message, and the fields of the logging call's `extra`. Added are
    request_id if a request is being answered, and exception (the traceback) if the record has one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        name = REQUEST.get()
        if name is not None:
            entry["request_id"] = name
        entry |= {k: v for k, v in vars(record).items() if k not in _USUAL}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """A formatter of records as text for people: time (UTC), level, message, and the request's id if any.

    Line breaks are escaped and tracebacks are indented, so no text of a caller or a provider begins a line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line, with its traceback below."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.created))
        line = f"{when} {record.levelname:7s} {one_line(record.getMessage())}"
        name = getattr(record, "request_id", None) or REQUEST.get()
        if name:
            line += f" [{name}]"
        if not record.exc_info:
            return line
        return f"{line}\n{textwrap.indent(printable(self.formatException(record.exc_info)), '    ')}"


def log_config(form: str) -> dict[str, Any]:
    """Return settings for `logging.config.dictConfig` of uvicorn and the server.

    Args:
        form: `json` takes `JsonFormatter`; `text`, or any other word, takes `TextFormatter`.
    """
    kind = JsonFormatter if form == "json" else TextFormatter
    loggers = {
        name: {"handlers": ["out"], "level": "INFO", "propagate": False} for name in ("uvicorn", "cabs")
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{kind.__module__}.{kind.__qualname__}"}},
        "handlers": {
            "out": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}
        },
        "loggers": {**loggers, "uvicorn.error": {"level": "INFO"}},
    }
