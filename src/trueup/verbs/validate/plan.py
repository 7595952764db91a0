"""Which columns of a table are compared, by which key, on both nodes; or why a table cannot be validated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from trueup.db import catalog
from trueup.db.catalog import Column, Table
from trueup.db.connection import Connection, one_row
from trueup.db.names import display_name
from trueup.db.statements import load
from trueup.errors import CheckFailed
from trueup.rows.encode import column_spec, key_order, trim_scale
from trueup.rows.keys import KeyValues
from trueup.rows.probe import choose_digest
from trueup.rows.spec import ColumnSpec, KeySpec, TableSpec
from trueup.rows.types import TYPES, type_of, unchanged
from trueup.verbs.validate.routes import Route
from trueup.verbs.validate.settings import Settings


@dataclass(frozen=True)
class Pair:
    """One table on both nodes: picklable, all that a task must know. Columns stand in the same order on both sides."""

    name: str
    target_name: str
    source: TableSpec
    target: TableSpec
    # The target with the columns that only it has, and the value that every row must have in each; those that are part
    # of its key are conditions instead.
    detail: TableSpec
    constants: tuple[tuple[str, str], ...] = ()
    # All columns of the source when this was planned, and its identity in the log: what says that it was altered.
    seen: tuple[str, ...] = ()
    identity: str = "d"
    remarks: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """The key's columns on the source."""
        return self.source.key_names

    def normal(self) -> Callable[[KeyValues], KeyValues]:
        """A key as the log prints it, in the form that rows are found by."""
        steps = [_step(part.column) for part in self.source.key]
        if not any(steps):
            return _as_it_is
        return lambda key: tuple(step(value) if step else value for step, value in zip(steps, key, strict=True))


def _as_it_is(key: KeyValues) -> KeyValues:
    return key


def _step(column: ColumnSpec) -> Callable[[str], str] | None:
    if column.encoding == "numeric":
        return trim_scale
    cast = type_of(column).cast_from_output
    return None if cast is unchanged else cast


def plan_pair(source: Connection, target: Connection, route: Route, settings: Settings) -> Pair:
    """The pair of a route, or CheckFailed with the reason why this table cannot be validated."""
    mine = catalog.read_table(source, *route.source)
    theirs = catalog.read_table(target, *route.target)
    shown = display_name(*route.target)
    if mine is None:
        raise CheckFailed([f"there is no table {route.name} on {settings.source}"], cure="check its name")
    if theirs is None:
        near = catalog.nearest_table(target, shown)
        raise CheckFailed(
            [f"there is no table {shown} on {settings.target}{near}"], cure="say where it is with --route"
        )
    _check_readable(mine, settings.source)
    _check_readable(theirs, settings.target)
    identity, names = _key(source, mine, settings)
    in_key = _target_key(theirs, [route.columns.get(name, name) for name in names], route)
    pairs, remarks = _columns(mine, theirs, route, names)
    key = tuple(_key_spec(source, mine, theirs, route, name) for name in names)
    wanted = pairs if settings.mode == "full" else [pair for pair in pairs if pair[0].name in names]
    spec = TableSpec(
        *route.source,
        key=tuple(part for part, _ in key),
        columns=tuple(pair[0] for pair in wanted),
        filter=route.filter,
        numeric="value" if settings.numeric == "value" else "representation",
        seed=settings.seed,
    )
    constants = [(column_spec(_column(theirs, name)), value) for name, value in route.constants.items()]
    loose = [(column, value) for column, value in constants if column.name not in in_key]
    spec = replace(spec, digest=choose_digest([source, target], spec, "auto"))
    other = replace(
        spec,
        schema=route.target[0],
        table=route.target[1],
        key=tuple(part for _, part in key),
        columns=tuple(pair[1] for pair in wanted),
        filter=_constant_filter(constants),
    )
    detail = replace(
        other,
        columns=(*other.columns, *(column for column, _ in loose)),
        filter=_constant_filter([each for each in constants if each not in loose]),
    )
    return Pair(
        route.name,
        shown,
        spec,
        other,
        detail,
        tuple((column.name, value) for column, value in loose),
        tuple(column.name for column in mine.columns),
        identity,
        tuple(remarks),
    )


def _check_readable(table: Table, node: str) -> None:
    shown = display_name(table.schema, table.name)
    if table.kind not in ("r", "p"):
        raise CheckFailed([f"{shown} on {node} is no table"], cure="name tables")
    if table.secured:
        raise CheckFailed(
            [f"row security hides rows of {shown} on {node}"], cure="use its owner or a role with BYPASSRLS"
        )
    closed = [column.name for column in table.columns if not (column.readable and table.usage)]
    if closed:
        raise CheckFailed([f"columns of {shown} on {node} may not be read: {', '.join(closed)}"], cure="GRANT SELECT")


def _key(connection: Connection, table: Table, settings: Settings) -> tuple[str, tuple[str, ...]]:
    """How the log names a row, and the columns that do."""
    row = one_row(connection.execute(load("trueup.verbs.validate", "plan.sql")["identity"], {"oid": table.oid}))
    identity, index, persistence = str(row[0]), row[1], row[2]
    shown = display_name(table.schema, table.name)
    if persistence != "p":
        raise CheckFailed([f"{shown} is not in the log: it is unlogged or temporary"], cure="ALTER TABLE … SET LOGGED")
    primary = next((key.columns for key in table.keys if key.is_primary), ())
    if settings.changes != "log":
        names = primary or next((key.columns for key in table.keys), ())
    elif identity == "i":
        names = tuple(index or ())
    elif identity == "f":
        names = primary or next((key.columns for key in table.keys), ())
    else:
        names = primary if identity == "d" else ()
    if not names:
        raise CheckFailed(
            [f"{shown} has no key by which the log names its rows"],
            cure="give it a primary key, or REPLICA IDENTITY USING INDEX; meanwhile compare it with trueup diff",
        )
    return identity, tuple(names)


def _target_key(table: Table, names: Sequence[str], route: Route) -> set[str]:
    """The columns of the target's key that names the same rows, constant ones with it."""
    fitting = [key for key in table.keys if set(names) <= set(key.columns) <= {*names, *route.constants}]
    if not fitting:
        raise CheckFailed(
            [f"{display_name(table.schema, table.name)} has no unique key on ({', '.join(names)})"],
            cure="make one on the target, for rows are looked up by it",
        )
    return set(fitting[0].columns)


def _columns(
    mine: Table, theirs: Table, route: Route, key: Sequence[str]
) -> tuple[list[tuple[ColumnSpec, ColumnSpec]], list[str]]:
    pairs: list[tuple[ColumnSpec, ColumnSpec]] = []
    remarks: list[str] = []
    for column in mine.columns:
        name = route.columns.get(column.name, column.name)
        other = theirs.column(name)
        if column.name in route.excluded:
            remarks.append(f"column {column.name} is not compared: excluded")
        elif other is None:
            remarks.append(f"column {column.name} is not compared: the target has no {name}")
        else:
            pairs.append(_alike(column, other, remarks))
    lost = [name for name in key if name not in {pair[0].name for pair in pairs}]
    if lost:
        raise CheckFailed(
            [f"the key column {lost[0]} of {route.name} is excluded, or not on the target"],
            cure="name it with --rename, or compare it",
        )
    named = {pair[1].name for pair in pairs}
    for column in theirs.columns:
        if column.name not in named and column.name not in route.constants and column.name not in route.excluded:
            remarks.append(f"column {column.name} of the target is not compared: the source has none")
    return pairs, remarks


def _alike(mine: Column, theirs: Column, remarks: list[str]) -> tuple[ColumnSpec, ColumnSpec]:
    """Two columns in forms that hash alike: types that differ are compared as text."""
    left, right = column_spec(mine), column_spec(theirs)
    if left.type == right.type:
        return left, right
    remarks.append(f"column {mine.name} is compared as text: it is {mine.type} here and {theirs.type} there")
    return _as_text(left), _as_text(right)


def _as_text(column: ColumnSpec) -> ColumnSpec:
    return replace(column, encoding="text") if column.encoding == "native" else column


def _key_spec(connection: Connection, mine: Table, theirs: Table, route: Route, name: str) -> tuple[KeySpec, KeySpec]:
    left, right = _column(mine, name), _column(theirs, route.columns.get(name, name))
    own = {
        (str(row[0]), str(row[1])) for row in connection.execute(load("trueup.verbs.validate", "plan.sql")["own_text"])
    }
    known = {("pg_catalog", row.name) for row in TYPES.values() if row.cast_from_output}
    for column in (left, right):
        if (column.base_schema, column.base_name) in own - known:
            raise CheckFailed(
                [f"key column {column.name} of {route.name}: the type {column.type} prints itself in two ways"],
                cure="compare the table with trueup diff",
            )
    alike = left.base_name == right.base_name
    order = key_order([left, right]) if alike else "type"
    return KeySpec(column_spec(left), order), KeySpec(column_spec(right), order)


def _column(table: Table, name: str) -> Column:
    found = table.column(name)
    if found is None:
        shown = display_name(table.schema, table.name)
        raise CheckFailed([f"there is no column {name} in {shown}"], cure="check --rename, --constant and --exclude")
    return found


def _constant_filter(constants: Sequence[tuple[ColumnSpec, str]]) -> str:
    parts = [
        sql.SQL("{} = {}::{}").format(sql.Identifier(column.name), sql.Literal(value), sql.SQL(column.type))
        for column, value in constants
    ]
    return sql.SQL(" AND ").join(parts).as_string(None) if parts else ""


def is_float(column: ColumnSpec) -> bool:
    """Whether a tolerance makes sense."""
    return type_of(column).is_float


def why_altered(pair: Pair, identity: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """Why the log's table is not the one that was planned any more: "" (it is), "columns", or the reason to stop it."""
    if identity == "n" or (identity != "f" and set(keys) != set(pair.key)):
        now = f"({', '.join(keys)})" if keys and identity != "n" else "none"
        return f"its key in the log was ({', '.join(pair.key)}) and is now {now}"
    missing = [name for name in pair.key if name not in columns]
    if missing:
        return f"its key column {missing[0]} is gone"
    return "columns" if tuple(columns) != pair.seen and set(columns) - set(pair.seen) else ""
