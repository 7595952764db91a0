"""Decodes the messages of the output plugin `pgoutput` (protocol 1, or 2 without streaming) into row changes.

Only keys and positions are decoded. Values are read from the tables when a row is checked, so it does not matter that a
message omits unchanged TOASTed columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from struct import Struct
from typing import Literal, NamedTuple, Protocol

from trueup.db.names import display_name
from trueup.errors import TrueupError

Op = Literal["insert", "update", "delete", "truncate", "message", "position"]
Identity = Literal["d", "n", "f", "i"]

_U16 = Struct("!H").unpack_from
_U32 = Struct("!I").unpack_from
_U64 = Struct("!Q").unpack_from
_BEGIN = Struct("!QqI").unpack_from
_COMMIT = Struct("!BQQq").unpack_from
_EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
_IS_KEY = 1
# Message kinds that carry no change: type names.
_SKIPPED = frozenset(b"Y")
_ROW_KINDS = frozenset(b"IUDT")


@dataclass(frozen=True)
class Relation:
    """A table at the time of a change: its columns, and those that identify a row in the log (`keys`)."""

    id: int
    schema: str
    table: str
    identity: Identity
    columns: tuple[str, ...]
    keys: tuple[str, ...]


class Change(NamedTuple):
    """One row change: the table, the key, and the commit of its transaction.

    `lsn` is the start of the commit record: position P is passed when all changes with `lsn` < P are known. `at` is the
    commit time in microseconds since 2000. TRUNCATE has an empty key; a message has its prefix as key, and no table.
    """

    relation: Relation | None
    op: Op
    key: tuple[str | None, ...]
    lsn: int
    xid: int
    at: int


class Commit(NamedTuple):
    """The end of a transaction: `lsn` is the start of its commit record, `end` the position behind it."""

    lsn: int
    end: int
    at: int


def time_of(micros: int) -> datetime:
    """Convert microseconds since 2000 to a time."""
    return _EPOCH + timedelta(microseconds=micros)


def micros_of(time: datetime) -> int:
    """Convert a time to microseconds since 2000."""
    return (time - _EPOCH) // timedelta(microseconds=1)


# Returns the places of the key columns of a table; None if its changes are not needed.
Places = Callable[[Relation], "tuple[int, ...] | None"]


def identity_places(relation: Relation) -> tuple[int, ...]:
    """Return the places of the columns that identify a row in the log."""
    return tuple(relation.columns.index(name) for name in relation.keys)


class Origins(Protocol):
    """Decides which transactions are left out, by their replication origin: those that a syncer has applied."""

    # The changes that were left out.
    skipped: int

    def is_skipped(self, name: str, position: int) -> bool:
        """Return whether a transaction with this origin, and position there, is left out."""
        ...


def decode(
    messages: Iterable[bytes], places: Places = identity_places, *, start: int = 0, origins: Origins | None = None
) -> Iterator[Change | Commit]:
    """Yield the changes and commits in the messages of one read, which describe each table before its first change.

    Changes of transactions before `start` are skipped, and `places` is asked only about tables with other changes: what
    a table was like before does not matter. Changes of the transactions that `origins` leaves out are counted.
    """
    relations: dict[int, Relation] = {}
    known: dict[int, tuple[Relation, tuple[int, ...] | None]] = {}

    def describe(number: int) -> tuple[Relation, tuple[int, ...] | None]:
        known[number] = relations[number], places(relations[number])
        return known[number]

    lsn = commit_time = xid = 0
    is_skipped = False
    for data in messages:
        kind = data[0]
        if (lsn < start or is_skipped) and kind in _ROW_KINDS:
            if is_skipped and lsn >= start and origins is not None:
                origins.skipped += 1
            continue
        if kind == 73:  # I
            number = _U32(data, 1)[0]
            relation, key_places = known.get(number) or describe(number)
            if key_places is not None:
                yield Change(relation, "insert", _key(data, 6, key_places, relation), lsn, xid, commit_time)
        elif kind == 85:  # U
            number = _U32(data, 1)[0]
            relation, key_places = known.get(number) or describe(number)
            if key_places is not None:
                yield from _updated(data, relation, key_places, lsn, xid, commit_time)
        elif kind == 68:  # D
            number = _U32(data, 1)[0]
            relation, key_places = known.get(number) or describe(number)
            if key_places is not None:
                yield Change(relation, "delete", _key(data, 6, key_places, relation), lsn, xid, commit_time)
        elif kind == 66:  # B
            lsn, commit_time, xid = _BEGIN(data, 1)
            is_skipped = False
        elif kind == 67:  # C
            _, commit_lsn, end, commit_time = _COMMIT(data, 1)
            yield Commit(commit_lsn, end, commit_time)
        elif kind == 79:  # O
            if origins is not None and lsn >= start:
                is_skipped = origins.is_skipped(data[9 : data.index(b"\0", 9)].decode(), _U64(data, 1)[0])
        elif kind == 82:  # R
            relation = _relation(data)
            relations[relation.id] = relation
            known.pop(relation.id, None)
        elif kind == 84:  # T
            count = _U32(data, 1)[0]
            for place in range(count):
                number = _U32(data, 6 + 4 * place)[0]
                relation, key_places = known.get(number) or describe(number)
                if key_places is not None:
                    yield Change(relation, "truncate", (), lsn, xid, commit_time)
        elif kind == 77:  # M
            prefix = data[10 : data.index(b"\0", 10)].decode()
            if data[1] & 1:
                yield Change(None, "message", (prefix,), lsn, xid, commit_time)
        elif kind not in _SKIPPED:
            raise TrueupError(
                f"pgoutput sent a message of unknown kind {chr(kind)!r}",
                cure="report this as a bug of trueup, with the version of the server",
            )


def _updated(
    data: bytes, relation: Relation, key_places: tuple[int, ...], lsn: int, xid: int, commit_time: int
) -> Iterator[Change]:
    """Yield an update, or a delete and an insert if the key changed."""
    if data[5] == 78:  # N: the key did not change
        yield Change(relation, "update", _key(data, 6, key_places, relation), lsn, xid, commit_time)
        return
    old, end = _values(data, 6, key_places)
    new, _ = _values(data, end + 1, key_places)
    # An unchanged TOASTed part of the key is sent in the old row only.
    before = _checked(old, relation)
    after = _checked([past if value is _UNCHANGED else value for value, past in zip(new, old, strict=True)], relation)
    if before == after:
        yield Change(relation, "update", after, lsn, xid, commit_time)
    else:
        yield Change(relation, "delete", before, lsn, xid, commit_time)
        yield Change(relation, "insert", after, lsn, xid, commit_time)


_UNCHANGED = "\0unchanged"


def _key(data: bytes, offset: int, key_places: tuple[int, ...], relation: Relation) -> tuple[str, ...]:
    """Return the key of the row at `offset`; a key that is only the first column, as most are, is read directly."""
    if key_places == (0,) and data[offset + 2] == 116:  # t
        length = _U32(data, offset + 3)[0]
        return (data[offset + 7 : offset + 7 + length].decode(),)
    return _checked(_values(data, offset, key_places)[0], relation)


def _values(data: bytes, offset: int, key_places: tuple[int, ...]) -> tuple[list[str | None], int]:
    """Return the values of the columns at `key_places`, and the byte behind the row."""
    count = _U16(data, offset)[0]
    offset += 2
    values: dict[int, str | None] = {}
    for place in range(count):
        kind = data[offset]
        offset += 1
        value: str | None = None
        if kind in (116, 98):  # text, or binary (which is never requested)
            length = _U32(data, offset)[0]
            offset += 4
            if place in key_places:
                value = data[offset : offset + length].decode()
            offset += length
        elif kind == 117:  # u: an unchanged TOASTed value
            value = _UNCHANGED
        if place in key_places:
            values[place] = value
    return [values.get(place) for place in key_places], offset


def _checked(values: list[str | None], relation: Relation) -> tuple[str, ...]:
    for value in values:
        if value is None or value is _UNCHANGED:
            raise KeyLost(
                "a change in the log lacks a part of the key of its row",
                cure="add a primary key, or run ALTER TABLE … REPLICA IDENTITY USING INDEX or FULL",
                table=display_name(relation.schema, relation.table),
            )
    return tuple(value for value in values if value is not None)


class KeyLost(TrueupError):
    """The log does not identify the changed row."""


def _relation(data: bytes) -> Relation:
    number = _U32(data, 1)[0]
    schema_end = data.index(b"\0", 5)
    table_end = data.index(b"\0", schema_end + 1)
    schema = data[5:schema_end].decode() or "pg_catalog"
    table = data[schema_end + 1 : table_end].decode()
    identity = chr(data[table_end + 1])
    position = table_end + 4
    columns: list[str] = []
    keys: list[str] = []
    for _ in range(_U16(data, table_end + 2)[0]):
        name_end = data.index(b"\0", position + 1)
        name = data[position + 1 : name_end].decode()
        columns.append(name)
        if data[position] & _IS_KEY:
            keys.append(name)
        position = name_end + 9
    return Relation(number, schema, table, identity, tuple(columns), tuple(keys))  # type: ignore[arg-type]
