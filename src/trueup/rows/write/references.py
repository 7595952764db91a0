"""Verify what silenced triggers did not check: foreign keys in both directions, and deferrable unique constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from psycopg import sql

from trueup.db.casts import output_of
from trueup.db.connection import Connection
from trueup.db.foreign_keys import ForeignKey, TableName, lock_parents, orphans, read_foreign_keys, refers
from trueup.db.names import display_name
from trueup.db.statements import load
from trueup.db.table_lock import in_short_attempts
from trueup.errors import QueryError
from trueup.rows.fetch import among
from trueup.rows.keys import KeyValues, literals, ordered
from trueup.rows.spec import TableSpec
from trueup.rows.write.stage import stage_keys
from trueup.rows.write.target import Target, column_list, same_key, table_name

# Batches of keys whose rows were written and of keys whose rows were deleted; each fits into one statement. Of the
# updated rows, only those in which one of these columns changed are needed (None: all).
KeyBatches = Callable[["Sequence[str] | None"], Iterable[tuple[Sequence[KeyValues], Sequence[KeyValues]]]]


def check_references(connection: Connection, spec: TableSpec, batches: KeyBatches) -> None:
    """Raise if a written row refers to no row, a deleted row is still referred to, or a unique value occurs twice.

    The parents of written rows are locked until the transaction ends, as the triggers would do.
    """
    tables, parts = table_and_ancestors(connection, spec), partitions(connection, spec)
    for key in read_foreign_keys(connection, [*tables, *parts]):
        if key.child in tables or key.child in parts:
            # The foreign keys of a partitioned table are those of its partitions, which may have others of their own.
            own = key if key.child in parts else replace(key, child=(spec.schema, spec.table))
            # Like the server: a row that keeps its parent does not lock it, so that a session which has locked the
            # parent and then updates this row does not wait for us while we wait for it.
            for written, _ in batches(key.child_columns):
                if written:
                    lock_parents(connection, own, among=among(spec, written))
                    _check(key, orphans(connection, own, among=among(spec, written), limit=1))
        if key.parent in tables or key.parent in parts:
            _check_children(connection, spec, key, batches)
    for name, columns in deferrable_constraints(connection, spec, kinds=("p", "u")):
        for written, _ in batches(None):
            if written:
                _check_unique(connection, spec, name, columns, written)


def acted_on(connection: Connection, key: ForeignKey, parent: Target, ids: Sequence[bytes]) -> tuple[str, ...] | None:
    """Return a row of the child, as texts of the referencing columns, that an ON DELETE action would change or delete.

    `ids` are those of the rows of the parent that one statement will delete. Rows that it deletes itself do not count.
    """
    staged = stage_keys(connection, parent, ids)
    names = parent.spec.key_names
    query = sql.SQL(
        "SELECT {shown} FROM {child} c WHERE EXISTS (SELECT FROM {parent} p JOIN {staged} k ON {same} WHERE {refers})"
        " AND NOT {deleted} LIMIT 1"
    ).format(
        shown=sql.SQL(", ").join(output_of(sql.Identifier("c", name)) for name in key.child_columns),
        child=sql.Identifier(*key.child),
        parent=parent.name,
        staged=staged,
        same=same_key(names, "p", "k"),
        refers=refers(key, "p", "c"),
        deleted=sql.SQL("EXISTS (SELECT FROM {} d WHERE {})").format(staged, same_key(names, "c", "d"))
        if key.child == key.parent
        else sql.SQL("false"),
    )
    row = connection.execute(query).fetchone()
    return None if row is None else tuple(map(str, row))


def lock_for_deferrable(connection: Connection, spec: TableSpec) -> None:
    """Before the first write: keep other writers out of a table with a deferrable unique constraint.

    Its trigger is silenced, and `check_references` cannot see the same value in a row that is not committed yet.
    """
    if any(deferrable_constraints(connection, spec, kinds=("p", "u"))):
        lock = sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(table_name(spec))
        in_short_attempts(connection, lambda: connection.execute(lock))


def table_and_ancestors(connection: Connection, spec: TableSpec) -> list[TableName]:
    """Return the table and, if it is a partition, all tables that it is a partition of."""
    query = load("trueup.rows.write", "references.sql")["ancestors"]
    rows = connection.execute(query, {"schema": spec.schema, "table": spec.table}).fetchall()
    return [(spec.schema, spec.table), *((schema, name) for schema, name in rows)]


def partitions(connection: Connection, spec: TableSpec) -> list[TableName]:
    """Return the partitions of the table, at all levels."""
    query = load("trueup.rows.write", "references.sql")["partitions"]
    rows = connection.execute(query, {"schema": spec.schema, "table": spec.table}).fetchall()
    return [(schema, name) for schema, name in rows]


def deferrable_constraints(
    connection: Connection, spec: TableSpec, *, kinds: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield name and columns of the constraints that are checked by triggers; kinds as in pg_constraint.contype."""
    query = load("trueup.rows.write", "references.sql")["deferrable"]
    for name, kind, columns in connection.execute(query, {"schema": spec.schema, "table": spec.table}).fetchall():
        if kind in kinds:
            yield name, columns


def _check_children(connection: Connection, spec: TableSpec, key: ForeignKey, batches: KeyBatches) -> None:
    if set(key.parent_columns) != set(spec.key_names) or key.period:
        # The foreign key refers to columns that may have been written, or to several rows: check all rows of the child.
        _check(key, orphans(connection, key, limit=1))
        return
    places = {part.column.name: place for place, part in enumerate(spec.key)}
    order = [places[name] for name in key.parent_columns]
    for _, deleted in batches(()):
        if not deleted:
            continue
        values = sql.SQL(", ").join(
            sql.SQL("({})").format(
                sql.SQL(", ").join(literals([spec.key[place] for place in order], tuple(row[place] for place in order)))
            )
            for row in deleted
        )
        # A column of the child as a value of the parent's type, as the literals are.
        children = [
            ordered(replace(spec.key[place], column=replace(spec.key[place].column, name=name)), "c")
            for place, name in zip(order, key.child_columns, strict=True)
        ]
        condition = sql.SQL("({}) IN (VALUES {})").format(sql.SQL(", ").join(children), values)
        _check(key, orphans(connection, key, among=condition, limit=1))


def _check(key: ForeignKey, violations: Sequence[tuple[str, ...]]) -> None:
    if violations:
        parent = display_name(*key.parent)
        raise QueryError(
            f"foreign key {key} would be violated: ({', '.join(violations[0])}) does not exist in {parent}",
            sqlstate="23503",
            cure=f"repair {parent} first, or repair {display_name(*key.child)} as well",
        )


def _check_unique(
    connection: Connection, spec: TableSpec, name: str, columns: Sequence[str], keys: Sequence[KeyValues]
) -> None:
    query = sql.SQL(
        "SELECT {columns} FROM {table} WHERE ({columns}) IN (SELECT {columns} FROM {table} WHERE {keys})"
        " GROUP BY {columns} HAVING count(*) > 1 LIMIT 1"
    ).format(columns=column_list(columns), table=table_name(spec), keys=among(spec, keys))
    duplicate = connection.execute(query).fetchone()
    if duplicate:
        raise QueryError(
            f"unique constraint {name} would be violated: ({', '.join(map(str, duplicate))}) would occur twice",
            sqlstate="23505",
            cure="another row of the table has this value: compare the whole table and repair all differences",
        )
