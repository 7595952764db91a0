"""The errors of trueup: one tree, each with a message, a cure and an exit code, all picklable.

    TrueupError                 exit code 2
     ├── ConfigError            trueup.toml, an environment variable or an option is wrong
     ├── NodeError              a node cannot be reached, or was lost
     ├── CheckFailed            the checks before any work found reasons not to start
     ├── QueryError             a node refused a statement
     ├── EngineError            Java or Spark is not there, or failed
     ├── StoreError             the task store or a report file cannot be read or written
     └── Interrupted            stopped by the user (exit code 130)

Errors cross process borders (Spark workers raise them, the driver shows them), so all that an error knows is in
its constructor's arguments. Messages never hold a password: whoever builds one from a driver's text masks it first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any


class TrueupError(Exception):
    """Something went wrong that the user should know about: what, where, and what to do."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        cure: str = "",
        node: str | None = None,
        table: str | None = None,
        block: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure
        self.node = node
        self.table = table
        self.block = block

    def __reduce__(self) -> tuple[Callable[..., TrueupError], tuple[Any, ...]]:
        rebuild = partial(type(self), cure=self.cure, node=self.node, table=self.table, block=self.block)
        return rebuild, self._positional()

    def _positional(self) -> tuple[Any, ...]:
        return (self.message,)

    def __str__(self) -> str:
        where = [f"node {self.node}" if self.node else "", self.table or "", self.block or ""]
        place = ", ".join(part for part in where if part)
        return f"{place}: {self.message}" if place else self.message


class ConfigError(TrueupError):
    """The configuration file, an environment variable or an option is wrong."""


class NodeError(TrueupError):
    """A node cannot be reached, refuses the login, or was lost in the middle of the work."""


class CheckFailed(TrueupError):
    """The checks before any work found reasons not to start; all of them are listed at once."""

    def __init__(self, reasons: Sequence[str], **where: Any) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(self.reasons), **where)

    def _positional(self) -> tuple[Any, ...]:
        return (self.reasons,)


class QueryError(TrueupError):
    """A node refused a statement, or did not finish it in time."""

    def __init__(self, message: str, *, sqlstate: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.sqlstate = sqlstate

    def __reduce__(self) -> tuple[Callable[..., TrueupError], tuple[Any, ...]]:
        rebuild, args = super().__reduce__()
        return partial(rebuild, sqlstate=self.sqlstate), args


class EngineError(TrueupError):
    """Java or Spark is not there, does not start, or failed in the middle of the work."""


class StoreError(TrueupError):
    """The task store or a report file cannot be read or written."""


class Interrupted(TrueupError):
    """The user stopped the work (Ctrl-C, or a stop signal)."""

    exit_code = 130
