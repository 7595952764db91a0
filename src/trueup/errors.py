"""The errors of trueup: one tree; each error has a message, a cure and an exit code, and can be pickled.

    TrueupError                 exit code 2
     ├── ConfigError            trueup.toml, an environment variable or an option is wrong
     ├── NodeError              a node cannot be reached, or the connection was lost
     ├── CheckFailed            the checks before the work found reasons not to start
     ├── QueryError             a node rejected a statement
     ├── EngineError            Java or Spark is missing, or failed
     ├── StoreError             the task store or a report file cannot be read or written
     └── Interrupted            stopped by the user (exit code 130)

Errors cross process boundaries (Spark workers raise them, the driver prints them), so all state of an error is in the
arguments of its constructor. Messages never contain a password: text of a database driver is masked first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any


class TrueupError(Exception):
    """An error that the user can act on: what failed, where, and what to do."""

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
        parts = [f"node {self.node}" if self.node else "", self.table or "", self.block or ""]
        place = ", ".join(part for part in parts if part)
        return f"{place}: {self.message}" if place else self.message


class ConfigError(TrueupError):
    """The configuration file, an environment variable or an option is wrong."""


class NodeError(TrueupError):
    """A node cannot be reached, refuses the login, or the connection was lost."""


class CheckFailed(TrueupError):
    """The checks before the work found reasons not to start; all reasons are listed."""

    def __init__(
        self,
        reasons: Sequence[str],
        *,
        cure: str = "",
        node: str | None = None,
        table: str | None = None,
        block: str | None = None,
    ) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(self.reasons), cure=cure, node=node, table=table, block=block)

    def _positional(self) -> tuple[Any, ...]:
        return (self.reasons,)


class QueryError(TrueupError):
    """A node rejected a statement, or did not finish it in time."""

    def __init__(
        self,
        message: str,
        *,
        sqlstate: str = "",
        cure: str = "",
        node: str | None = None,
        table: str | None = None,
        block: str | None = None,
    ) -> None:
        super().__init__(message, cure=cure, node=node, table=table, block=block)
        self.sqlstate = sqlstate

    def __reduce__(self) -> tuple[Callable[..., TrueupError], tuple[Any, ...]]:
        rebuild, args = super().__reduce__()
        return partial(rebuild, sqlstate=self.sqlstate), args


class EngineError(TrueupError):
    """Java or Spark is missing, does not start, or failed."""


class StoreError(TrueupError):
    """The task store or a report file cannot be read or written."""


class Interrupted(TrueupError):
    """The work was stopped by Ctrl-C or SIGTERM."""

    exit_code = 130
