"""The gate: the conditions that must all hold before the pointer flips."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg import sql

from trueup.config.wording import counted
from trueup.db.connection import Connection, Cursor
from trueup.db.foreign_keys import ForeignKey, TableName, orphans
from trueup.db.names import display_name
from trueup.db.sequences import Values
from trueup.db.statements import load
from trueup.errors import TrueupError

if TYPE_CHECKING:
    from typing_extensions import LiteralString

SCHEMA = "schema equal"
TABLES = "every table counted"
ROWS = "rows equal"
REFERENCES = "foreign keys valid"
SEQUENCES_EQUAL = "sequences equal"
LARGE_OBJECTS = "large objects equal"
LOG_EMPTY = "change log empty"
PREPARED = "no prepared transactions"
GUARDED = "every table guarded"
WAY_BACK = "way back ready"
# In the order of the report.
ALL = (SCHEMA, TABLES, ROWS, REFERENCES, SEQUENCES_EQUAL, LARGE_OBJECTS, LOG_EMPTY, PREPARED, GUARDED, WAY_BACK)

_SHOWN = 5
# Differences of schemas are accepted by their names, which must be shown for that.
_SHOWN_OF_SCHEMAS = 20


@dataclass(frozen=True)
class Condition:
    """One condition: whether it holds, and what was checked or is wrong."""

    name: str
    holds: bool
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" if self.detail else self.name


class GateClosed(TrueupError):
    """A condition does not hold: the pointer was not flipped, and the old database is still in use."""

    def __init__(
        self,
        message: str,
        *,
        cure: str = "",
        node: str | None = None,
        table: str | None = None,
        block: str | None = None,
        conditions: tuple[Condition, ...] = (),
    ) -> None:
        super().__init__(message, cure=cure, node=node, table=table, block=block)
        self.conditions = conditions

    def __reduce__(self) -> tuple[Callable[..., TrueupError], tuple[Any, ...]]:
        rebuild, arguments = super().__reduce__()
        return partial(rebuild, conditions=self.conditions), arguments


def condition(name: str, problems: Sequence[str], detail: str = "") -> Condition:
    """Return a condition that holds if there are no problems; `detail` is then what was checked."""
    if not problems:
        return Condition(name, True, detail)
    shown = _SHOWN_OF_SCHEMAS if name == SCHEMA else _SHOWN
    more = f" (and {len(problems) - shown} more)" if len(problems) > shown else ""
    return Condition(name, False, "; ".join(problems[:shown]) + more)


def every_table(
    present: Mapping[int, str], synced: Collection[int], outside: Mapping[int, tuple[str, str]], node: str
) -> Condition:
    """Return whether each table of the source, by oid, is in the sync or was excluded from it, and by whom."""
    others = {name: outside.get(oid, ("", ""))[1] for oid, name in present.items() if oid not in synced}
    unknown = [
        f"{name} of {node} is not in the sync, and was not excluded: add it (trueup sync add {name}), or remove it"
        f" (trueup sync remove {name})"
        for name, why in others.items()
        if not why
    ]
    named = [f"{name} ({why})" for name, why in others.items()]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    rest = f"; not in the sync: {', '.join(named[:_SHOWN])}{more}" if named else ""
    return condition(
        TABLES, unknown, f"{counted(len(present), 'table')} of {node}, {len(present) - len(others):,} in the sync{rest}"
    )


def refuse(conditions: Iterable[Condition]) -> None:
    """Raise an error that names every condition that does not hold."""
    checked = tuple(conditions)
    failed = [condition for condition in checked if not condition.holds]
    if failed:
        names = "\n".join(map(str, failed))
        raise GateClosed(
            f"the gate is closed: {names}" if len(failed) == 1 else f"the gate is closed:\n{names}",
            cure="nothing was switched, and everything was released: fix the problems listed above (rows of"
            " tables with a key: trueup diff, then trueup repair with the node in use as --source-of-truth), and try"
            " again",
            conditions=checked,
        )


def statement(name: str) -> LiteralString:
    """Return a statement of gate.sql."""
    return load("trueup.verbs.switchover", "gate.sql")[name]


def query_fingerprint(connection: Connection, tables: Sequence[TableName]) -> Cursor:
    """Send the query for one value that changes when the catalog rows of these tables change."""
    names = {"schemas": [name[0] for name in tables], "names": [name[1] for name in tables]}
    return connection.execute(statement("fingerprint"), names)


def query_prepared(connection: Connection) -> Cursor:
    """Send the query for the prepared transactions of this database; `prepared_names` reads its result."""
    return connection.execute(statement("prepared"))


def prepared_names(cursor: Cursor) -> list[str]:
    """Return the prepared transactions that `query_prepared` asked for."""
    return [f"{gid} of {owner}" for gid, owner in cursor.fetchall()]


def broken_foreign_keys(
    connection: Connection, keys: Iterable[ForeignKey], among: sql.Composable | None = None
) -> list[str]:
    """Return the foreign keys whose child rows have no parent row: all rows, or the rows `t` in `among`.

    A key that is NOT VALID allows such rows. They are the same in both databases, because the gate requires equal rows.
    """
    broken = []
    for key in keys:
        if not key.validated:
            continue
        rows = orphans(connection, key, among=among, limit=3, child="t")
        if rows:
            shown = ", ".join(f"({', '.join(map(str, row))})" for row in rows)
            broken.append(f"{key} refers to rows of {display_name(*key.parent)} that do not exist: {shown}")
    return broken


def references_text(keys: Sequence[ForeignKey]) -> str:
    """Return what was checked of these foreign keys."""
    allowed = [str(key) for key in keys if not key.validated]
    text = counted(len(keys), "foreign key")
    return f"{text}; NOT VALID, with the same rows on both sides: {', '.join(allowed)}" if allowed else text


def unequal_sequences(source: Values, target: Values) -> list[str]:
    """Return the sequences whose values differ."""
    return [
        f"{sequence} is at {value} on the old database and at {target.get(sequence)} on the new one"
        for sequence, value in source.items()
        if target.get(sequence) != value
    ]
