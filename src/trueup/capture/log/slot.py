"""A logical replication slot: create, inspect, peek, advance, drop. Positions are plain integers.

The slot is read with `pg_logical_slot_peek_binary_changes`, which does not advance it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from struct import Struct

import psycopg
from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.db.statements import load
from trueup.errors import CheckFailed, TrueupError

PLUGIN = "pgoutput"
_HEADER = 19
_FIELD = Struct("!hi").unpack_from
_IN_USE = "55006"
# A session that was killed holds its slot until the server notices.
_BUSY_SECONDS = 15.0
_BUSY_PAUSE = 0.1


class SlotLost(TrueupError):
    """Changes were lost: the slot was dropped or advanced, or the server removed log that it still needed."""


@dataclass(frozen=True)
class Slot:
    """The state of a slot on the server: positions, and the bytes of log that it retains."""

    restart: int
    confirmed: int
    retained: int


def lsn_text(position: int) -> str:
    """Format a position as PostgreSQL does: `16/B374D848`."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Parse a position written by `lsn_text` or PostgreSQL."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def flushed_position(connection: Connection) -> int:
    """Return the position up to which the log of the server is flushed."""
    return int(one_value(connection.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")))


def written_position(connection: Connection) -> int:
    """Return the end of the log of the server; what is before it may not be flushed yet."""
    return int(one_value(connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")))


def emit_message(connection: Connection, prefix: str, content: str = "") -> int:
    """Write a transactional message into the log and return the position behind it, flushed.

    In autocommit, everything that was visible before the call was committed before this position.
    """
    query = "SELECT (pg_logical_emit_message(true, %s, %s) - '0/0')::int8"
    return int(one_value(connection.execute(query, [prefix, content])))


def make_slot(connection: Connection, slot: str) -> int:
    """Create a slot and return the position from which it reports all changes."""
    level = one_value(connection.execute("SHOW wal_level"))
    if level != "logical":
        raise CheckFailed(
            [f"wal_level is {level}; a logical replication slot needs wal_level = logical"],
            cure="set wal_level = logical and restart the server, or use --source changelog",
        )
    query = "SELECT (lsn - '0/0')::int8 FROM pg_create_logical_replication_slot(%s, %s)"
    return int(one_value(connection.execute(query, [slot, PLUGIN])))


def look(connection: Connection, slot: str) -> Slot | None:
    """Return the state of a slot, or None if it does not exist; raise SlotLost if it was invalidated."""
    row = connection.execute(load("trueup.capture.log", "slot.sql")["slot"], {"slot": slot}).fetchone()
    if row is None:
        return None
    plugin, restart, confirmed, is_lost, retained = row
    if is_lost or restart is None:
        raise SlotLost(
            f"the server removed log that replication slot {slot} still needed",
            cure="compare all rows: run a full scrub, or trueup diff",
        )
    if plugin != PLUGIN:
        raise CheckFailed(
            [f"replication slot {slot} uses the output plugin {plugin}, not {PLUGIN}"], cure="choose another slot name"
        )
    return Slot(int(restart), int(confirmed), int(retained))


def advance(connection: Connection, slot: str, position: int) -> None:
    """Let the server discard what was committed before `position`."""
    _retry_busy(lambda: connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [slot, lsn_text(position)]))


def drop(connection: Connection, slot: str, publication: str) -> bool:
    """Drop a slot and, unless the name is empty, a publication; return whether the slot existed."""
    exists = connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchone()
    if exists:
        _retry_busy(lambda: connection.execute("SELECT pg_drop_replication_slot(%s)", [slot]))
    if publication:
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication)))
    return bool(exists)


def peek(
    connection: Connection, slot: str, publication: str, *, upto: int, max_messages: int = 0
) -> Generator[bytes, None, None]:
    """Yield the messages of all transactions that were committed before `upto`, as they arrive.

    After `max_messages` (0: no limit) it ends at the end of the current transaction. The server stores its result in a
    temporary file; this process holds one message at a time, whatever the size of a transaction.
    """
    messages = sql.SQL(", 'messages', 'true'") if connection.info.server_version >= 140000 else sql.SQL("")
    query = sql.SQL(load("trueup.capture.log", "slot.sql")["peek"]).format(
        slot=sql.Literal(slot),
        upto=sql.Literal(lsn_text(upto)),
        max_messages=sql.Literal(max_messages) if max_messages else sql.SQL("NULL"),
        publication=sql.Literal('"' + publication.replace('"', '""') + '"'),
        messages=messages,
    )
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        has_started = False
        try:
            with connection.cursor().copy(query) as copy:
                for message in _fields(copy):
                    has_started = True
                    yield message
            return
        except psycopg.Error as error:
            if has_started or error.sqlstate != _IN_USE or time.monotonic() > deadline:
                raise
        time.sleep(_BUSY_PAUSE)


def _fields(blocks: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytes]:
    """Yield the only column of each row of a binary COPY."""
    rest = b""
    skip = _HEADER
    for block in blocks:
        data = rest + bytes(block) if rest else bytes(block)
        place = skip
        skip = 0
        size = len(data)
        while place + 6 <= size:
            count, length = _FIELD(data, place)
            if count < 0 or place + 6 + length > size:
                break
            yield data[place + 6 : place + 6 + length]
            place += 6 + length
        rest = data[place:]


def _retry_busy(call: Callable[[], object]) -> None:
    """Call a function; repeat it while another session uses the slot."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            call()
            return
        except psycopg.Error as error:
            if error.sqlstate != _IN_USE or time.monotonic() > deadline:
                raise
        time.sleep(_BUSY_PAUSE)
