"""What the output plugin `pgoutput` sends (protocol 1, or 2 without streaming): transactions, and the keys in them.

Only keys and positions are taken out of a message. Values are read at check time, so a TOASTed column that a message
leaves out is never missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from struct import Struct
from typing import Literal, NamedTuple

from trueup.db.names import display_name
from trueup.errors import TrueupError

Op = Literal["insert", "update", "delete", "truncate", "message", "position"]
Identity = Literal["d", "n", "f", "i"]

_U16 = Struct("!H").unpack_from
_U32 = Struct("!I").unpack_from
_BEGIN = Struct("!QqI").unpack_from
_COMMIT = Struct("!BQQq").unpack_from
_EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
_IS_KEY = 1
# Sent between others, and of no meaning to us: type names, origins.
_SKIPPED = frozenset(b"YO")


@dataclass(frozen=True)
class Relation:
    """A table as it was when a change was written: its columns, and which of them identify a row in the log."""

    id: int
    schema: str
    table: str
    identity: Identity
    columns: tuple[str, ...]
    keys: tuple[str, ...]


class Change(NamedTuple):
    """One row change: the table, the key, and where its transaction was committed.

    `lsn` is the start of the commit record: a position P has been passed when all changes with `lsn` < P are known. A
    truncated table has an empty key; a message has its prefix as key, and no table.
    """

    relation: Relation | None
    op: Op
    key: tuple[str | None, ...]
    lsn: int
    xid: int
    at: int


class Commit(NamedTuple):
    """The end of a transaction: `end` is the position behind it."""

    lsn: int
    end: int
    at: int


def time_of(at: int) -> datetime:
    """A time as the log has it (microseconds since 2000) as a time."""
    return _EPOCH + timedelta(microseconds=at)


# Which columns of a table are its key, by their places; None: its changes are not wanted.
Places = Callable[[Relation], "tuple[int, ...] | None"]


def identity_places(relation: Relation) -> tuple[int, ...]:
    """The places of the columns that identify a row in the log."""
    return tuple(relation.columns.index(name) for name in relation.keys)


def decode(messages: Iterable[bytes], places: Places = identity_places) -> Iterator[Change | Commit]:
    """The changes and commits in the messages of one call; tables are described anew in each call."""
    known: dict[int, tuple[Relation, tuple[int, ...] | None]] = {}
    lsn = at = xid = 0
    for data in messages:
        kind = data[0]
        if kind == 73:  # I
            relation, wanted = known[_U32(data, 1)[0]]
            if wanted is not None:
                yield Change(relation, "insert", _key(data, 6, wanted, relation), lsn, xid, at)
        elif kind == 85:  # U
            relation, wanted = known[_U32(data, 1)[0]]
            if wanted is not None:
                yield from _updated(data, relation, wanted, lsn, xid, at)
        elif kind == 68:  # D
            relation, wanted = known[_U32(data, 1)[0]]
            if wanted is not None:
                yield Change(relation, "delete", _key(data, 6, wanted, relation), lsn, xid, at)
        elif kind == 66:  # B
            lsn, at, xid = _BEGIN(data, 1)
        elif kind == 67:  # C
            _, start, end, at = _COMMIT(data, 1)
            yield Commit(start, end, at)
        elif kind == 82:  # R
            relation = _relation(data)
            known[relation.id] = relation, places(relation)
        elif kind == 84:  # T
            count = _U32(data, 1)[0]
            for number in range(count):
                relation, wanted = known[_U32(data, 6 + 4 * number)[0]]
                if wanted is not None:
                    yield Change(relation, "truncate", (), lsn, xid, at)
        elif kind == 77:  # M
            prefix = data[10 : data.index(b"\0", 10)].decode()
            if data[1] & 1:
                yield Change(None, "message", (prefix,), lsn, xid, at)
        elif kind not in _SKIPPED:
            raise TrueupError(
                f"the log holds a message of the unknown kind {chr(kind)!r}",
                cure="this is a defect of trueup, or a server that is newer than it: please report it",
            )


def _updated(data: bytes, relation: Relation, wanted: tuple[int, ...], lsn: int, xid: int, at: int) -> Iterator[Change]:
    """An update; one that changes the key is a delete and an insert."""
    if data[5] == 78:  # N: the key is as it was
        yield Change(relation, "update", _key(data, 6, wanted, relation), lsn, xid, at)
        return
    old, behind = _values(data, 6, wanted)
    new, _ = _values(data, behind + 1, wanted)
    # A long part of the key that did not change stands in the old row only.
    before = _checked(old, relation)
    after = _checked([mine if value is _UNCHANGED else value for value, mine in zip(new, old, strict=True)], relation)
    if before == after:
        yield Change(relation, "update", after, lsn, xid, at)
    else:
        yield Change(relation, "delete", before, lsn, xid, at)
        yield Change(relation, "insert", after, lsn, xid, at)


_UNCHANGED = "\0unchanged"


def _key(data: bytes, at: int, wanted: tuple[int, ...], relation: Relation) -> tuple[str, ...]:
    """The key of a row that begins at `at`; a key in the first column, which most are, is cut out at once."""
    if wanted == (0,) and data[at + 2] == 116:  # t
        length = _U32(data, at + 3)[0]
        return (data[at + 7 : at + 7 + length].decode(),)
    return _checked(_values(data, at, wanted)[0], relation)


def _values(data: bytes, at: int, wanted: tuple[int, ...]) -> tuple[list[str | None], int]:
    """The wanted columns of a row, and where it ends."""
    count = _U16(data, at)[0]
    at += 2
    found: dict[int, str | None] = {}
    for place in range(count):
        kind = data[at]
        at += 1
        value: str | None = None
        if kind in (116, 98):  # text, or bytes as the type sends them (which we never ask for)
            length = _U32(data, at)[0]
            at += 4
            if place in wanted:
                value = data[at : at + length].decode()
            at += length
        elif kind == 117:  # u: a TOASTed value that did not change
            value = _UNCHANGED
        if place in wanted:
            found[place] = value
    return [found.get(place) for place in wanted], at


def _checked(values: list[str | None], relation: Relation) -> tuple[str, ...]:
    for value in values:
        if value is None or value is _UNCHANGED:
            raise KeyLost(
                "a change does not name its row: a part of the key is not in the log",
                cure="give the table a primary key, or ALTER TABLE … REPLICA IDENTITY USING INDEX or FULL",
                table=display_name(relation.schema, relation.table),
            )
    return tuple(value for value in values if value is not None)


class KeyLost(TrueupError):
    """The log does not say which row was changed."""


def _relation(data: bytes) -> Relation:
    number = _U32(data, 1)[0]
    schema_end = data.index(b"\0", 5)
    table_end = data.index(b"\0", schema_end + 1)
    schema = data[5:schema_end].decode() or "pg_catalog"
    table = data[schema_end + 1 : table_end].decode()
    identity = chr(data[table_end + 1])
    at = table_end + 4
    columns: list[str] = []
    keys: list[str] = []
    for _ in range(_U16(data, table_end + 2)[0]):
        name_end = data.index(b"\0", at + 1)
        name = data[at + 1 : name_end].decode()
        columns.append(name)
        if data[at] & _IS_KEY:
            keys.append(name)
        at = name_end + 9
    return Relation(number, schema, table, identity, tuple(columns), tuple(keys))  # type: ignore[arg-type]
