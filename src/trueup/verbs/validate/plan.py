"""Plans how a table is compared: its columns and its key on both nodes, or why it cannot be validated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from psycopg import sql

from trueup.db import catalog
from trueup.db.casts import is_scalar
from trueup.db.catalog import Column, Table
from trueup.db.connection import Connection, one_row
from trueup.db.names import display_name
from trueup.db.statements import load
from trueup.errors import CheckFailed
from trueup.report.extent import Extent
from trueup.rows.encode import base_value, column_spec, key_order, text_of, trim_scale
from trueup.rows.keys import KeyValues
from trueup.rows.probe import choose_digest
from trueup.rows.spec import ColumnSpec, KeySpec, TableSpec
from trueup.rows.types import TYPES, type_of, unchanged
from trueup.verbs.validate.routes import Route
from trueup.verbs.validate.settings import Settings


@dataclass(frozen=True)
class Pair:
    """One table on both nodes, as tasks need it (picklable). Columns have the same order on both nodes."""

    name: str
    target_name: str
    source: TableSpec
    target: TableSpec
    # The target with its constant columns, and the value that each of them must have. Constants of its key are in its
    # filter instead.
    detail: TableSpec
    constants: tuple[tuple[str, str], ...] = ()
    # All columns of the source and its replica identity at the time of planning, to detect that it was altered.
    seen: tuple[str, ...] = ()
    identity: str = "d"
    remarks: tuple[str, ...] = ()
    # The tables themselves: a name may belong to another table later.
    oid: int = 0
    target_oid: int = 0
    # All columns of the target, and the columns of the source that are compared in the mode `full`.
    target_seen: tuple[str, ...] = ()
    comparable: tuple[str, ...] = ()
    # Which rows and columns are compared in the mode `full`.
    extent: Extent = field(default_factory=Extent)

    @property
    def key(self) -> tuple[str, ...]:
        """Return the key columns of the source."""
        return self.source.key_names

    def of_target(self) -> Pair:
        """Return the pair for changes of the target: their keys have the form of the target."""
        return replace(self, source=self.target)

    def normal(self) -> Callable[[KeyValues], KeyValues]:
        """Return a function that converts a key from the form of the log to the form in which rows are looked up."""
        steps = [_step(part.column) for part in self.source.key]
        if not any(steps):
            return _unchanged
        return lambda key: tuple(step(value) if step else value for step, value in zip(steps, key, strict=True))


def _unchanged(key: KeyValues) -> KeyValues:
    return key


def _step(column: ColumnSpec) -> Callable[[str], str] | None:
    if column.encoding == "numeric":
        return trim_scale
    cast = type_of(column).cast_from_output
    return None if cast is unchanged else cast


def plan_pair(source: Connection, target: Connection, route: Route, settings: Settings) -> Pair:
    """Return the pair of a route; raise CheckFailed with the reason if the table cannot be validated."""
    source_table = catalog.read_table(source, *route.source)
    target_table = catalog.read_table(target, *route.target)
    shown = display_name(*route.target)
    if source_table is None:
        raise CheckFailed([f"table {route.name} does not exist on {settings.source}"], cure="check its name")
    if target_table is None:
        near = catalog.nearest_table(target, shown)
        raise CheckFailed(
            [f"table {shown} does not exist on {settings.target}{near}"], cure="name the target table with --map"
        )
    _check_readable(source_table, settings.source)
    _check_readable(target_table, settings.target)
    identity, names = _key(source, source_table, settings)
    in_key = _target_key(target_table, [route.columns.get(name, name) for name in names], route)
    pairs, remarks = _columns(source_table, target_table, route, names)
    key = tuple(_key_spec(source, source_table, target_table, route, name) for name in names)
    compared = pairs if settings.mode == "full" else [pair for pair in pairs if pair[0].name in names]
    spec = TableSpec(
        *route.source,
        key=tuple(part for part, _ in key),
        columns=tuple(pair[0] for pair in compared),
        filter=route.filter,
        numeric="value" if settings.numeric == "value" else "representation",
    )
    constants = [(column_spec(_column(target_table, name)), value) for name, value in route.constants.items()]
    outside_key = [(column, value) for column, value in constants if column.name not in in_key]
    spec = replace(spec, digest=choose_digest([source, target], "auto"))
    other = replace(
        spec,
        schema=route.target[0],
        table=route.target[1],
        key=tuple(part for _, part in key),
        columns=tuple(pair[1] for pair in compared),
        filter=_constant_filter(constants),
    )
    detail = replace(
        other,
        columns=(*other.columns, *(column for column, _ in outside_key)),
        filter=_constant_filter([constant for constant in constants if constant not in outside_key]),
    )
    return Pair(
        route.name,
        shown,
        spec,
        other,
        detail,
        tuple((column.name, value) for column, value in outside_key),
        tuple(column.name for column in source_table.columns),
        identity,
        tuple(remarks),
        source_table.oid,
        target_table.oid,
        tuple(column.name for column in target_table.columns),
        tuple(left.name for left, _ in pairs),
        _extent(source_table, target_table, route, pairs, settings.float_tolerance),
    )


def _extent(
    source: Table, target: Table, route: Route, pairs: Sequence[tuple[ColumnSpec, ColumnSpec]], tolerance: float
) -> Extent:
    """Return which rows and columns are compared, and how floats may differ."""
    compared = {left.name for left, _ in pairs}
    on_target = {right.name for _, right in pairs} | {*route.constants}
    left_out = [column.name for column in source.columns if column.name not in compared]
    left_out += [column.name for column in target.columns if column.name not in {*on_target, *left_out}]
    values = ", ".join(f"{name} = {value}" for name, value in route.constants.items())
    selected = (f"only rows of the target with: {values}",) if values else ()
    weakened = (f"floats that differ by a relative {tolerance:g} are equal",) if tolerance else ()
    return Extent(route.filter, selected, tuple(left_out), weakened)


def _check_readable(table: Table, node: str) -> None:
    shown = display_name(table.schema, table.name)
    if table.kind not in ("r", "p"):
        raise CheckFailed([f"{shown} on {node} is not a table"], cure="name only tables in --tables")
    if table.secured:
        raise CheckFailed(
            [f"row security hides rows of {shown} on {node}"],
            cure="use its owner, or a role with BYPASSRLS",
        )
    unreadable = [column.name for column in table.columns if not (column.readable and table.usage)]
    if unreadable:
        raise CheckFailed(
            [f"the role may not read columns of {shown} on {node}: {', '.join(unreadable)}"],
            cure="GRANT SELECT on them",
        )


def _key(connection: Connection, table: Table, settings: Settings) -> tuple[str, tuple[str, ...]]:
    """Return the replica identity of a table, and the columns that identify its rows."""
    row = one_row(connection.execute(load("trueup.verbs.validate", "plan.sql")["identity"], {"oid": table.oid}))
    identity, index, persistence = str(row[0]), row[1], row[2]
    shown = display_name(table.schema, table.name)
    if persistence != "p":
        raise CheckFailed([f"{shown} is unlogged or temporary: it is not in the log"], cure="ALTER TABLE … SET LOGGED")
    primary = next((key.columns for key in table.keys if key.is_primary), ())
    if settings.changes != "log":
        names = primary or next((key.columns for key in table.keys), ())
    elif identity == "i":
        # The index of an identity may be over columns whose NOT NULL is NOT VALID.
        names = next((key.columns for key in table.keys if set(key.columns) == {*(index or ())}), ())
    elif identity == "f":
        names = primary or next((key.columns for key in table.keys), ())
    else:
        names = primary if identity == "d" else ()
    if not names:
        raise CheckFailed(
            [f"{shown} has no key that identifies its rows in the log"],
            cure="add a primary key, or set REPLICA IDENTITY USING INDEX; until then compare it with trueup diff",
        )
    return identity, tuple(names)


def _target_key(table: Table, names: Sequence[str], route: Route) -> set[str]:
    """Return the columns of the target's key that identifies the same rows, with its constant columns."""
    fitting = [key for key in table.keys if set(names) <= set(key.columns) <= {*names, *route.constants}]
    if not fitting:
        raise CheckFailed(
            [f"{display_name(table.schema, table.name)} has no unique key on ({', '.join(names)})"],
            cure="create one on the target; rows are looked up by it",
        )
    return set(fitting[0].columns)


def _columns(
    source_table: Table, target_table: Table, route: Route, key: Sequence[str]
) -> tuple[list[tuple[ColumnSpec, ColumnSpec]], list[str]]:
    pairs: list[tuple[ColumnSpec, ColumnSpec]] = []
    remarks: list[str] = []
    for column in source_table.columns:
        name = route.columns.get(column.name, column.name)
        other = target_table.column(name)
        if column.name in route.excluded:
            remarks.append(f"column {column.name} is not compared: excluded")
        elif route.carried is not None and column.name not in route.carried:
            remarks.append(f"column {column.name} is not compared: the publication of the subscription lacks it")
        elif other is None:
            remarks.append(f"column {column.name} is not compared: the target has no column {name}")
        else:
            pairs.append(_alike(column, other, remarks))
    lost = [name for name in key if name not in {pair[0].name for pair in pairs}]
    if lost:
        raise CheckFailed(
            [f"the key column {lost[0]} of {route.name} is excluded, or not on the target"],
            cure="name it with --map-columns, or do not exclude it",
        )
    remarks += route.remarks
    named = {pair[1].name for pair in pairs}
    for column in target_table.columns:
        known = {*named, *route.constants, *route.excluded, *_left_out(source_table, route)}
        if column.name not in known:
            remarks.append(f"column {column.name} of the target is not compared: the source does not have it")
    return pairs, remarks


def _left_out(source_table: Table, route: Route) -> list[str]:
    """Return the columns of the target that the publication of the subscription does not fill."""
    carried = route.carried
    names = [] if carried is None else [column.name for column in source_table.columns if column.name not in carried]
    return [route.columns.get(name, name) for name in names]


def _alike(source: Column, target: Column, remarks: list[str]) -> tuple[ColumnSpec, ColumnSpec]:
    """Return two columns so that equal values have equal hashes: different types are compared as text."""
    left, right = column_spec(source), column_spec(target)
    if left.type == right.type:
        return left, right
    remarks.append(
        f"column {source.name} is compared as text: {source.type} on the source, {target.type} on the target"
    )
    return _as_text(left), _as_text(right)


def _as_text(column: ColumnSpec) -> ColumnSpec:
    return replace(column, encoding="text") if column.encoding == "native" else column


def _key_spec(
    connection: Connection, source_table: Table, target_table: Table, route: Route, name: str
) -> tuple[KeySpec, KeySpec]:
    left, right = _column(source_table, name), _column(target_table, route.columns.get(name, name))
    own = {
        (str(row[0]), str(row[1])) for row in connection.execute(load("trueup.verbs.validate", "plan.sql")["own_text"])
    }
    known = {("pg_catalog", row.name) for row in TYPES.values() if row.cast_from_output}
    for column in (left, right):
        if (column.base_schema, column.base_name) in own - known:
            raise CheckFailed(
                [f"key column {column.name} of {route.name}: type {column.type} has two text forms"],
                cure="compare the table with trueup diff",
            )
    order = key_order([left, right])
    return KeySpec(column_spec(left), order), KeySpec(column_spec(right), order)


def _column(table: Table, name: str) -> Column:
    column = table.column(name)
    if column is None:
        shown = display_name(table.schema, table.name)
        raise CheckFailed(
            [f"column {name} does not exist in {shown}"], cure="check --map-columns, --constant and --exclude-columns"
        )
    return column


def _constant_filter(constants: Sequence[tuple[ColumnSpec, str]]) -> str:
    parts = [
        sql.SQL("{} = {}::{}").format(
            *(base_value(column), sql.Literal(value), sql.SQL(column.type))
            if is_scalar(column.type)
            else (text_of(column), sql.Literal(value), sql.SQL("text"))
        )
        for column, value in constants
    ]
    return sql.SQL(" AND ").join(parts).as_string(None) if parts else ""


def is_float(column: ColumnSpec) -> bool:
    """Return whether a tolerance applies to the column."""
    return type_of(column).is_float


def why_altered(pair: Pair, identity: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """Return why a table must be stopped whose key in the log is not as planned; "" if it is."""
    if identity == "n" or (identity != "f" and set(keys) != set(pair.key)):
        now = f"({', '.join(keys)})" if keys and identity != "n" else "none"
        return f"its key in the log was ({', '.join(pair.key)}) and is now {now}"
    missing = [name for name in pair.key if name not in columns]
    if missing:
        return f"its key column {missing[0]} does not exist any more"
    return ""
