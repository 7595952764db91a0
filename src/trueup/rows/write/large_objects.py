"""Large objects: made equal on another node, with their numbers, owners and privileges, and compared.

A write to a large object fires no trigger, so all of them are read to find what differs. Those that only the target
has stay: nothing refers to them after the rows are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from psycopg import sql

from trueup.db.connection import Connection, one_row, one_value
from trueup.db.statements import load
from trueup.rows.digest import Digest

# Bytes that are read or written at once.
PIECE = 1024 * 1024
_SHOWN = 5
# Large objects per transaction.
_TOGETHER = 200


@dataclass(frozen=True)
class LargeObject:
    """A large object: its number, and what must be equal on both nodes."""

    oid: int
    facts: str
    owner: str
    size: int


def numbers(connection: Connection) -> list[int]:
    """Return the numbers of all large objects."""
    return [oid for (oid,) in connection.execute(_statement("numbers")).fetchall()]


def problems(source: Connection, target: Connection) -> list[str]:
    """Return why the roles cannot read all large objects of the source, or write them with their owners."""
    unreadable = [name for (name,) in source.execute(_statement("owners")).fetchall()]
    owners = [name for (name,) in source.execute(_statement("names")).fetchall()]
    unusable = [name for (name,) in target.execute(_statement("unusable"), [owners]).fetchall()]
    texts = [f"the role on the source is not a member of the owner {name}" for name in unreadable]
    lacking = "does not exist on the target, or the role is not a member of it"
    return texts + [f"the owner {name} {lacking}" for name in unusable]


def digest(connection: Connection, oids: Sequence[int]) -> Digest:
    """Return the digest of the large objects with these numbers."""
    count, total = one_row(connection.execute(_over_objects("digest", oids)))
    return Digest(count, int(total))


def unequal(source: Connection, target: Connection) -> list[str]:
    """Return the large objects of the source that the target has not, or has with other content or rights, as text."""
    differing = _differing(source, target)
    shown = ", ".join(str(each.oid) for each in differing[:_SHOWN])
    more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return [f"large objects differ: {shown}{more}"] if differing else []


def make_equal(source: Connection, target: Connection, writing: Callable[[], AbstractContextManager[None]]) -> int:
    """Make the large objects of the source equal on the target; return how many were written.

    Some of them are written in one transaction of the target, which `writing` opens.
    """
    differing = _differing(source, target)
    for start in range(0, len(differing), _TOGETHER):
        with writing():
            for each in differing[start : start + _TOGETHER]:
                _write(source, target, each)
    return len(differing)


def _differing(source: Connection, target: Connection) -> list[LargeObject]:
    # The role may not read other large objects of the target.
    if not (oids := numbers(source)) or digest(source, oids) == digest(target, oids):
        return []
    there = {each.oid: each.facts for each in _read(target, oids)}
    return [each for each in _read(source, oids) if there.get(each.oid) != each.facts]


def _read(connection: Connection, oids: Sequence[int]) -> list[LargeObject]:
    return [LargeObject(*row) for row in connection.execute(_over_objects("list", oids)).fetchall()]


def _write(source: Connection, target: Connection, each: LargeObject) -> None:
    """Write content, owner and privileges."""
    if not one_value(target.execute(_statement("exists"), [each.oid])):
        target.execute(_statement("create"), [each.oid])
    target.execute(_statement("truncate"), [each.oid, each.size])
    # An object that changes meanwhile differs at the next comparison.
    for start in range(0, each.size, PIECE):
        piece = one_value(source.execute(_statement("read"), [each.oid, start, PIECE]))
        target.execute(_statement("write"), [each.oid, start, piece])
    name = sql.Literal(each.oid)
    for grantee in {grantee for grantee, _, _ in target.execute(_statement("privileges"), [each.oid]).fetchall()}:
        target.execute(sql.SQL("REVOKE ALL ON LARGE OBJECT {} FROM {}").format(name, _role(grantee)))
    target.execute(sql.SQL("ALTER LARGE OBJECT {} OWNER TO {}").format(name, _role(each.owner)))
    for grantee, privilege, is_grantable in source.execute(_statement("privileges"), [each.oid]).fetchall():
        option = sql.SQL(" WITH GRANT OPTION" if is_grantable else "")
        grant = sql.SQL("GRANT {} ON LARGE OBJECT {} TO {}{}")
        target.execute(grant.format(sql.SQL(privilege), name, _role(grantee), option))


def _role(quoted: str) -> sql.SQL:
    # The server has quoted the name; no name is PUBLIC.
    return sql.SQL(quoted or "PUBLIC")


def _statement(name: str) -> sql.SQL:
    return sql.SQL(load("trueup.rows.write", "large_objects.sql")[name])


def _over_objects(name: str, oids: Sequence[int]) -> sql.Composed:
    among = sql.SQL("{}::oid[]").format(sql.Literal("{" + ",".join(map(str, oids)) + "}"))
    return _statement(name).format(objects=_statement("objects").format(piece=sql.Literal(PIECE), among=among))
