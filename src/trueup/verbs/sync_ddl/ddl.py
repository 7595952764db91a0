"""The statements that make the tables of the target like those of the source, from a comparison of both catalogs.

Tables and columns are recognized by their numbers (`members`), so that a rename is not a drop and a creation. Nothing
is dropped on the target that the sync did not carry there, and no statement evaluates an expression of the source over
rows of the target: a column is added without its default, and a table whose rows would have to be converted is
emptied; a round copies its rows again.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from psycopg.rows import dict_row

from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name, quoted_name
from trueup.db.statements import load
from trueup.verbs.sync.aside import SAME, SEQUENCE
from trueup.verbs.sync.members import Member
from trueup.verbs.sync.model import Problem
from trueup.verbs.sync_ddl.change import Change, Differences, Statement, deletion
from trueup.verbs.sync_ddl.compared import Compared, compare
from trueup.verbs.sync_ddl.labels import label_changes

_READS, _REWRITES, _BUILDS = "reads the whole table", "may rewrite the whole table", "reads the table to build an index"
_ONLY = "exists only on the target: drop it there, or create it on the source"
_TEMPORARY, _MOVED = "trueup_renamed_{}", "trueup_moved_{}"
# The first version with ALTER COLUMN ... SET EXPRESSION.
_SET_EXPRESSION = 170000


@dataclass(frozen=True)
class Definition:
    """One table as a database has it."""

    oid: int
    schema: str
    name: str
    kind: str
    owner: str
    is_partition: bool
    partition_key: str | None
    partition_expressions: list[str]
    classes: list[str]
    columns: list[dict[str, Any]] = field(default_factory=list)
    constraints: list[dict[str, Any]] = field(default_factory=list)
    indexes: list[dict[str, Any]] = field(default_factory=list)
    partitions: list[dict[str, Any]] = field(default_factory=list)
    sequences: list[dict[str, Any]] = field(default_factory=list)
    grants: list[dict[str, Any]] = field(default_factory=list)

    @property
    def table(self) -> TableName:
        """Schema and name."""
        return self.schema, self.name

    def __str__(self) -> str:
        return display_name(*self.table)


def find(
    source: Connection, target: Connection, members: Mapping[int, Member], problems: Sequence[Problem]
) -> Differences:
    """Compare the tables of a sync, and the new ones among the problems, on both databases."""
    oids = {display_name(*table): oid for oid, table in _names(source).items()}
    new = list(dict.fromkeys(oid for each in problems if (oid := oids.get(each.where)) and oid not in members))
    on_source = _definitions(source, [*members, *new])
    on_target = _definitions(target, [member.target_oid for member in members.values()])
    aside = {problem.where for problem in problems}
    pairs = [
        (member, on_source[oid], on_target[member.target_oid])
        for oid, member in members.items()
        if oid in on_source and member.target_oid in on_target
    ]
    notes: list[str] = []
    schemas, is_renamed = _schemas(source, target, on_source.values(), pairs)
    if is_renamed:
        # Names in the definitions of the target change with its schemas.
        return Differences(tuple(schemas), is_first_part=True)
    gone = {
        present.table: member
        for member in members.values()
        if member.source_oid not in oids.values() and (present := on_target.get(member.target_oid))
    }
    renames, renamed, is_blocked = _renames(target, pairs, gone, notes)
    # Their names are those of other tables.
    waiting = {wanted.oid for _, wanted, present in pairs if wanted.table != present.table}
    waiting -= {wanted.oid for wanted, _ in renamed}
    freed = {present.table for _, present in renamed} - {wanted.table for wanted, _ in renamed}
    changes, concerned = label_changes(source, target, on_source, notes)
    changes = [*schemas, *changes, *renames, *_sequences(source, target, problems)]
    references: list[Change] = []
    detached = {
        (each["schema"], each["name"]): each["oid"]
        for _, wanted, present in pairs
        for each in present.partitions
        if (each["schema"], each["name"]) not in _partition_names(wanted)
    }
    late: list[Change] = []
    for wanted in (on_source[oid] for oid in new if oid in on_source):
        if former := gone.pop(wanted.table, None):
            changes += _without_references(_replaced(target, former, wanted, on_target, members, notes), references)
        elif wanted.table in freed or not _exists(target, wanted):
            changes += _without_references(_created(target, wanted, members, notes), references)
        elif wanted.table in detached:
            # After the partition was detached.
            late.append(_kept(wanted, detached[wanted.table]))
    compared, movable = compare(source, target, _same_names(pairs)), _movable(pairs, detached)
    altered: set[TableName] = set()
    for member, wanted, present in pairs:
        if wanted.is_partition or wanted.oid in waiting:
            continue
        is_aside = member.name in aside or str(wanted) in aside
        change = _altered(target, member, wanted, present, notes, compared, movable, is_aside=is_aside)
        if change.statements:
            # After another change has detached what it attaches.
            is_late = any(name in detached for name, _ in change.expects)
            (late if is_late else changes).extend(_without_references(change, references))
            altered |= {wanted.table, *_partition_names(wanted), *_partition_names(present)}
    changes += [*late, *references]
    notes += compared.by_hand(altered, {wanted.table for _, wanted, _ in pairs})
    changes += [_dropped(on_target[member.target_oid], member) for member in gone.values()]
    named = {change.table for change in changes} | {str(present) for _, present in renamed}
    named |= {str(on_source[oid]) for oid in concerned}
    named |= {member.name for member, wanted, _ in pairs if wanted.is_partition}
    notes += [
        f"{problem}; alter it on the target"
        for problem in problems
        if problem.cure == SAME
        and problem.where not in named
        and not any(note.startswith(f"{problem.where}: ") for note in notes)
    ]
    return Differences(tuple(changes), tuple(dict.fromkeys(notes)), is_first_part=is_blocked)


def _without_references(change: Change, references: list[Change]) -> list[Change]:
    """Move new foreign keys out of a change, to `references`: the keys that they need may be created after it."""
    late = tuple(each for each in change.statements if each.is_reference)
    if late:
        expects = () if change.removes else change.expects
        references.append(replace(change, statements=late, creates=False, expects=expects, removes=0))
    change = replace(change, statements=tuple(each for each in change.statements if not each.is_reference))
    return [change] if change.statements else []


def _same_names(pairs: Iterable[tuple[Member, Definition, Definition]]) -> frozenset[TableName]:
    """Return the tables that have the same name on both databases, and their partitions."""
    return frozenset(
        name
        for _, wanted, present in pairs
        if wanted.table == present.table and not wanted.is_partition
        for name in (wanted.table, *_partition_names(wanted), *_partition_names(present))
    )


def _partition_names(definition: Definition) -> list[TableName]:
    return [(each["schema"], each["name"]) for each in definition.partitions]


def _sequences(source: Connection, target: Connection, problems: Sequence[Problem]) -> Iterable[Change]:
    """Return the changes for sequences that the target does not have, or that are other ones there."""
    wrong = {problem.where for problem in problems if problem.where.startswith(SEQUENCE)}
    rows = source.execute(load("trueup.verbs.sync_ddl", "ddl.sql")["sequences"]).fetchall() if wrong else []
    for schema, name, definition in rows:
        where, quoted = f"{SEQUENCE}{display_name(schema, name)}", _quoted(schema, name)
        if where in wrong:
            verb = "ALTER" if _taken(target, [(schema, name)]) else "CREATE"
            # With another direction, its value may be outside of its range; a round sets it.
            yield Change(
                where, (Statement(f"{verb} SEQUENCE {quoted} {definition}{'' if verb == 'CREATE' else ' RESTART'}"),)
            )


def _names(source: Connection) -> dict[int, TableName]:
    query = (
        "SELECT c.oid::bigint, n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'f', 'm')"
    )
    return {oid: (schema, name) for oid, schema, name in source.execute(query).fetchall()}


def _definitions(connection: Connection, oids: Iterable[int]) -> dict[int, Definition]:
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(load("trueup.verbs.sync_ddl", "ddl.sql")["definitions"], {"oids": list(oids)}).fetchall()
    return {row["oid"]: Definition(**row) for row in rows}


def _exists(target: Connection, wanted: Definition) -> bool:
    return bool(_taken(target, [wanted.table]))


def _taken(target: Connection, tables: Iterable[TableName]) -> set[str]:
    names = [_quoted(*table) for table in tables]
    return {
        name
        for (name,) in target.execute(load("trueup.verbs.sync_ddl", "ddl.sql")["taken"], {"names": names}).fetchall()
    }


def _quoted(*parts: str) -> str:
    return ".".join(quoted_name(part) for part in parts)


def _renames(
    target: Connection,
    pairs: Sequence[tuple[Member, Definition, Definition]],
    gone: Container[TableName],
    notes: list[str],
) -> tuple[list[Change], list[tuple[Definition, Definition]], bool]:
    """Return the changes that rename tables, also if they exchange names; and the tables, wanted and present.

    And whether one gets the name of a table in `gone`, which has to be dropped first.
    """
    renamed = [(wanted, present) for _, wanted, present in pairs if wanted.table != present.table]
    leaving = {_quoted(*present.table) for _, present in renamed}
    taken = _taken(target, [wanted.table for wanted, _ in renamed])
    is_blocked = False
    done: list[tuple[Definition, Definition]] = []
    for wanted, present in renamed:
        name = _quoted(*wanted.table)
        if name in taken and wanted.table in gone:
            is_blocked = True
        elif name in taken and name not in leaving:
            notes.append(f"{present}: it was renamed to {wanted}, but another relation of the target has that name")
        else:
            done.append((wanted, present))
    return [_renamed(group) for group in _chains(done)], done, is_blocked


def _chains(renamed: Sequence[tuple[Definition, Definition]]) -> list[list[tuple[Definition, Definition]]]:
    """Return the renames in groups that need each other, because a name becomes free for another table."""
    groups: list[list[tuple[Definition, Definition]]] = []
    for each in renamed:
        names = {each[0].table, each[1].table}
        joined = [group for group in groups if any(names & {wanted.table, present.table} for wanted, present in group)]
        groups = [group for group in groups if group not in joined] + [
            [*(one for group in joined for one in group), each]
        ]
    return groups


def _renamed(group: Sequence[tuple[Definition, Definition]]) -> Change:
    first, second, last = list[str](), list[str](), list[str]()
    is_chain = {wanted.table for wanted, _ in group} & {present.table for _, present in group}
    for wanted, present in group:
        schema, table = present.table
        if is_chain:
            # A name is free only when its table has another one, and those of its indexes too.
            temporary = _TEMPORARY.format(present.oid)
            if wanted.schema == schema:
                first.append(f"ALTER TABLE {_quoted(schema, table)} RENAME TO {quoted_name(temporary)}")
                table = temporary
            else:
                first.append(f"CREATE SCHEMA {quoted_name(temporary)}")
                first.append(f"ALTER TABLE {_quoted(schema, table)} SET SCHEMA {quoted_name(temporary)}")
                last.append(f"DROP SCHEMA {quoted_name(temporary)}")
                schema = temporary
        if wanted.name != table and wanted.schema != schema:
            # The former name may belong to another table of the new schema.
            moving = _TEMPORARY.format(present.oid)
            second.append(f"ALTER TABLE {_quoted(schema, table)} RENAME TO {quoted_name(moving)}")
            table = moving
        if wanted.schema != schema:
            second.append(f"ALTER TABLE {_quoted(schema, table)} SET SCHEMA {quoted_name(wanted.schema)}")
        if wanted.name != table:
            second.append(f"ALTER TABLE {_quoted(wanted.schema, table)} RENAME TO {quoted_name(wanted.name)}")
    shown = ", ".join(str(present) for _, present in group)
    return Change(shown, tuple(map(Statement, [*first, *second, *last])))


def _altered(
    target: Connection,
    member: Member,
    wanted: Definition,
    present: Definition,
    notes: list[str],
    compared: Compared,
    movable: Mapping[TableName, tuple[int, bool]] = MappingProxyType({}),
    *,
    is_aside: bool,
) -> Change:
    """Return the statements for a table of the sync, which has its new name already; for `movable` see `_movable`."""
    alter = f"ALTER TABLE {_quoted(*wanted.table)}"
    statements: list[Statement] = []
    numbers = dict(member.columns.values())
    on_target = {column["number"]: column for column in present.columns}
    by_name = {column["name"]: column for column in present.columns}
    matched = {
        column["number"]: on_target[numbers[column["number"]]]
        for column in wanted.columns
        if numbers.get(column["number"]) in on_target
    }
    used = {column["number"] for column in matched.values()}
    carried, extra = {second for _, second in member.columns.values()}, list[dict[str, Any]]()
    for column in wanted.columns:
        other = by_name.get(column["name"])
        # A column that the sync carried is that of another column of the source, which was dropped.
        if column["number"] not in matched and other is not None and other["number"] not in used | carried:
            matched[column["number"]] = other
            used.add(other["number"])
    dropped = {column["name"] for column in present.columns if column["number"] in carried - used}
    present, lost = _without_columns(present, carried - used)
    names = {column["number"]: column["name"] for column in wanted.columns}
    renamed = {other["number"] for number, other in matched.items() if names[number] != other["name"]}
    unbound, constraints = _constraints(alter, wanted, present, compared, notes, lost, renamed)
    statements += [*unbound, *_renamed_columns(alter, wanted, matched)]
    statements += [Statement(f"{alter} DROP COLUMN {quoted_name(name)}", drops=True) for name in sorted(dropped)]
    for column in present.columns:
        if column["number"] not in used | carried:
            extra.append(column)
            notes.append(f"{wanted}: column {column['name']} exists only on the target, and the sync did not carry it")
    # Why rows are in the way: a column that replaces one that is dropped, or another one.
    empties = set[bool]()
    for column in wanted.columns:
        if column["number"] in matched:
            continue
        if others := [other["name"] for other in extra if other["type"] == column["type"]]:
            notes.append(
                f"{wanted}: column {column['name']} does not exist on the target: if it is {' or '.join(others)},"
                " rename that one; else drop that one, or add the new one"
            )
        else:
            # What it replaces is dropped: one is not done without the other.
            is_again = column["name"] in dropped
            statements += [replace(each, drops=is_again) for each in _added_column(alter, column)]
            if column["not_null"] and not column["generated"]:
                empties.add(is_again)
    for column in wanted.columns:
        if column["number"] in matched:
            version = target.info.server_version
            changed, needs_rows = _changed_column(
                wanted, alter, column, matched[column["number"]], compared, notes, version
            )
            statements += changed
            if needs_rows:
                empties.add(False)
    statements += constraints
    statements += _indexes(wanted, present, compared, notes, lost, renamed)
    partitions = _partitions(target, wanted, present, notes, {name: late for name, (_, late) in movable.items()})
    statements += partitions
    attached = {each.deletes for each in partitions if each.deletes}
    if empties:
        # No rows are left.
        statements = [deletion(wanted.table, drops=all(empties)), *(replace(each, cost="") for each in statements)]
    known = {(each["schema"], each["name"]) for each in present.sequences}
    for each in wanted.sequences:
        if (each["schema"], each["name"]) not in known:
            statements.append(_owned(wanted, each))
    return Change(
        str(wanted), tuple(statements), wanted.table, _types(wanted), tuple(wanted.classes),
        may_empty=is_aside, source_oid=wanted.oid,
        expects=((wanted.table, present.oid), *((name, oid) for name, (oid, _) in movable.items() if name in attached)),
        # They are no tables of their own any more.
        creates=any(not late for name, (_, late) in movable.items() if name in attached),
    )  # fmt: skip


def _without_columns(present: Definition, numbers: Collection[int]) -> tuple[Definition, set[str]]:
    """Return a table without what is dropped together with these columns, and the names of that."""
    if not numbers:
        return present, set()

    def stay(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [each for each in parts if not set(each["columns"]) & set(numbers)]

    kept = replace(present, constraints=stay(present.constraints), indexes=stay(present.indexes))
    parts, others = ([*each.constraints, *each.indexes] for each in (present, kept))
    return kept, {each["name"] for each in parts} - {each["name"] for each in others}


def _types(wanted: Definition) -> tuple[tuple[str, str], ...]:
    return tuple((column["name"], column["type"]) for column in wanted.columns)


def _owned(wanted: Definition, sequence: Mapping[str, Any]) -> Statement:
    column = f"{_quoted(*wanted.table)}.{quoted_name(sequence['column'])}"
    return Statement(f"ALTER SEQUENCE {_quoted(sequence['schema'], sequence['name'])} OWNED BY {column}")


def _renamed_columns(alter: str, wanted: Definition, matched: Mapping[int, dict[str, Any]]) -> list[Statement]:
    renamed = [
        (matched[column["number"]]["name"], column["name"])
        for column in wanted.columns
        if column["number"] in matched and matched[column["number"]]["name"] != column["name"]
    ]
    # A name is free only when its column has another one.
    is_chain = bool({before for before, _ in renamed} & {after for _, after in renamed})
    first, second = [], []
    for number, (before, after) in enumerate(renamed):
        if is_chain:
            temporary = _TEMPORARY.format(number)
            first.append(f"{alter} RENAME COLUMN {quoted_name(before)} TO {quoted_name(temporary)}")
            before = temporary
        second.append(f"{alter} RENAME COLUMN {quoted_name(before)} TO {quoted_name(after)}")
    return [Statement(text) for text in [*first, *second]]


def _column_text(column: Mapping[str, Any], *, has_expression: bool = False) -> str:
    text = f"{quoted_name(column['name'])} {column['type']}"
    if column["collation"]:
        text += f" COLLATE {column['collation']}"
    if column["generated"]:
        kind = "STORED" if column["generated"] == "s" else "VIRTUAL"
        text += f" GENERATED ALWAYS AS ({column['expression']}) {kind}"
    elif has_expression and column["expression"]:
        text += f" DEFAULT {column['expression']}"
    if column["identity"]:
        always = "ALWAYS" if column["identity"] == "a" else "BY DEFAULT"
        text += f" GENERATED {always} AS IDENTITY ({column['options']})"
    return text + (" NOT NULL" if column["not_null"] else "")


def _added_column(alter: str, column: Mapping[str, Any]) -> list[Statement]:
    """Return the statements for a new column. Its default is not evaluated: a round copies the values."""
    expressions = (column["expression"],) if column["expression"] else ()
    evaluated = expressions if column["generated"] else ()
    # Rows get values of a stored expression, and of the sequence of an identity.
    cost = _REWRITES if column["generated"] == "s" or column["identity"] else ""
    # Without those, its values on the target are known.
    adds = None if evaluated or column["identity"] else (column["name"], column["number"])
    statements = [Statement(f"{alter} ADD COLUMN {_column_text(column)}", expressions=evaluated, cost=cost, adds=adds)]
    if expressions and not evaluated:
        name = quoted_name(column["name"])
        text = f"{alter} ALTER COLUMN {name} SET DEFAULT {column['expression']}"
        statements.append(Statement(text, expressions=expressions))
    return statements


def _changed_column(
    table: Definition,
    alter: str,
    wanted: Mapping[str, Any],
    present: Mapping[str, Any],
    compared: Compared,
    notes: list[str],
    version: int,
) -> tuple[list[Statement], bool]:
    """Return the statements for a column that both tables have, and whether rows of the target are in the way."""
    change = f"{alter} ALTER COLUMN {quoted_name(wanted['name'])}"
    if wanted["generated"] != present["generated"] or (
        wanted["generated"] and compared.differs("column", table.table, wanted["name"], "generated")
    ):
        if present["generated"] == "s" and not wanted["generated"]:
            return [Statement(f"{change} DROP EXPRESSION")], False
        if not wanted["generated"]:
            notes.append(f"{table}: the column {wanted['name']} is generated on the target only: drop it there")
            return [], False
        return _computed(alter, change, wanted, present, version), False
    statements = _identity(change, wanted, present)
    if statements:
        # Its default and NOT NULL follow in the next comparison.
        return statements, False
    empties = False
    expressions = (wanted["expression"],) if wanted["expression"] else ()
    has_other_type = (wanted["type"], wanted["collation"]) != (present["type"], present["collation"])
    has_other_base = (wanted["base"], wanted["collation"]) != (present["base"], present["collation"])
    has_other_default = not wanted["generated"] and wanted["expression"] != present["expression"]
    if has_other_default and wanted["name"] == present["name"] and table.table in compared.tables:
        has_other_default = compared.differs("column", table.table, wanted["name"], "default")
    if has_other_base and wanted["generated"]:
        notes.append(f"{table}: the type of the generated column {wanted['name']} differs")
        return [], False
    if has_other_base and present["expression"]:
        statements.append(Statement(f"{change} DROP DEFAULT"))
        has_other_default = bool(wanted["expression"])
    if has_other_type:
        collation = f" COLLATE {wanted['collation']}" if wanted["collation"] else ""
        using = f" USING NULL::{wanted['type']}" if has_other_base else ""
        statements.append(
            Statement(f"{change} TYPE {wanted['type']}{collation}{using}", expressions=expressions, cost=_REWRITES)
        )
        empties = has_other_base
    if has_other_default:
        text = f"{change} SET DEFAULT {wanted['expression']}" if wanted["expression"] else f"{change} DROP DEFAULT"
        statements.append(Statement(text, expressions=expressions))
    if wanted["not_null"] != present["not_null"]:
        verb, cost = ("SET", _READS) if wanted["not_null"] else ("DROP", "")
        statements.append(Statement(f"{change} {verb} NOT NULL", expressions=expressions, cost=cost))
    return statements, empties


def _computed(
    alter: str, change: str, wanted: Mapping[str, Any], present: Mapping[str, Any], version: int
) -> list[Statement]:
    """Return the statements for a generated column that the target computes in another way, or not at all."""
    expressions = (wanted["expression"],)
    if wanted["generated"] == present["generated"] and version >= _SET_EXPRESSION:
        text = f"{change} SET EXPRESSION AS ({wanted['expression']})"
        return [Statement(text, expressions=expressions, cost=_REWRITES)]
    # Its values are computed again; those of a plain column are not kept.
    added = Statement(f"{alter} ADD COLUMN {_column_text(wanted)}", drops=True, expressions=expressions, cost=_REWRITES)
    return [Statement(f"{alter} DROP COLUMN {quoted_name(wanted['name'])}", drops=True), added]


def _identity(change: str, wanted: Mapping[str, Any], present: Mapping[str, Any]) -> list[Statement]:
    """Return the statements for a column that is an identity on one database only, or another kind of identity."""
    if wanted["identity"] == present["identity"]:
        return []
    if not wanted["identity"]:
        return [Statement(f"{change} DROP IDENTITY", drops=True)]
    kind = "ALWAYS" if wanted["identity"] == "a" else "BY DEFAULT"
    if present["identity"]:
        return [Statement(f"{change} SET GENERATED {kind}")]
    first = [Statement(f"{change} DROP DEFAULT")] if present["expression"] else []
    if not present["not_null"]:
        first.append(Statement(f"{change} SET NOT NULL", cost=_READS))
    return [*first, Statement(f"{change} ADD GENERATED {kind} AS IDENTITY ({wanted['options']})")]


def _constraints(
    alter: str,
    wanted: Definition,
    present: Definition,
    compared: Compared,
    notes: list[str],
    lost: Container[str] = (),
    renamed: Collection[int] = (),
) -> tuple[list[Statement], list[Statement]]:
    """Return the statements that drop constraints, which columns may be bound to, and those that create some.

    `lost`: constraints of the target that are dropped with a column. Those of `renamed` columns of the target are
    compared after that.
    """
    known = {constraint["name"]: constraint for constraint in present.constraints}
    names = {constraint["name"] for constraint in wanted.constraints}
    others = {name: constraint for name, constraint in known.items() if name not in names}
    dropped, statements = list[Statement](), list[Statement]()
    for constraint in wanted.constraints:
        name, kind = constraint["name"], constraint["kind"]
        former = known.get(name)
        same = [
            each for each in others.values() if all(each[fact] == constraint[fact] for fact in ("kind", "definition"))
        ]
        if former is None and same:
            former = others.pop(same[0]["name"])
            text = f"{alter} RENAME CONSTRAINT {quoted_name(former['name'])} TO {quoted_name(name)}"
            statements.append(Statement(text))
        elif former is None and kind == "p":
            # A table has one primary key.
            former = next((others.pop(each["name"]) for each in [*others.values()] if each["kind"] == "p"), None)
        is_replaced = (
            former is not None
            and not set(renamed) & set(former["columns"])
            and _is_other(wanted, constraint, former, compared)
        )
        if former is not None and is_replaced:
            dropped.append(Statement(f"{alter} DROP CONSTRAINT {quoted_name(former['name'])}", drops=True))
        if former is None or is_replaced:
            # What it replaces is dropped: one is not done without the other.
            created = _constraint(alter, wanted, constraint, drops=is_replaced or name in lost)
        elif constraint["validated"] and not former["validated"]:
            created = [Statement(f"{alter} VALIDATE CONSTRAINT {quoted_name(name)}", cost=_READS)]
        else:
            continue
        statements += [replace(each, is_reference=kind == "f") for each in created]
    notes += [f"{wanted}: the constraint {name} {_ONLY}" for name in sorted(others)]
    return dropped, statements


def _is_other(wanted: Definition, constraint: Mapping[str, Any], former: Mapping[str, Any], compared: Compared) -> bool:
    """Return whether a constraint of the target is another one than that of the source."""
    if constraint["kind"] in "pu" and wanted.table not in compared.tables:
        # All versions print keys in the same way.
        return bool(constraint["definition"] != former["definition"])
    if constraint["name"] != former["name"]:
        return bool(constraint["definition"] != former["definition"])
    # The key of a partitioned table is not valid if partitions lack it.
    return compared.differs("constraint", wanted.table, constraint["name"], "definition", "index", "index is valid")


def _constraint(alter: str, wanted: Definition, constraint: Mapping[str, Any], *, drops: bool) -> list[Statement]:
    """Return the statements that create a constraint; `drops`: in the place of another one, which they need dropped."""
    name, definition = quoted_name(constraint["name"]), constraint["definition"]
    # Checked by a statement of its own, after the code that it would run was checked.
    late = constraint["kind"] in "cf" and not (constraint["kind"] == "f" and wanted.kind == "p")
    text = f"{alter} ADD CONSTRAINT {name} {definition}{' NOT VALID' if late else ''}"
    cost = "" if late else _READS if constraint["kind"] == "f" else _BUILDS
    statements = [Statement(text, drops=drops, expressions=tuple(constraint["expressions"]), cost=cost)]
    if late and constraint["validated"]:
        statements.append(Statement(f"{alter} VALIDATE CONSTRAINT {name}", drops=drops, cost=_READS))
    return statements


def _indexes(
    wanted: Definition,
    present: Definition,
    compared: Compared,
    notes: list[str],
    lost: Container[str] = (),
    renamed: Collection[int] = (),
) -> list[Statement]:
    """Return the statements for indexes: see `_constraints`."""
    later = {index["name"] for index in present.indexes if set(renamed) & set(index["columns"])}
    known = {index["name"] for index in present.indexes} | {key["name"] for key in present.constraints}
    names = {index["name"] for index in wanted.indexes} | {key["name"] for key in wanted.constraints}
    only = {index["name"]: index["shape"] for index in present.indexes if index["name"] not in names}
    statements: list[Statement] = []
    for index in wanted.indexes:
        same = [name for name, shape in only.items() if shape == index["shape"]]
        if index["name"] not in known and same:
            text = f"ALTER INDEX {_quoted(wanted.schema, same[0])} RENAME TO {quoted_name(index['name'])}"
            statements.append(Statement(text))
            del only[same[0]]
            continue
        is_known = index["name"] in known
        is_replaced = (
            is_known
            and index["name"] not in later
            and compared.differs("index", wanted.table, index["name"], "definition")
        )
        if is_replaced:
            statements.append(Statement(f"DROP INDEX {_quoted(wanted.schema, index['name'])}", drops=True))
        if is_replaced or not is_known:
            drops, expressions = is_replaced or index["name"] in lost, tuple(index["expressions"])
            statements.append(Statement(index["definition"], drops=drops, expressions=expressions, cost=_BUILDS))
    notes += [f"{wanted}: the index {name} {_ONLY}" for name in sorted(only)]
    return statements


def _partitions(
    target: Connection,
    wanted: Definition,
    present: Definition,
    notes: list[str],
    carried: Mapping[TableName, bool] = MappingProxyType({}),
) -> list[Statement]:
    """Return the statements for partitions; `carried` may become some, detached first or not."""
    if wanted.kind != "p" or wanted.partition_key != present.partition_key:
        return []
    known = {(each["schema"], each["name"]): each for each in present.partitions}
    before: list[Statement] = []
    # They have other bounds, or partitions of their own on one database only. All below them is dropped with them.
    replaced: set[TableName] = set()
    for each in wanted.partitions:
        former = known.get((each["schema"], each["name"]))
        if former is not None and _is_other_partition(each, former):
            replaced.add((each["schema"], each["name"]))
            before += [_detached(former), Statement(f"DROP TABLE {_quoted(each['schema'], each['name'])}", drops=True)]
    while below := {name for name, each in known.items() if _parent(each) in replaced} - replaced:
        replaced |= below
    stays = [each for name, each in known.items() if name not in replaced]
    bounds = {_place(each): each for each in stays}
    defaults = {_parent(each): each for each in stays if each["bound"] == "DEFAULT"}
    names = set(_partition_names(wanted))
    places = {_place(each) for each in wanted.partitions}
    # First, because others may take their place.
    left = [each for each in stays if (each["schema"], each["name"]) not in names and _place(each) not in places]
    before = [*map(_detached, left), *before]
    taken = _taken(target, names - known.keys() - carried.keys())
    statements, after = list[Statement](), list[Statement]()
    for each in wanted.partitions:
        name = (each["schema"], each["name"])
        if name in known and name not in replaced:
            continue
        shown, former = display_name(*name), bounds.get(_place(each))
        if each["kind"] == "f":
            notes.append(f"{wanted}: the partition {shown} is a foreign table, which is not created")
            continue
        if former is not None and name not in carried and _quoted(*name) not in taken:
            statements += _renamed_partition(each, former, notes)
            continue
        if _quoted(*name) in taken:
            notes.append(f"{wanted}: its new partition {shown} has the name of another table of the target: drop that")
            continue
        # What it replaces, or what it was before, is dropped: one is not done without the other.
        drops = name in replaced or carried.get(name, False) or former is not None
        if former is not None:
            # Another table has its place now.
            before.append(_detached(former))
        if default := defaults.get(_parent(each)):
            first, last = _moved_rows(wanted, each, default, len(after))
            before += [replace(new, drops=drops) for new in first]
            after += [replace(new, drops=drops) for new in last]
        new_ones = _attached(each) if name in carried else _new_partition(each)
        statements += [replace(new, drops=drops) for new in new_ones]
    return [*before, *statements, *after]


def _is_other_partition(wanted: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    """Return whether a partition of the target cannot stay for that of the source with its name."""
    if not wanted["bound"] or wanted["kind"] == "f":
        return False
    is_placed = _place(present) in (_place(wanted), (*_parent(wanted), ""))
    return not is_placed or wanted["kind"] != present["kind"]


def _movable(
    pairs: Iterable[tuple[Member, Definition, Definition]], detached: Mapping[TableName, int]
) -> dict[TableName, tuple[int, bool]]:
    """Return the tables of the target that may become partitions of others: oid, and whether to detach them first.

    They are tables of the sync, or partitions of such: their rows are copied again.
    """
    of_sync = {
        present.table: (present.oid, False)
        for _, wanted, present in pairs
        if wanted.is_partition and wanted.table == present.table
    }
    return {**of_sync, **{name: (oid, True) for name, oid in detached.items()}}


def _attached(partition: Mapping[str, Any]) -> list[Statement]:
    """Return the statements that make a table of the target a partition: rows that it has may be older than that."""
    name, parent = (partition["schema"], partition["name"]), _quoted(*_parent(partition))
    attach = f"ALTER TABLE {parent} ATTACH PARTITION {_quoted(*name)} {partition['bound']}"
    return [deletion(name), Statement(attach, expressions=tuple(partition["expressions"]))]


def _parent(partition: Mapping[str, Any]) -> TableName:
    return partition["parent_schema"], partition["parent"]


def _detached(partition: Mapping[str, Any]) -> Statement:
    name = (partition["schema"], partition["name"])
    parent = _quoted(partition["parent_schema"], partition["parent"])
    return Statement(f"ALTER TABLE {parent} DETACH PARTITION {_quoted(*name)}", drops=True, detaches=name)


def _moved_rows(
    wanted: Definition, partition: Mapping[str, Any], default: Mapping[str, Any], number: int
) -> tuple[list[Statement], list[Statement]]:
    """Return the statements that take the rows of a new partition out of the default partition, and insert them again.

    The default partition must not have them when the other one is created. Rounds write these rows all the same.
    """
    names = ", ".join(quoted_name(column["name"]) for column in wanted.columns if not column["generated"])
    place, kept = _quoted(default["schema"], default["name"]), f"pg_temp.{_MOVED.format(number)}"
    condition, expressions = partition["condition"], (partition["condition"],)
    before = [
        Statement(f"LOCK TABLE {_quoted(*wanted.table)} IN ACCESS EXCLUSIVE MODE"),
        Statement(
            f"CREATE TEMPORARY TABLE {_MOVED.format(number)} ON COMMIT DROP AS"
            f" SELECT {names} FROM {place} WHERE {condition}",
            expressions=expressions,
        ),
        Statement(f"DELETE FROM {place} WHERE {condition}", expressions=expressions, moves=True),
    ]
    text = f"INSERT INTO {_quoted(*wanted.table)} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {kept}"
    return before, [Statement(text, moves=True)]


def _place(partition: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the parent of a partition and its values, which no other partition has."""
    return partition["parent_schema"], partition["parent"], partition["bound"]


def _renamed_partition(wanted: Mapping[str, Any], present: Mapping[str, Any], notes: list[str]) -> list[Statement]:
    """Return the statement for a partition that has another name on the source: its rows stay."""
    former = _quoted(present["schema"], present["name"])
    if wanted["schema"] == present["schema"]:
        return [Statement(f"ALTER TABLE {former} RENAME TO {quoted_name(wanted['name'])}")]
    shown = display_name(wanted["schema"], wanted["name"])
    notes.append(f"the partition {former} of the target has the name {shown} on the source: move it there")
    return []


def _new_partition(partition: Mapping[str, Any]) -> list[Statement]:
    name = _quoted(partition["schema"], partition["name"])
    parent = _quoted(partition["parent_schema"], partition["parent"])
    key = f" PARTITION BY {partition['key']}" if partition["key"] else ""
    text = f"CREATE TABLE {name} PARTITION OF {parent} {partition['bound']}{key}"
    return [Statement(text, expressions=tuple(partition["expressions"]))]


def _created(target: Connection, wanted: Definition, members: Mapping[int, Member], notes: list[str]) -> Change:
    """Return the statements for a table that the target does not have; tables of the sync may be its partitions."""
    table = _quoted(*wanted.table)
    roles = {wanted.owner} | {grant["role"] for grant in wanted.grants if grant["role"]}
    known = _roles(target, roles)
    notes += [f"{wanted}: the role {role} does not exist on the target" for role in sorted(roles - known)]
    statements: list[Statement] = []
    columns = ", ".join(_column_text(column, has_expression=True) for column in wanted.columns)
    key = f" PARTITION BY {wanted.partition_key}" if wanted.partition_key else ""
    expressions = [column["expression"] for column in wanted.columns if column["expression"]]
    text = f"CREATE TABLE {table} ({columns}){key}"
    statements.append(Statement(text, expressions=(*expressions, *wanted.partition_expressions)))
    statements += [_owned(wanted, each) for each in wanted.sequences]
    own = [each for each in wanted.partitions if each["oid"] in members]
    empty = replace(wanted, constraints=[], indexes=[], partitions=[{**each, "bound": ""} for each in own])
    statements += _constraints(f"ALTER TABLE {table}", wanted, empty, Compared(), notes)[1]
    statements += _indexes(wanted, empty, Compared(), notes)
    statements += _partitions(target, wanted, empty, notes)
    for each in own:
        # All rows are copied again: those that are here may be older than the partition.
        statements += _attached(each)
    if wanted.owner in known:
        statements.append(Statement(f"ALTER TABLE {table} OWNER TO {quoted_name(wanted.owner)}"))
        for each in (each for each in wanted.partitions if each["kind"] != "f"):
            name = _quoted(each["schema"], each["name"])
            statements.append(Statement(f"ALTER TABLE {name} OWNER TO {quoted_name(wanted.owner)}"))
    statements += _grants(table, wanted.grants, known)
    # No rows exist yet.
    texts = tuple(replace(each, cost="") for each in statements)
    expects = tuple(((each["schema"], each["name"]), members[each["oid"]].target_oid) for each in own)
    return Change(
        str(wanted), texts, wanted.table, _types(wanted), tuple(wanted.classes), expects=expects, creates=True
    )


def _replaced(
    target: Connection,
    former: Member,
    wanted: Definition,
    on_target: Mapping[int, Definition],
    members: Mapping[int, Member],
    notes: list[str],
) -> Change:
    """Return the statements for a table that has the name of one that was dropped on the source: its rows are others.

    What uses the target's table (views, foreign keys) stays, if both are tables of the same kind.
    """
    present = on_target[former.target_oid]
    if (wanted.kind, wanted.partition_key) != (present.kind, present.partition_key):
        dropped, created = _dropped(present, former), _created(target, wanted, members, notes)
        statements = (*dropped.statements, *(replace(each, drops=True) for each in created.statements))
        expects = (*dropped.expects, *created.expects)
        return replace(created, statements=statements, expects=expects, removes=former.source_oid)
    numbers = {column["name"]: column["number"] for column in wanted.columns}
    # Others were carried for columns that do not exist any more.
    pairs = {
        column["name"]: (numbers.get(column["name"], -column["number"]), column["number"]) for column in present.columns
    }
    same = replace(former, source_oid=wanted.oid, columns=pairs)
    change = _altered(target, same, wanted, present, notes, Compared(), is_aside=True)
    statements = (deletion(wanted.table), *(each for each in change.statements if not each.deletes))
    return replace(change, statements=tuple(replace(each, drops=True) for each in statements), creates=True)


def _kept(wanted: Definition, target_oid: int) -> Change:
    """Return the change for a partition that became a table of its own: its rows are copied again."""
    texts = (deletion(wanted.table, drops=True),)
    expects = ((wanted.table, target_oid),)
    return Change(
        str(wanted), texts, wanted.table, _types(wanted), tuple(wanted.classes), creates=True, expects=expects
    )


def _dropped(present: Definition, member: Member) -> Change:
    statement = Statement(f"DROP TABLE {_quoted(*present.table)}", drops=True)
    expects = ((present.table, present.oid),)
    return Change(str(present), (statement,), expects=expects, removes=member.source_oid)


def _schemas(
    source: Connection,
    target: Connection,
    wanted: Iterable[Definition],
    pairs: Sequence[tuple[Member, Definition, Definition]],
) -> tuple[list[Change], bool]:
    """Return the changes for schemas that the target does not have, and whether one is renamed.

    A schema was renamed if all tables of the sync in it have the same other schema now.
    """
    query = load("trueup.verbs.sync_ddl", "ddl.sql")["schemas"]
    with source.cursor(row_factory=dict_row) as on_source, target.cursor(row_factory=dict_row) as on_target:
        of_source = {row["name"]: row for row in on_source.execute(query).fetchall()}
        present = {row["name"] for row in on_target.execute(query).fetchall()}
    missing = dict.fromkeys(each.schema for each in wanted if each.schema not in present)
    now: dict[str, set[str]] = {}
    for _, there, here in pairs:
        now.setdefault(here.schema, set()).add(there.schema)
    renamed = {names.copy().pop(): schema for schema, names in now.items() if len(names) == 1}
    renames = [
        Change(
            f"schema {name}", (Statement(f"ALTER SCHEMA {quoted_name(renamed[name])} RENAME TO {quoted_name(name)}"),)
        )
        for name in missing
        if name in renamed
    ]
    if renames:
        return renames, True
    grants = [grant for name in missing for grant in of_source[name]["grants"]]
    roles = {of_source[name]["owner"] for name in missing} | {grant["role"] for grant in grants if grant["role"]}
    known = _roles(target, roles)
    changes: list[Change] = []
    for name in missing:
        owner = of_source[name]["owner"]
        text = f"CREATE SCHEMA {quoted_name(name)}" + (f" AUTHORIZATION {quoted_name(owner)}" if owner in known else "")
        statements = [Statement(text), *_grants(f"SCHEMA {quoted_name(name)}", of_source[name]["grants"], known)]
        changes.append(Change(f"schema {name}", tuple(statements)))
    return changes, False


def _roles(target: Connection, names: Iterable[str]) -> set[str]:
    """Return which of these roles the target has."""
    rows = target.execute(load("trueup.verbs.sync_ddl", "ddl.sql")["roles"], {"names": sorted(names)}).fetchall()
    return {role for (role,) in rows}


def _grants(place: str, grants: Iterable[Mapping[str, Any]], known: Container[str]) -> list[Statement]:
    statements: list[Statement] = []
    for grant in grants:
        if grant["role"] is None or grant["role"] in known:
            role = quoted_name(grant["role"]) if grant["role"] else "PUBLIC"
            option = " WITH GRANT OPTION" if grant["option"] else ""
            statements.append(Statement(f"GRANT {grant['privilege']} ON {place} TO {role}{option}"))
    return statements
