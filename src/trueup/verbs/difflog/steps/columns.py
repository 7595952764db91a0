"""The names of the columns of a frame that hold states and steps, and of the columns of a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LogColumns:
    """What the rows of a log are made of: the key, the column of the fast version, and the multiplier of `Version`."""

    key: tuple[str, ...]
    fast_version: str
    multiplier: int = 1000


@dataclass(frozen=True)
class StateColumns:
    """The names of the columns of a frame that hold a state.

    `cleared` has the version of the last deletion, `since` the versions of the values that a newer one replaces.
    """

    fast: str
    slow: str
    deleted: str
    cleared: str
    columns: Mapping[str, str]
    since: Mapping[str, str]


@dataclass(frozen=True)
class StepColumns:
    """The names of the columns of a frame that hold a step: the states before and after it, and its updates."""

    before: StateColumns
    after: StateColumns
    # Whether the step changes the state; the updates that are kept aside; the newest one that is applied.
    applied: str
    late: str
    newest: str


@dataclass(frozen=True)
class Glue:
    """The columns of the fast supplier that the old states have, and those that the visits have.

    At most two fast versions of a key are known in a run: that of its old state, and the newest one in the visits.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    # Those of them that are also part of the slow state.
    kept: tuple[str, ...] = ()

    # Columns of the frame with these two fast versions.
    old_version = "Version of the old state"
    new_version = "Version of the visits"

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, each once."""
        return tuple(dict.fromkeys((*self.old, *self.new)))

    def place(self, name: str) -> str:
        """Return a column of the frame with values of this column of the fast supplier."""
        return self.old_name(name) if name in self.old else self.new_name(name)

    @staticmethod
    def old_name(name: str) -> str:
        """Return the column of the frame with a value of the old state."""
        return f"{name} of the old state"

    @staticmethod
    def new_name(name: str) -> str:
        """Return the column of the frame with a value of the newest visit."""
        return f"{name} of the visits"
