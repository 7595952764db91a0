"""Large objects: made equal on another node, with their numbers, owners and privileges, and compared.

A write to a large object fires no trigger, so all of them are read to find what differs. Those that only the target
has stay: nothing refers to them after the rows are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from trueup.config.wording import shown_names
from trueup.db.connection import Connection, one_row, one_value
from trueup.db.statements import load
from trueup.rows.digest import Digest
from trueup.rows.spec import new_seed

# Bytes that are read or written at once.
PIECE = 1024 * 1024
_SHOWN = 5
# Large objects per transaction.
TOGETHER = 200
# Since this version, a membership may lack the right to make the role the owner of an object.
_SET_SINCE = 160000
_PRIVILEGES = {"SELECT": sql.SQL("SELECT"), "UPDATE": sql.SQL("UPDATE")}
# A reason why they cannot be synced, and its cure.
Reason = tuple[str, str]


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


def problems(source: Connection, target: Connection, expected: Container[str] = ()) -> list[Reason]:
    """Return why the roles cannot read all large objects of the source, or write them with their owners and privileges.

    The roles `expected` do not count on the target: they will be created, or are a problem already.
    """
    current = one_value(target.execute("SELECT current_user::text"))
    reasons = [
        (f"the role on the source is not a member of their owner {name}", f"GRANT {name} to it on the source")
        for (name,) in source.execute(_statement("owners")).fetchall()
    ]
    names = source.execute(_statement("roles")).fetchall()
    is_new = target.info.server_version >= _SET_SINCE
    values = {
        "names": [name for name, _ in names if name not in expected],
        "own": [owns for name, owns in names if name not in expected],
        "privilege": "SET" if is_new else "MEMBER",
    }
    option = " WITH INHERIT TRUE, SET TRUE" if is_new else ""
    for name, owns, exists in target.execute(_statement("unusable"), values).fetchall():
        if exists:
            what = f"{current} is not a member of their owner {name} on the target"
            reasons.append((what, f"GRANT {name} TO {current}{option} on the target"))
        else:
            uses = "owns some of them" if owns else "has privileges on some of them"
            what = f"the role {name}, which {uses}, does not exist on the target"
            reasons.append((what, "create the role there"))
    return reasons


def digest(connection: Connection, oids: Sequence[int], seed: int) -> Digest:
    """Return the digest of the large objects with these numbers."""
    count, total = one_row(connection.execute(_over_objects("digest", oids, seed)))
    return Digest(count, int(total))


def unequal(source: Connection, target: Connection) -> list[str]:
    """Return the large objects of the source that the target has not, or has with other content or rights, as text."""
    differing = _differing(source, target)
    shown = shown_names([str(each.oid) for each in differing], _SHOWN)
    return [f"large objects differ: {shown}"] if differing else []


def make_equal(
    source: Connection,
    target: Connection,
    writing: Callable[[], AbstractContextManager[None]],
    created: Callable[[int], object] = lambda oid: None,
) -> int:
    """Make the large objects of the source equal on the target; return how many were written.

    Some of them are written in one transaction of the target, which `writing` opens; `created` is called in it with the
    number of each new one.
    """
    differing = _differing(source, target)
    for start in range(0, len(differing), TOGETHER):
        with writing():
            for each in differing[start : start + TOGETHER]:
                is_new = not one_value(target.execute(_statement("exists"), [each.oid]))
                if is_new:
                    target.execute(_statement("create"), [each.oid])
                if _write(source, target, each):
                    if is_new:
                        created(each.oid)
                elif is_new:
                    target.execute(_statement("unlink"), [each.oid])
    return len(differing)


def _differing(source: Connection, target: Connection) -> list[LargeObject]:
    # The role may not read other large objects of the target. The seed is not known when they are written.
    seed = new_seed()
    if not (oids := numbers(source)) or digest(source, oids, seed) == digest(target, oids, seed):
        return []
    there = {each.oid: each.facts for each in _read(target, oids, seed)}
    return [each for each in _read(source, oids, seed) if there.get(each.oid) != each.facts]


def _read(connection: Connection, oids: Sequence[int], seed: int) -> list[LargeObject]:
    return [LargeObject(*row) for row in connection.execute(_over_objects("list", oids, seed)).fetchall()]


def _write(source: Connection, target: Connection, each: LargeObject) -> bool:
    """Write content, owner and privileges; return whether the source still has the large object."""
    target.execute(_statement("truncate"), [each.oid, each.size])
    # An object that changes meanwhile differs at the next comparison.
    for start in range(0, each.size, PIECE):
        piece = _piece(source, each.oid, start)
        if piece is None:
            return False
        target.execute(_statement("write"), [each.oid, start, piece])
    name = sql.Literal(each.oid)
    for grantee in {grantee for grantee, _, _ in target.execute(_statement("privileges"), [each.oid]).fetchall()}:
        target.execute(sql.SQL("REVOKE ALL ON LARGE OBJECT {} FROM {}").format(name, _role(grantee)))
    target.execute(sql.SQL("ALTER LARGE OBJECT {} OWNER TO {}").format(name, _role(each.owner)))
    for grantee, privilege, is_grantable in source.execute(_statement("privileges"), [each.oid]).fetchall():
        option = sql.SQL(" WITH GRANT OPTION" if is_grantable else "")
        grant = sql.SQL("GRANT {} ON LARGE OBJECT {} TO {}{}")
        target.execute(grant.format(_PRIVILEGES[privilege], name, _role(grantee), option))
    return True


def _piece(source: Connection, oid: int, start: int) -> bytes | None:
    """Return some bytes of a large object, or None if it was removed since it was listed."""
    try:
        with source.transaction():
            return bytes(one_value(source.execute(_statement("read"), [oid, start, PIECE])))
    except psycopg.errors.UndefinedObject:
        return None


def _role(name: str) -> sql.Composable:
    # No name is PUBLIC.
    return sql.Identifier(name) if name else sql.SQL("PUBLIC")


def _statement(name: str) -> sql.SQL:
    return sql.SQL(load("trueup.rows.write", "large_objects.sql")[name])


def _over_objects(name: str, oids: Sequence[int], seed: int) -> sql.Composed:
    among = sql.SQL("{}::oid[]").format(sql.Literal("{" + ",".join(map(str, oids)) + "}"))
    number = sql.Literal(seed)
    objects = _statement("objects").format(piece=sql.Literal(PIECE), among=among, seed=number)
    return _statement(name).format(objects=objects, seed=number)
