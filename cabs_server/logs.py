"""The server's own log: one JSON object a line, with the request that it is about.

No prompt, answer or key is in it.
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
    """time (UTC), level, logger, message, request_id, and the fields of the record's `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (name := REQUEST.get()) is not None:
            entry["request_id"] = name
        entry |= {k: v for k, v in vars(record).items() if k not in _USUAL}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """The same for people.

    What others wrote begins no line: line breaks are escaped, tracebacks are indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it."""
        name = getattr(record, "request_id", None) or REQUEST.get()
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.created))
        line = f"{when} {record.levelname:7s} {one_line(record.getMessage())}{f' [{name}]' if name else ''}"
        if not record.exc_info:
            return line
        return f"{line}\n{textwrap.indent(printable(self.formatException(record.exc_info)), '    ')}"


def log_config(form: str) -> dict[str, Any]:
    """Settings of `logging.config` for uvicorn and the server. form: json or text."""
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
