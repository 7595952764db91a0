"""Where changes come from: the protocol that the log (`log`) and the triggers (`tubes`) implement.

A source yields changes and does not know how they are judged. The steps of `validator` pull the changes, judge them
and commit the result; then `confirm` and `release` let the source discard what is no longer needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from trueup.capture.log.pgoutput import Change
from trueup.capture.triggers.readers import Mark
from trueup.verbs.validate.meta import Stored


@dataclass(frozen=True)
class Coverage:
    """Whether the source reports all changes of the tables."""

    # Tables whose changes may be missed, and why.
    problems: Mapping[str, str] = field(default_factory=dict)
    # Triggers only: a text per table that is another one after an interruption of the capture.
    captures: Mapping[str, str] = field(default_factory=dict)
    # What to log about lost changes.
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opened:
    """The position to read from, and whether it is a new one (at the first start, and after changes were lost)."""

    position: int
    is_new: bool
    coverage: Coverage = field(default_factory=Coverage)


class Changes(Protocol):
    """Changes, iterated once. Then all changes before `position` have been yielded; if `is_cut`, more may exist."""

    @property
    def position(self) -> int: ...

    @property
    def is_cut(self) -> bool: ...

    def __iter__(self) -> Iterator[Change]: ...


@dataclass(frozen=True)
class Pulled:
    """Changes that were read and are not judged yet."""

    changes: Changes
    # The changes can be judged when the syncer has applied everything before this position.
    needs: int
    # Triggers only: the pods to store in the checkpoint, so that a kill does not make them count twice. Their changes
    # have no positions of their own; all that is known is that they were committed before `needs`.
    pods: tuple[int, ...] | None = None
    # Triggers only: whether everything that the syncer had applied is included.
    has_all: bool = False
    coverage: Coverage = field(default_factory=Coverage)
    # Triggers only: the round, see `capture.triggers.readers`.
    mark: Mark = field(default_factory=Mark)


class ChangeSource(Protocol):
    """Yields the changes of the source node."""

    def prepare(self, stored: Stored) -> None:
        """Prepare the capture of changes, before the look at the catalogs; raise SlotLost if changes were lost."""
        ...

    def open(self, stored: Stored) -> Opened:
        """Open the sessions; raise SlotLost if changes were lost since the stored position."""
        ...

    def close(self) -> None:
        """Close the sessions."""
        ...

    def check(self, read: int, lag: float) -> int | None:
        """Health check, called every few seconds; raise SlotLost if changes were lost. Return the retained bytes.

        `read` is the position before which all changes are read, `lag` the seconds for which no progress is expected.
        """
        ...

    def read(self, start: int, end: int) -> Pulled | None:
        """Return the changes from `start` on that were committed before `end`; None if there are none for now."""
        ...

    def confirm(self, pulled: Pulled) -> None:
        """Discard changes; called after the checkpoint that contains their result is committed."""
        ...

    def leave_mark(self) -> None:
        """Leave a mark that shows later whether the source went back; called after changes were judged."""
        ...

    def release(self, position: int, *, at_once: bool = False) -> None:
        """Let the server discard what was committed before a checkpointed position; now and then, or at once."""
        ...
