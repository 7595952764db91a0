"""The tables of a sync on both databases, by their oids: names can be given to other tables, and columns too.

The target keeps them as they were when the two tables were last in step. A table that was renamed on both databases
is still the same one; a table that took the name of another one is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from psycopg import sql
from psycopg.types.json import Jsonb

from trueup.db.connection import Connection, one_value
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name, parse_table_name
from trueup.verbs.sync import state
from trueup.verbs.sync.model import SyncTable

# Rows may have got a value of a column when it was added: see the statement `columns`.
_FILLED = "filled"

# Column -> its numbers on the source and on the target.
Columns = Mapping[str, tuple[int, int]]
# Column of a composite type -> the attributes in it on the source and on the target.
Made = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Member:
    """One table of a sync, when it was last in step."""

    name: str
    source_oid: int
    target_oid: int
    columns: Columns
    made: Made = field(default_factory=dict)

    @property
    def table(self) -> TableName:
        """Schema and name."""
        schema, table = parse_table_name(self.name)
        return schema.text, table.text


@dataclass(frozen=True)
class _Column:
    """A column as one database has it."""

    name: str
    number: int
    # Whether rows may have got a value when it was added, and the attributes in it: see the statement `columns`.
    filled: str
    made: str


@dataclass(frozen=True)
class Numbered:
    """A table of the source, its columns and their numbers."""

    oid: int
    name: TableName
    columns: Mapping[str, _Column]


def numbered(source: Connection, tables: Mapping[int, TableName]) -> list[Numbered]:
    """Return these tables with the numbers of their columns."""
    columns = _columns(source, list(tables))
    return [Numbered(oid, name, columns[oid]) for oid, name in tables.items()]


def record_created(target: Connection, sync: str, tables: Iterable[Numbered]) -> list[str]:
    """Record tables that the open transaction of the sync has created like these, and return their names."""
    by_name = {display_name(*table.name): table for table in tables}
    oids = {name: oid for oid, name in names_by_oid(target).items() if name in by_name}
    present = _columns(target, list(oids.values()))
    for name, oid in oids.items():
        _set(target, sync, _present(name, by_name[name].oid, oid, by_name[name].columns, present[oid]))
    return list(oids)


def read(target: Connection, sync: str, *, lock: bool = False) -> dict[int, Member]:
    """Return the tables of a sync by their oids on the source; with `lock`, until the end of the transaction."""
    query = state.statement("members_locked" if lock else "members")
    rows = target.execute(query, [sync]).fetchall()
    members = (
        Member(
            name,
            source,
            on_target,
            {column: (first, second) for column, (first, second, *_) in columns.items()},
            {column: (made[0], made[1]) for column, (_, _, *made) in columns.items() if made},
        )
        for name, source, on_target, columns in rows
    )
    return {member.source_oid: member for member in members}


def record(
    source: Connection, target: Connection, sync: str, tables: Iterable[SyncTable], *, no_others: bool = False
) -> list[SyncTable]:
    """Record that these tables are in step; return those whose rows on the target may lack values.

    A column that was dropped and created again on the target has the same name and other values. With `no_others` the
    sync has no other tables, and what is known of these is replaced. Call it in a transaction of the sync.
    """
    known, tables = read(target, sync), list(tables)
    on_source = _columns(source, [table.oid for table in tables])
    on_target = _columns(target, [table.target_oid for table in tables])
    incomplete: list[SyncTable] = []
    changed: list[Member] = []
    for table in tables:
        numbers, others = on_source[table.oid], on_target[table.target_oid]
        present, former = _present(str(table), table.oid, table.target_oid, numbers, others), known.get(table.oid)
        # It was changed since it was checked: its columns are recognized by what is recorded.
        compared = _Columns(former, present)
        is_changed = numbers.keys() != others.keys()
        if present == former or (not no_others and (compared.added_again or (former is not None and is_changed))):
            continue
        changed.append(present)
        if compared.moved or any(_has_values(target, table, others[name]) for name in compared.unknown):
            incomplete.append(table)
    oids = {table.oid for table in tables}
    removed = {known[member.source_oid].name for member in changed if member.source_oid in known}
    removed |= {member.name for oid, member in known.items() if no_others and oid not in oids}
    target.execute(state.statement("remove_members"), {"sync": sync, "names": list(removed)})
    for member in changed:
        _set(target, sync, member)
    return [] if no_others else incomplete


def _present(
    name: str, source_oid: int, target_oid: int, on_source: Mapping[str, _Column], on_target: Mapping[str, _Column]
) -> Member:
    """Return a table as it is now."""
    both = {name: (column, on_target[name]) for name, column in on_source.items() if name in on_target}
    columns = {name: (column.number, other.number) for name, (column, other) in both.items()}
    made = {name: (column.made, other.made) for name, (column, other) in both.items() if column.made or other.made}
    return Member(name, source_oid, target_oid, columns, made)


class _Columns:
    """The columns of a table that were not in step when it was recorded, by name."""

    def __init__(self, former: Member | None, present: Member) -> None:
        # Both existed, and had other names, or other attributes of their composite type: rows may have other values.
        self.moved: list[str] = []
        # The target's column has the values of a column that the source has no more.
        self.added_again: list[str] = []
        # New on both databases.
        self.unknown: list[str] = []
        former = former or present
        was = dict(former.columns.values())
        made = {number: former.made.get(name) for name, (number, _) in former.columns.items()}
        of_source = {number for number, _ in present.columns.values()}
        sources = {other: number for number, other in was.items()}
        for name, (number, other) in present.columns.items():
            if was.get(number) == other and made[number] == present.made.get(name):
                continue
            if number in was or sources.get(other) in of_source:
                self.moved.append(name)
            else:
                (self.added_again if other in sources else self.unknown).append(name)


def _has_values(target: Connection, table: SyncTable, column: _Column) -> bool:
    """Return whether rows of the target may have values in a column that no round has written.

    The rows that the source had when it got the column have none there, or the change log has all of its rows.
    """
    if column.filled:
        return column.filled == _FILLED
    query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {} IS DISTINCT FROM NULL)")
    return bool(one_value(target.execute(query.format(sql.Identifier(*table.name), sql.Identifier(column.name)))))


def added_again(
    source: Connection, target: Connection, known: Mapping[int, Member], tables: Sequence[SyncTable]
) -> list[tuple[SyncTable, list[str]]]:
    """Return the columns that were dropped on the source and added again: no change of a row shows that.

    The values of the target are kept until its column is dropped too.
    """
    on_source = _columns(source, [table.oid for table in tables])
    on_target = _columns(target, [table.target_oid for table in tables])
    found: list[tuple[SyncTable, list[str]]] = []
    for table in tables:
        numbers, others = on_source[table.oid], on_target[table.target_oid]
        present = _present(str(table), table.oid, table.target_oid, numbers, others)
        if names := _Columns(known.get(table.oid), present).added_again:
            found.append((table, names))
    return found


def adopt(target: Connection, sync: str, source_oid: int, added: Mapping[str, int]) -> None:
    """Record columns, and their numbers on the source, that the caller's transaction has added without values."""
    former = read(target, sync, lock=True).get(source_oid)
    if former is None or not added:
        return
    present = _columns(target, [former.target_oid])[former.target_oid]
    names = {column.number: name for name, column in present.items()}
    columns = {names[other]: (number, other) for number, other in former.columns.values() if other in names}
    columns |= {name: (number, present[name].number) for name, number in added.items() if name in present}
    made = {
        names[other]: former.made[name]
        for name, (_, other) in former.columns.items()
        if name in former.made and other in names
    }
    _set(target, sync, replace(former, columns=columns, made=made))


def _set(target: Connection, sync: str, member: Member) -> None:
    values = {"name": member.name, "source": member.source_oid, "target": member.target_oid}
    columns = {name: (*numbers, *member.made.get(name, ())) for name, numbers in member.columns.items()}
    target.execute(state.statement("set_member"), {"sync": sync, **values, "columns": Jsonb(columns)})


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
        state.set_tables(target, stored.sync, names, stored.left_out)
    return names


def left_out(target: Connection, sync: str) -> dict[int, str]:
    """Return the tables of the source that are not in a sync, besides those of its options, and who decided that."""
    return dict(target.execute(state.statement("left_out"), [sync]).fetchall())


def leave_out(target: Connection, sync: str, tables: Mapping[int, str], why: str) -> None:
    """Record that these tables, by oid and name, are not in a sync; call it in a transaction of the sync."""
    values = {"oids": list(tables), "names": list(tables.values())}
    target.execute(state.statement("leave_out"), {"sync": sync, "why": why, **values})


def take_in(target: Connection, sync: str, oids: Iterable[int]) -> None:
    """Record that these tables are not left out any more; call it in a transaction of the sync."""
    target.execute(state.statement("take_in"), {"sync": sync, "oids": list(oids)})


_Tables = Mapping[int, Mapping[str, _Column]]


def _columns(connection: Connection, oids: list[int]) -> _Tables:
    """Return the columns of tables by oid and name."""
    columns: dict[int, dict[str, _Column]] = {oid: {} for oid in oids}
    for oid, name, number, filled, made in connection.execute(state.statement("columns"), {"oids": oids}).fetchall():
        columns[oid][name] = _Column(name, number, filled, made)
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


def partitions(connection: Connection, oids: Iterable[int]) -> dict[int, int]:
    """Return those of the tables that are partitions, and the table at the root of each."""
    query = (
        "SELECT c.oid::bigint, pg_partition_root(c.oid)::oid::bigint FROM pg_class c"
        " WHERE c.oid = ANY(%s::oid[]) AND c.relispartition"
    )
    return dict(connection.execute(query, [list(oids)]).fetchall())


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
