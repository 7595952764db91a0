"""A logical slot and its publication: make, look, read without taking, advance, remove.

The slot is read with `pg_logical_slot_peek_binary_changes`, which leaves it where it is; it is advanced only when what
was read is safe somewhere else. So whoever is killed reads the same changes again. A position is a plain number here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from struct import Struct
from typing import Any

from psycopg import sql

from trueup.db.connection import Connection, one_row, one_value
from trueup.db.statements import load
from trueup.errors import CheckFailed, TrueupError

PLUGIN = "pgoutput"
_HEADER = 19
_FIELD = Struct("!hi").unpack_from
# A session that was killed holds its slot until the server notices.
_BUSY_SECONDS = 15.0
_BUSY_PAUSE = 0.1


class SlotLost(TrueupError):
    """The slot is gone, or the server threw away log that it still needed: changes were not seen."""


@dataclass(frozen=True)
class Slot:
    """What the server says of a slot."""

    restart: int
    confirmed: int
    retained: int
    active_pid: int | None


@dataclass(frozen=True)
class Positions:
    """Where a server's log is flushed to, where the next record goes, and its clock."""

    flushed: int
    inserted: int
    now: datetime


def lsn_text(position: int) -> str:
    """A position as PostgreSQL prints it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """A position as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def positions(connection: Connection) -> Positions:
    """Where the server is now."""
    row = one_row(connection.execute(load("trueup.capture.log", "slot.sql")["positions"]))
    return Positions(int(row[0]), int(row[1]), row[2])


def make_publication(connection: Connection, name: str, tables: Sequence[tuple[str, str]]) -> None:
    """A publication of exactly these tables, or the one that is there brought to them."""
    with connection.transaction():
        found = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [name]).fetchone()
        if not found:
            # Partitions are reported as the table they belong to.
            connection.execute(
                sql.SQL("CREATE PUBLICATION {} WITH (publish_via_partition_root = true)").format(sql.Identifier(name))
            )
        there = {
            (str(schema), str(table))
            for schema, table in connection.execute(
                load("trueup.capture.log", "slot.sql")["published"], {"publication": name}
            ).fetchall()
        }
        for verb, pairs in (("ADD", set(tables) - there), ("DROP", there - set(tables))):
            for pair in sorted(pairs):
                connection.execute(
                    sql.SQL(f"ALTER PUBLICATION {{}} {verb} TABLE {{}}").format(
                        sql.Identifier(name), sql.Identifier(*pair)
                    )
                )


def make_slot(connection: Connection, slot: str) -> int:
    """A new slot; gives the position from which on all changes are seen."""
    level = one_value(connection.execute("SHOW wal_level"))
    if level != "logical":
        raise CheckFailed(
            [f"wal_level is {level}; a logical slot needs logical"],
            cure="set wal_level = logical and restart the server, or use --source changelog",
        )
    query = "SELECT (lsn - '0/0')::int8 FROM pg_create_logical_replication_slot(%s, %s)"
    return int(one_value(connection.execute(query, [slot, PLUGIN])))


def look(connection: Connection, slot: str) -> Slot | None:
    """The slot as it is; None where there is none."""
    row = connection.execute(load("trueup.capture.log", "slot.sql")["slot"], {"slot": slot}).fetchone()
    if row is None:
        return None
    plugin, _, pid, restart, confirmed, is_lost, retained = row
    if is_lost or restart is None:
        raise SlotLost(f"the server removed log that the slot {slot} still needed", cure="a full check is needed")
    if plugin != PLUGIN:
        raise CheckFailed([f"the slot {slot} is of the plugin {plugin}, not {PLUGIN}"], cure="choose another name")
    return Slot(int(restart), int(confirmed), int(retained), pid)


def advance(connection: Connection, slot: str, position: int) -> None:
    """Let the server forget what was committed before a position."""
    _waiting(lambda: connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [slot, lsn_text(position)]))


def drop(connection: Connection, slot: str, publication: str) -> bool:
    """Remove slot and publication; whether there was a slot."""
    found = connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchone()
    if found:
        _waiting(lambda: connection.execute("SELECT pg_drop_replication_slot(%s)", [slot]))
    if publication:
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication)))
    return bool(found)


def peek(connection: Connection, slot: str, publication: str, *, upto: int, most: int) -> Iterator[bytes]:
    """The messages of all transactions that were committed before `upto`, as they arrive.

    After `most` messages it ends with the transaction that was begun. The server keeps what it gives in a temporary
    file; here only a message at a time is in memory, however large a transaction is.
    """
    more = sql.SQL(", 'messages', 'true'") if connection.info.server_version >= 140000 else sql.SQL("")
    query = sql.SQL(load("trueup.capture.log", "slot.sql")["peek"]).format(
        slot=sql.Literal(slot),
        upto=sql.Literal(lsn_text(upto)),
        most=sql.Literal(most) if most else sql.SQL("NULL"),
        publication=sql.Literal('"' + publication.replace('"', '""') + '"'),
        more=more,
    )
    stop_at = time.monotonic() + _BUSY_SECONDS
    while True:
        begun = False
        try:
            with connection.cursor().copy(query) as copy:
                for message in _fields(copy):
                    begun = True
                    yield message
            return
        except Exception as error:
            if begun or not _is_busy(error) or time.monotonic() > stop_at:
                raise
        time.sleep(_BUSY_PAUSE)


def _fields(blocks: Iterable[Any]) -> Iterator[bytes]:
    """The one column of a binary COPY, row by row."""
    rest = b""
    skip = _HEADER
    for block in blocks:
        data = rest + bytes(block) if rest else bytes(block)
        at = skip
        skip = 0
        size = len(data)
        while at + 6 <= size:
            count, length = _FIELD(data, at)
            if count < 0 or at + 6 + length > size:
                break
            yield data[at + 6 : at + 6 + length]
            at += 6 + length
        rest = data[at:]


def _waiting(call: Any) -> None:
    """Call it; while somebody else holds the slot, again."""
    stop_at = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            call()
            return
        except Exception as error:
            if not _is_busy(error) or time.monotonic() > stop_at:
                raise
        time.sleep(_BUSY_PAUSE)


def _is_busy(error: BaseException) -> bool:
    return getattr(error, "sqlstate", None) == "55006"
