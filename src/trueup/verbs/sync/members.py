"""The tables of a sync on both databases, by their oids: names can be given to other tables, and columns too.

The target keeps them as they were when the two tables were last in step. A table that was renamed on both databases
is still the same one; a table that took the name of another one is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg import sql
from psycopg.types.json import Jsonb

from trueup.db.connection import Connection, one_value
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name, parse_table_name
from trueup.verbs.sync import state
from trueup.verbs.sync.model import SyncTable

# Column -> its numbers on the source and on the target.
Columns = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Member:
    """One table of a sync, when it was last in step."""

    name: str
    source_oid: int
    target_oid: int
    columns: Columns

    @property
    def table(self) -> TableName:
        """Schema and name."""
        schema, table = parse_table_name(self.name)
        return schema.text, table.text


@dataclass(frozen=True)
class Numbered:
    """A table of the source, its columns and their numbers."""

    oid: int
    name: TableName
    columns: tuple[tuple[str, int], ...]


def numbered(source: Connection, tables: Mapping[int, TableName]) -> list[Numbered]:
    """Return these tables with the numbers of their columns."""
    columns = _columns(source, list(tables))
    return [
        Numbered(oid, name, tuple((column, number) for column, (number, _) in columns[oid].items()))
        for oid, name in tables.items()
    ]


def record_created(target: Connection, sync: str, tables: Iterable[Numbered]) -> list[str]:
    """Record tables that the open transaction of the sync has created like these, and return their names."""
    by_name = {display_name(*table.name): table for table in tables}
    oids = {name: oid for oid, name in names_by_oid(target).items() if name in by_name}
    present = _columns(target, list(oids.values()))
    for name, oid in oids.items():
        table, on_target = by_name[name], present[oid]
        columns = {column: (number, on_target[column][0]) for column, number in table.columns if column in on_target}
        _set(target, sync, Member(name, table.oid, oid, columns))
    return list(oids)


def read(target: Connection, sync: str) -> dict[int, Member]:
    """Return the tables of a sync by their oids on the source."""
    rows = target.execute(state.statement("members"), [sync]).fetchall()
    members = (
        Member(name, source, on_target, {column: (first, second) for column, (first, second) in columns.items()})
        for name, source, on_target, columns in rows
    )
    return {member.source_oid: member for member in members}


def record(
    source: Connection, target: Connection, sync: str, tables: Iterable[SyncTable], *, no_others: bool = False
) -> list[SyncTable]:
    """Record that these tables are in step; return those whose rows on the target may lack values.

    A column that was dropped and created again on the target has the same name and no values. With `no_others` the sync
    has no other tables. Call it in a transaction of the sync.
    """
    known, tables = read(target, sync), list(tables)
    on_source = _columns(source, [table.oid for table in tables])
    on_target = _columns(target, [table.target_oid for table in tables])
    incomplete: list[SyncTable] = []
    changed: list[Member] = []
    for table in tables:
        numbers = on_target[table.target_oid]
        columns = {
            name: (number, numbers[name][0]) for name, (number, _) in on_source[table.oid].items() if name in numbers
        }
        present, former = Member(str(table), table.oid, table.target_oid, columns), known.get(table.oid)
        # With other columns it was changed since it was checked: its columns are recognized by what is recorded.
        if present == former or (former is not None and on_source[table.oid].keys() != numbers.keys()):
            continue
        changed.append(present)
        was = dict(former.columns.values()) if former is not None else dict(columns.values())
        if any(
            was[number] != other if number in was else numbers[name][1] for name, (number, other) in columns.items()
        ):
            incomplete.append(table)
    oids = {table.oid for table in tables}
    removed = {known[member.source_oid].name for member in changed if member.source_oid in known}
    removed |= {member.name for oid, member in known.items() if no_others and oid not in oids}
    target.execute(state.statement("remove_members"), {"sync": sync, "names": list(removed)})
    for member in changed:
        _set(target, sync, member)
    return incomplete


def _set(target: Connection, sync: str, member: Member) -> None:
    values = {"name": member.name, "source": member.source_oid, "target": member.target_oid}
    target.execute(state.statement("set_member"), {"sync": sync, **values, "columns": Jsonb(member.columns)})


def make_room(source: Connection, target: Connection, sync: str, tables: Sequence[SyncTable]) -> list[str]:
    """Free the names of these new tables of a sync; return the names that other tables have instead.

    A table whose name was given to one of these, and that exists under another name on the source, stays in the sync.
    Others that had one of the names are removed. Call it in a transaction of the sync.
    """
    known, present = read(target, sync), names_by_oid(source)
    new, taken = {table.oid for table in tables}, {table.target_oid for table in tables}
    names, former, renamed = {str(table) for table in tables}, dict[int, Member](), list[Member]()
    # One that gets the name of another one of the sync needs that name free.
    while found := [member for oid, member in known.items() if member.name in names and oid not in former]:
        former |= {member.source_oid: member for member in found}
        staying = [
            replace(member, name=present[member.source_oid])
            for member in found
            if member.source_oid in present and member.source_oid not in new and member.target_oid not in taken
        ]
        renamed += staying
        names = {member.name for member in staying}
    values = {"sync": sync, "names": [member.name for member in former.values()]}
    target.execute(state.statement("remove_members"), values)
    for member in renamed:
        _set(target, sync, member)
    return [member.name for member in renamed]


def follow_names(
    target: Connection, stored: state.State, known: Mapping[int, Member], tables: Iterable[SyncTable]
) -> tuple[str, ...]:
    """Record the names of tables that were renamed on both databases; return the names of all tables of the sync."""
    renamed = {known[table.oid].name: str(table) for table in tables if table.oid in known}
    names = tuple(renamed.get(name, name) for name in stored.tables)
    if names != stored.tables:
        new = [name for name in names if name not in stored.tables]
        named = (
            tuple(dict.fromkeys([*(renamed.get(name, name) for name in stored.named), *new])) if stored.named else ()
        )
        state.set_tables(target, stored.sync, names, named, stored.left_out)
    return names


def _columns(connection: Connection, oids: list[int]) -> dict[int, dict[str, tuple[int, bool]]]:
    """Return by oid and column: its number, and whether rows may have got a value when it was added."""
    columns: dict[int, dict[str, tuple[int, bool]]] = {oid: {} for oid in oids}
    for oid, name, number, has_value in connection.execute(state.statement("columns"), {"oids": oids}).fetchall():
        columns[oid][name] = (number, has_value)
    return columns


def quoted_names(target: Connection, members: Iterable[Member]) -> list[str]:
    """Return the names of the members for `trueup.sync_shape`, in a fixed order."""
    return sorted(sql.Identifier(*member.table).as_string(target) for member in members)


@dataclass(frozen=True)
class Enum:
    """An enum, and the tables with columns whose types contain it."""

    oid: int
    schema: str
    name: str
    labels: list[str]
    tables: list[int]


def enums(connection: Connection, oids: Iterable[int]) -> list[Enum]:
    """Return the enums in the columns of tables, also inside of domains, arrays, ranges and composite types."""
    rows = connection.execute(state.statement("enums"), {"oids": list(oids)}).fetchall()
    return [Enum(*row) for row in rows]


def shape(target: Connection, sync: str, names: list[str]) -> str:
    """Return the fingerprint of a sync and its tables, which have these quoted names on the target."""
    return str(one_value(target.execute(state.statement("shape"), {"sync": sync, "names": names})))


def shapes(target: Connection, names: Iterable[str]) -> dict[str, str]:
    """Return the fingerprints of tables by their quoted names; check the tables afterwards, or lock them before."""
    return dict(target.execute(state.statement("shapes"), {"names": list(names)}).fetchall())


def with_shapes(tables: Iterable[SyncTable], shapes: Mapping[str, str]) -> list[SyncTable]:
    """Return the tables with their fingerprints, for tasks."""
    return [replace(table, shape=shapes[table.quoted_name]) for table in tables]


def names_by_oid(connection: Connection) -> dict[int, str]:
    """Return the names of all tables of a database."""
    query = (
        "SELECT c.oid::bigint, n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'f', 'm')"
    )
    return {oid: display_name(schema, name) for oid, schema, name in connection.execute(query).fetchall()}


def other_partitions(source: Connection, target: Connection, tables: Iterable[SyncTable]) -> list[SyncTable]:
    """Return the partitioned tables whose partitions have other names on the target."""
    kept = list(tables)
    on_source = _partitions(source, [table.oid for table in kept])
    on_target = _partitions(target, [table.target_oid for table in kept])
    return [table for table in kept if on_source.get(table.oid) != on_target.get(table.target_oid)]


def _partitions(connection: Connection, oids: list[int]) -> dict[int, list[str]]:
    query = (
        "SELECT r.oid::bigint, array_agg(format('%%I.%%I', n.nspname, c.relname) ORDER BY n.nspname, c.relname)"
        " FROM unnest(%s::oid[]) r(oid), pg_partition_tree(r.oid) t JOIN pg_class c ON c.oid = t.relid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE t.level > 0 GROUP BY 1"
    )
    return dict(connection.execute(query, [oids]).fetchall())


def turned(tables: Iterable[SyncTable]) -> list[SyncTable]:
    """Return the tables for a sync in the other direction."""
    return [replace(table, oid=table.target_oid, target_oid=table.oid) for table in tables]
