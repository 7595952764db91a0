"""Log records of the logger `trueup`: fields that are known from the context, masked secrets, text and JSON lines.

Modules log with `logging.getLogger(__name__)`. The library adds only a `NullHandler`; the command line adds a handler
for stderr with `show`. A program that embeds trueup adds `LogFilter` to its own handler.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any

from trueup.config.secrets import MASK, find_secrets, mask
from trueup.config.visible import one_line, visible_json

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

_root = logging.getLogger("trueup")
# The driver warns, for example about a connection that is lost in a pipeline.
_driver = logging.getLogger("psycopg")
_NONE: Mapping[str, str] = MappingProxyType({})
_fields: ContextVar[Mapping[str, str]] = ContextVar("trueup_log_fields", default=_NONE)
# Attributes that every record has: all others come from `extra`.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


@contextmanager
def log_fields(**fields: str) -> Iterator[None]:
    """Add fields such as `node`, `table` and `task` to all records of this thread while the block runs."""
    token = _fields.set({**_fields.get(), **{name: value for name, value in fields.items() if value}})
    try:
        yield
    finally:
        _fields.reset(token)


class LogFilter(logging.Filter):
    """Mask passwords and tokens in a record, and add the fields `node`, `table` and `task` where they are known.

    Add it to a handler: filters of a logger do not see the records of its child loggers. `secrets` are further texts
    to mask wherever they appear.
    """

    def __init__(self, *secrets: str) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record in place, and let it pass."""
        for name, value in _fields.get().items():
            record.__dict__.setdefault(name, value)
        record.msg, record.args = self._masked(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        # Formatters use the text if there is no exception; the exception itself may hold a password.
        record.exc_info = None
        record.exc_text = self._masked(record.exc_text)
        record.stack_info = self._masked(record.stack_info)
        for name, value in extra_fields(record).items():
            record.__dict__[name] = self._masked_field(name, value)
        return True

    def _masked(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {str(name): self._masked_field(str(name), item) for name, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._masked(item) for item in value]
        return mask(str(value), *self._secrets)

    def _masked_field(self, name: str, value: Any) -> Any:
        """Mask the whole value of a field that is called `password`, `token` or similar."""
        return MASK if find_secrets(f"{name}=x") else self._masked(value)


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record that were given as `extra`, or come from `log_fields`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class TextFormatter(logging.Formatter):
    """One line per record: `2026-11-15 19:33:33Z trueup: message`; further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it if there is one."""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        first, *more = [one_line(line) for line in record.getMessage().split("\n")]
        more += [one_line(line) for line in (record.exc_text or "").split("\n") if line]
        return "\n  ".join([f"{_time(record):%Y-%m-%d %H:%M:%SZ} trueup: {level}{first}", *more])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, then the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback is the field `traceback`."""
        entry = {
            "time": f"{_time(record):%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({name: value for name, value in extra_fields(record).items() if name not in entry})
        if record.exc_text:
            entry["traceback"] = record.exc_text
        return visible_json(json.dumps(entry, default=str))


class _Stderr(logging.Handler):
    """Write to what `sys.stderr` is at that moment: a progress bar replaces it, to keep lines above the bar."""

    # Whether the level was set by the user.
    level_chosen = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


_handler = _Stderr()
_handler.addFilter(LogFilter())
# Records of libraries are not shown. If the root logger has no handler, `logging.exception`, which py4j calls when the
# Java process is gone, adds one that prints to stderr.
_others = logging.NullHandler()


def show(level: str = "", log_format: str = "") -> None:
    """Show the records of trueup on stderr, from this level on, and warnings of the driver."""
    for logger in (_root, _driver):
        if _handler not in logger.handlers:
            logger.addHandler(_handler)
    logging.getLogger().addHandler(_others)
    _root.setLevel(logging.DEBUG)
    set_format(log_format or "text")
    set_level(level or "info")
    _handler.level_chosen = bool(level)


def hide() -> None:
    """Undo `show`."""
    for logger in (_root, _driver):
        logger.removeHandler(_handler)
    logging.getLogger().removeHandler(_others)
    _root.setLevel(logging.NOTSET)


def set_level(level: str) -> None:
    """Change the level of what is shown on stderr."""
    _handler.setLevel(level.upper())
    _handler.level_chosen = True


def hide_notes() -> None:
    """Show errors only, unless a level was chosen."""
    if not _handler.level_chosen:
        _handler.setLevel(logging.ERROR)


def set_format(log_format: str) -> None:
    """Change the format of what is shown on stderr."""
    _handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())


def shows_json() -> bool:
    """Return whether stderr is written as JSON lines."""
    return _handler in _root.handlers and isinstance(_handler.formatter, JsonFormatter)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, timezone.utc)
