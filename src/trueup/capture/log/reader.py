"""Reads the row changes of a logical slot between two positions, without advancing the slot.

A killed reader reads the same changes again: the slot is advanced only by `SlotReader.advance`, which the caller calls
after it has stored the results.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

import psycopg

from trueup.capture.log import slot as slots
from trueup.capture.log.pgoutput import Change, Commit, Origins, Places, decode
from trueup.capture.log.slot import Slot, SlotLost, lsn_text
from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import error_from_server

# Undefined object, object not in prerequisite state: SQLSTATEs for a slot that was dropped or invalidated.
_UNDEFINED = "42704"
_NO_SLOT = (_UNDEFINED, "55000")


class SlotReader:
    """Reads one slot with one session; while changes are iterated, the session cannot be used otherwise.

    `cure` is the cure of the error SlotLost.
    """

    def __init__(self, connection: Connection, node: Node, slot: str, publication: str, *, cure: str = "") -> None:
        self.connection = connection
        self.slot = slot
        self.publication = publication
        self._node = node
        self._cure = cure

    def state(self) -> Slot:
        """Return the state of the slot; raise SlotLost if it does not exist or was invalidated."""
        with self._server_errors():
            state = slots.look(self.connection, self.slot)
        if state is None:
            raise SlotLost(
                f"replication slot {self.slot} does not exist",
                cure=self._cure
                or f"create it: SELECT pg_create_logical_replication_slot('{self.slot}', '{slots.PLUGIN}')",
                node=self._node.name,
            )
        return state

    def changes(
        self, start: int, end: int, places: Places, *, max_messages: int = 0, origins: Origins | None = None
    ) -> SlotChanges:
        """Return the changes of the transactions whose commit record starts in `[start, end)`.

        `places` returns the key columns of a table. With `max_messages`, reading ends with the transaction that reaches
        this number of messages, counted from the position of the slot: advance the slot, or reading makes no progress.
        Transactions that `origins` leaves out are counted there.
        Raises SlotLost if the slot was advanced beyond `start`.
        """
        self.check_start(start)
        return SlotChanges(self, start, end, places, max_messages, origins)

    def check_start(self, start: int) -> None:
        """Raise SlotLost if the slot has been advanced beyond `start`."""
        confirmed = self.state().confirmed
        if confirmed > start:
            raise SlotLost(
                f"replication slot {self.slot} is at {lsn_text(confirmed)}, after the start position {lsn_text(start)}:"
                " the changes between were not seen",
                cure=self._cure or "another reader advanced the slot: use one slot per reader, and start again",
                node=self._node.name,
            )

    def messages(self, end: int, max_messages: int) -> Generator[bytes, None, None]:
        """Yield the messages of the transactions that were committed before `end`."""
        peeked = slots.peek(self.connection, self.slot, self.publication, upto=end, max_messages=max_messages)
        with closing(peeked), self._server_errors():
            yield from peeked

    def advance(self, position: int) -> None:
        """Let the server discard what was committed before `position`."""
        with self._server_errors():
            slots.advance(self.connection, self.slot, position)

    @contextmanager
    def _server_errors(self) -> Iterator[None]:
        """Raise driver errors as errors of trueup; as SlotLost if the slot was dropped or invalidated."""
        try:
            yield
        except psycopg.Error as error:
            if error.sqlstate in _NO_SLOT and slots.look(self.connection, self.slot) is None:
                message = f"replication slot {self.slot} was dropped"
                raise SlotLost(message, cure=self._cure, node=self._node.name) from None
            if error.sqlstate == _UNDEFINED and f'"{self.publication}"' in str(error):
                message = f"publication {self.publication} did not exist when changes were written to the log"
                raise SlotLost(message, cure=self._cure, node=self._node.name) from None
            raise error_from_server(error, self._node) from None


class SlotChanges:
    """The changes of one read, to be iterated once.

    `position` is a position before which all changes have been yielded. During the iteration it follows the ends of
    transactions; when the iteration is complete and was not cut by `max_messages`, it is at least `end`.
    """

    def __init__(
        self, reader: SlotReader, start: int, end: int, places: Places, max_messages: int, origins: Origins | None
    ) -> None:
        self.position = start
        self.is_cut = False
        self._reader = reader
        self._start = start
        self._end = end
        self._places = places
        self._max_messages = max_messages
        self._origins = origins
        self._count = 0

    def __iter__(self) -> Iterator[Change]:
        with closing(self._counted()) as messages:
            for item in decode(messages, self._places, start=self._start, origins=self._origins):
                if not self._start <= item.lsn < self._end:
                    continue
                if isinstance(item, Commit):
                    self.position = max(self.position, item.end)
                else:
                    yield item
        # Another reader may have advanced the slot between the check of its position and the read.
        self._reader.check_start(self._start)
        self.is_cut = bool(self._max_messages) and self._count >= self._max_messages
        if not self.is_cut:
            self.position = max(self.position, self._end)

    def _counted(self) -> Generator[bytes, None, None]:
        with closing(self._reader.messages(self._end, self._max_messages)) as messages:
            for message in messages:
                self._count += 1
                yield message
