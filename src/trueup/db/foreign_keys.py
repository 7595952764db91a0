"""Foreign keys: the order in which tables can be written, and rows whose parent does not exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql
from psycopg.rows import dict_row

from trueup.db.casts import as_type, is_scalar, output_of
from trueup.db.connection import Connection, one_value
from trueup.db.names import display_name
from trueup.db.statements import load
from trueup.errors import CheckFailed

TableName = tuple[str, str]  # schema and name


@dataclass(frozen=True)
class ForeignKey:
    """A foreign key from a child table to a parent table; a partition may have foreign keys of its own."""

    name: str
    child: TableName
    parent: TableName
    # The partitioned tables that these are partitions of, at the top; child and parent themselves if they are none.
    child_root: TableName
    parent_root: TableName
    child_columns: tuple[str, ...]
    parent_columns: tuple[str, ...]
    operators: tuple[str, ...]  # parent column OP child column
    # The types of the columns below any domain, quoted and with their schemas.
    child_types: tuple[str, ...]
    parent_types: tuple[str, ...]
    deferrable: bool
    validated: bool
    match_full: bool
    on_delete: str  # as in pg_constraint: a no action, r restrict, c cascade, n set null, d set default
    on_update: str
    nullable: bool  # whether all columns of the child may be NULL
    # Whether the last column is a PERIOD (PostgreSQL 18): rows of the parent must cover it, each of them overlaps it.
    period: bool = False

    def __str__(self) -> str:
        return f"{self.name} of {display_name(*self.child)}"


@dataclass(frozen=True)
class Order:
    """Tables in groups, parents before children; tables of one group reference each other."""

    groups: tuple[tuple[TableName, ...], ...]

    @property
    def tables(self) -> tuple[TableName, ...]:
        """All tables, parents first."""
        return tuple(table for group in self.groups for table in group)

    @property
    def cycles(self) -> tuple[tuple[TableName, ...], ...]:
        """The groups of more than one table."""
        return tuple(group for group in self.groups if len(group) > 1)


def read_foreign_keys(connection: Connection, tables: Iterable[TableName] | None = None) -> list[ForeignKey]:
    """Return the foreign keys of a database, or those from or to one of these tables or one of their partitions."""
    statements = load("trueup.db", "foreign_keys.sql")
    if not one_value(connection.execute(statements["has_foreign_keys"])):
        return []
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(statements["foreign_keys"], {}).fetchall()
    keys = [
        ForeignKey(
            name=row["name"],
            child=(row["child_schema"], row["child_table"]),
            parent=(row["parent_schema"], row["parent_table"]),
            child_root=(row["child_root_schema"], row["child_root"]),
            parent_root=(row["parent_root_schema"], row["parent_root"]),
            child_columns=tuple(row["child_columns"]),
            parent_columns=tuple(row["parent_columns"]),
            operators=tuple(row["operators"]),
            child_types=tuple(row["child_types"]),
            parent_types=tuple(row["parent_types"]),
            **{name: row[name] for name in _PLAIN},
        )
        for row in rows
    ]
    if tables is None:
        return keys
    names = set(tables)
    return [key for key in keys if names & {key.child, key.parent, key.child_root, key.parent_root}]


_PLAIN = ("deferrable", "validated", "match_full", "on_delete", "on_update", "nullable", "period")


def in_order(tables: Iterable[TableName], keys: Iterable[ForeignKey]) -> Order:
    """Return the tables, parents before children. Deletes need the opposite order.

    A foreign key of a partition counts for the table at the top if the partition is not one of the tables.
    """
    names = sorted(set(tables))
    parents: dict[TableName, set[TableName]] = {table: set() for table in names}
    for key in keys:
        child = key.child if key.child in parents else key.child_root
        parent = key.parent if key.parent in parents else key.parent_root
        if child in parents and parent in parents and child != parent:
            parents[child].add(parent)
    return Order(tuple(_components(names, parents)))


def _components(tables: Sequence[TableName], parents: dict[TableName, set[TableName]]) -> list[tuple[TableName, ...]]:
    """Return the strongly connected components, each after those it depends on (Tarjan, without recursion)."""
    number: dict[TableName, int] = {}
    low: dict[TableName, int] = {}
    stack: list[TableName] = []
    components: list[tuple[TableName, ...]] = []
    for start in tables:
        if start in number:
            continue
        number[start] = low[start] = len(number)
        stack.append(start)
        path = [(start, iter(sorted(parents[start])))]
        while path:
            table, rest = path[-1]
            following = next(rest, None)
            if following is not None:
                if following not in number:
                    number[following] = low[following] = len(number)
                    stack.append(following)
                    path.append((following, iter(sorted(parents[following]))))
                elif following in stack:
                    low[table] = min(low[table], number[following])
                continue
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[table])
            if low[table] == number[table]:
                first = stack.index(table)
                components.append(tuple(sorted(stack[first:])))
                del stack[first:]
    return components


def refers(key: ForeignKey, parent: str = "p", child: str = "c") -> sql.Composed:
    """Return the condition that a row of the child refers to a row of the parent, given by their aliases."""
    return sql.SQL(" AND ").join(
        sql.SQL("{} {} {}").format(
            as_type(sql.Identifier(parent, parent_column), parent_type),
            sql.SQL(operator),
            as_type(sql.Identifier(child, child_column), child_type),
        )
        for parent_column, parent_type, operator, child_column, child_type in _columns(key)
    )


def _columns(key: ForeignKey) -> list[tuple[str, str, str, str, str]]:
    columns = list(
        zip(key.parent_columns, key.parent_types, key.operators, key.child_columns, key.child_types, strict=True)
    )
    for parent_column, parent_type, _, child_column, child_type in columns:
        if parent_type != child_type and not (is_scalar(parent_type) and is_scalar(child_type)):
            # PostgreSQL compares them through an implicit cast, which runs with the rights of this session.
            raise CheckFailed(
                [
                    f"foreign key {key}: column {child_column} ({child_type}) and column {parent_column}"
                    f" ({parent_type}) have different types, and a cast of their owner compares them"
                ],
                cure="give both columns the same type",
            )
    return columns


def orphans(
    connection: Connection, key: ForeignKey, *, among: sql.Composable | None = None, limit: int = 5, child: str = "c"
) -> list[tuple[str, ...]]:
    """Return at most `limit` rows of the child whose parent does not exist, as texts of the referencing columns.

    `among` is a condition on the child, whose alias is `child`. Rows that were written while the triggers of the
    foreign key were disabled are found only this way.
    """
    own = [sql.Identifier(child, name) for name in key.child_columns]
    is_set = [sql.SQL("{} IS NOT NULL").format(column) for column in own]
    # MATCH FULL: all columns are set, or none. Otherwise a row with one NULL has no parent.
    is_referring = (sql.SQL(" OR ") if key.match_full else sql.SQL(" AND ")).join(is_set)
    covered: sql.Composable = sql.SQL("")
    if key.period:
        last = as_type(sql.Identifier("p", key.parent_columns[-1]), key.parent_types[-1])
        covered = sql.SQL(" HAVING {} OPERATOR(pg_catalog.<@) pg_catalog.range_agg({})").format(
            as_type(own[-1], key.child_types[-1]), last
        )
    query = sql.SQL(
        "SELECT {shown} FROM {child} {alias} WHERE ({refers})"
        " AND NOT EXISTS (SELECT FROM {parent} p WHERE {pairs}{covered}){among} LIMIT {limit}"
    ).format(
        covered=covered,
        shown=sql.SQL(", ").join(output_of(column) for column in own),
        child=sql.Identifier(*key.child),
        alias=sql.Identifier(child),
        parent=sql.Identifier(*key.parent),
        refers=is_referring,
        pairs=refers(key, "p", child),
        among=sql.SQL(" AND {}").format(among) if among is not None else sql.SQL(""),
        limit=sql.Literal(limit),
    )
    return [tuple(row) for row in connection.execute(query).fetchall()]


def lock_parents(connection: Connection, key: ForeignKey, *, among: sql.Composable, child: str = "c") -> None:
    """Lock the parents of these rows of the child until the transaction ends, so that they are not deleted meanwhile.

    This waits for a transaction that is deleting one of them.
    """
    query = sql.SQL(
        "WITH locked AS MATERIALIZED (SELECT FROM (SELECT {columns} FROM {child} WHERE {among}) {alias}"
        " JOIN {parent} p ON {pairs} FOR KEY SHARE OF p) SELECT count(*) FROM locked"
    ).format(
        columns=sql.SQL(", ").join(map(sql.Identifier, key.child_columns)),
        child=sql.Identifier(*key.child),
        alias=sql.Identifier(child),
        parent=sql.Identifier(*key.parent),
        pairs=refers(key, "p", child),
        among=among,
    )
    connection.execute(query)
