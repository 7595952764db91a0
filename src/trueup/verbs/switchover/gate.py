"""The gate: the conditions that must all hold before the pointer flips. Each one that fails names itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trueup.db.connection import Connection, Cursor, one_value
from trueup.db.foreign_keys import ForeignKey, TableName, orphans
from trueup.db.names import display_name
from trueup.db.schema import SchemaDifference, compare_schemas, read_schema
from trueup.db.statements import load
from trueup.errors import TrueupError
from trueup.verbs.switchover import pointer

if TYPE_CHECKING:
    from psycopg import sql

    Connection = Connection

SCHEMA = "schema equal"
ROWS = "rows equal"
REFERENCES = "foreign keys valid"
SEQUENCES_EQUAL = "sequences equal"
LOG_EMPTY = "change log empty"
PREPARED = "no prepared transactions"
GUARDED = "every table guarded"
WAY_BACK = "way back ready"
# In the order in which they are told.
ALL = (SCHEMA, ROWS, REFERENCES, SEQUENCES_EQUAL, LOG_EMPTY, PREPARED, GUARDED, WAY_BACK)

# What an application cannot do without: no --accept-schema takes these.
_NEVER_ACCEPTED = ("table", "column")
_SHOWN = 5


@dataclass(frozen=True)
class Condition:
    """One condition: whether it holds, and what was seen."""

    name: str
    holds: bool
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" if self.detail else self.name


class GateClosed(TrueupError):
    """A condition does not hold: the pointer was not flipped, and the old database is in use as before."""


def condition(name: str, wrong: Sequence[str], fine: str = "") -> Condition:
    """A condition that holds if nothing is wrong."""
    if not wrong:
        return Condition(name, True, fine)
    more = f" (and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
    return Condition(name, False, "; ".join(wrong[:_SHOWN]) + more)


def refuse(conditions: Iterable[Condition]) -> None:
    """Raise an error that names every condition that does not hold."""
    closed = [each for each in conditions if not each.holds]
    if closed:
        names = "\n".join(f"{each}" for each in closed)
        raise GateClosed(
            f"the gate stays closed: {names}" if len(closed) == 1 else f"the gate stays closed:\n{names}",
            cure="nothing was switched, and all is released: mend what is named (trueup diff, trueup sync run), and try"
            " again",
        )


def block(name: str) -> Any:
    """A statement of the gate."""
    return load("trueup.verbs.switchover", "gate.sql")[name]


def differing(
    nodes: Mapping[str, Connection], tables: Sequence[TableName], *, whole: bool, accept: bool
) -> tuple[list[str], list[str]]:
    """What differs in the schemas and is in the way, and what differs and was accepted.

    Of a sync of the whole database all objects are looked at, without what belongs to tables that were left out;
    else only these tables, and what belongs to them.
    """
    schemas = {}
    for name, connection in nodes.items():
        ours = {relation for table in tables for relation in relations(connection, table)}
        items = read_schema(connection, tables=None if whole else ours)
        others = {item.table for item in items.values() if item.kind == "table"} - ours
        schemas[name] = {key: item for key, item in items.items() if item.table is None or item.table not in others}
    wrong: list[str] = []
    accepted: list[str] = []
    for each in compare_schemas(schemas):
        may = accept and each.kind not in _NEVER_ACCEPTED
        (accepted if may else wrong).append(_told(each))
    return wrong, accepted


def relations(connection: Connection, table: TableName) -> list[TableName]:
    """A table and its partitions."""
    rows = connection.execute(pointer.block("relations"), {"schema": table[0], "table": table[1]}).fetchall()
    return [(row[0], row[1]) for row in rows]


def _told(difference: SchemaDifference) -> str:
    name = f"{difference.kind} {difference.schema + '.' if difference.schema else ''}{difference.name}"
    if difference.how == "changed":
        facts = ", ".join(difference.facts)
        return f"{name} differs ({facts}){f': {difference.remark}' if difference.remark else ''}"
    if difference.how == "missing":
        return f"{name} is missing on {' and '.join(difference.nodes)}"
    return f"{name} cannot be read on {' and '.join(difference.nodes)}: {difference.remark}"


def fingerprint(connection: Connection, tables: Sequence[TableName]) -> str:
    """One value for all that the catalog says of these tables: another value means that somebody altered one."""
    return one(ask_fingerprint(connection, tables))


def ask_fingerprint(connection: Connection, tables: Sequence[TableName]) -> Any:
    """The same, asked; `one` gives the answer."""
    names = {"schemas": [name[0] for name in tables], "names": [name[1] for name in tables]}
    return connection.execute(block("fingerprint"), names)


def prepared(connection: Connection) -> list[str]:
    """Transactions of this database that are prepared and not ended."""
    return told(ask_prepared(connection))


def ask_prepared(connection: Connection) -> Any:
    """The same, asked; `told` gives the answer."""
    return connection.execute(block("prepared"))


def one(cursor: Cursor) -> str:
    """The one value that was asked for."""
    return str(one_value(cursor))


def told(cursor: Cursor) -> list[str]:
    """Prepared transactions, in words."""
    return [f"{gid} of {owner}" for gid, owner in cursor.fetchall()]


def broken(connection: Connection, keys: Iterable[ForeignKey], among: sql.Composable | None = None) -> list[str]:
    """Foreign keys of which rows refer to nothing, in words; of all rows, or of those `t` that `among` says."""
    found = []
    for key in keys:
        rows = orphans(connection, key, among=among, most=3, child="t")
        if rows:
            shown = ", ".join(f"({', '.join(map(str, row))})" for row in rows)
            found.append(f"{key} refers to rows of {display_name(*key.parent)} that are not there: {shown}")
    return found


def unequal_sequences(source: Mapping[Any, tuple[int, bool]], target: Mapping[Any, tuple[int, bool]]) -> list[str]:
    """Sequences that do not stand at the same value, in words."""
    return [
        f"{each} stands at {mine} and {target.get(each)}" for each, mine in source.items() if target.get(each) != mine
    ]
