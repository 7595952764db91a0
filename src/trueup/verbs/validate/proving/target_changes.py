"""Where changes of the target come from: the protocol that `target_log` and `target_tube` implement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trueup.capture.log.pgoutput import Relation
from trueup.capture.log.syncer import Syncer
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.plan import Pair
from trueup.verbs.validate.source import Opened, Pulled
from trueup.verbs.validate.tables import Tables


@dataclass(frozen=True)
class Captured:
    """How the changes of a table of the target are captured, as a text that is another one after an interruption.

    The text is empty if changes are not seen; `problem` says why.
    """

    text: str
    problem: str = ""


class TargetChanges(Protocol):
    """Yields the changes of the target. Tables are known by their number or OID: see `find_target_pair`."""

    # Why a certificate is void whose table was not captured without interruption.
    interrupted: str

    @property
    def skips_applied(self) -> bool:
        """Whether changes of the syncer are recognized, so that no key of them is reported."""
        ...

    def begin(self, stored: Stored, syncer: Syncer, position: int) -> tuple[Opened, Mapping[str, Captured]]:
        """Open the sessions and create what captures changes; raise SlotLost if changes were lost.

        `position` is that of the source, before which the validation reads no changes any more.
        """
        ...

    def close(self) -> None:
        """Close the sessions."""
        ...

    def check(self, read: int, lag: float) -> int | None:
        """Health check, called every few seconds; raise SlotLost if changes were lost."""
        ...

    def pull(self, start: int, *, at_once: bool = False) -> Pulled | None:
        """Return the changes from `start` on, up to now; None if there are none for now.

        With `at_once`, it does not pause after a read that found nothing.
        """
        ...

    def found(self, pulled: Pulled) -> Mapping[str, Captured]:
        """Return what the read has found about the capture of tables; it is stored at once."""
        ...

    def captured(self) -> Mapping[str, Captured]:
        """Return how tables are captured now; stored in the transaction that moves the position."""
        ...

    def without_keys(self, table: str) -> Mapping[str, Captured]:
        """Leave out a table, by its name on the target, of which a change without a key was read."""
        ...

    def take_applied(self) -> int:
        """Return the number of changes of the syncer that were skipped since the last call."""
        ...

    def confirm(self, pulled: Pulled) -> None:
        """Discard changes; called after the checkpoint that contains their result is committed."""
        ...

    def leave_mark(self) -> None:
        """Leave a mark that shows later whether the target went back; called after changes were judged."""
        ...

    def release(self, position: int, *, at_once: bool = False) -> None:
        """Let the server discard what was committed before a checkpointed position."""
        ...


def numbers_of(tables: Tables) -> dict[str, int]:
    """Return a number below 0 per table of the validation: several of them may have the same table on the target."""
    return {name: -number for number, name in enumerate(tables.routes, 1)}


def find_target_pair(tables: Tables, relation: Relation) -> tuple[str, Pair | None]:
    """Return the name and the pair of a table of the target, by its number or OID; no pair if it is not captured.

    Keys of the pair are converted as the target prints them.
    """
    numbers = {number: name for name, number in numbers_of(tables).items()}
    by_oid = {pair.target_oid: name for name, pair in tables.pairs.items()}
    name = (numbers if relation.id < 0 else by_oid).get(relation.id, "")
    pair = tables.pairs.get(name)
    return name, None if pair is None else pair.of_target()
