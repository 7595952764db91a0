"""The statements that make the tables of the target like those of the source, from a comparison of both catalogs.

Tables and columns are recognized by their numbers (`members`), so that a rename is not a drop and a creation. Nothing
is dropped on the target that the sync did not carry there, and no statement evaluates an expression of the source over
rows of the target: a column is added without its default, and a table whose rows would have to be converted is
emptied; a round copies its rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg.rows import dict_row

from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name, quoted_name
from trueup.db.statements import load
from trueup.verbs.sync.aside import SAME, SEQUENCE
from trueup.verbs.sync.members import Member
from trueup.verbs.sync.model import Problem
from trueup.verbs.sync_ddl.change import Change, Differences, Statement
from trueup.verbs.sync_ddl.compared import Compared, compare
from trueup.verbs.sync_ddl.labels import label_changes

_READS, _REWRITES, _BUILDS = "reads the whole table", "may rewrite the whole table", "reads the table to build an index"
_ONLY = "exists only on the target: drop it there, or create it on the source"
_TEMPORARY = "trueup_renamed_{}"


@dataclass(frozen=True)
class Definition:
    """One table as a database has it."""

    oid: int
    schema: str
    name: str
    kind: str
    owner: str
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
    new = [oid for problem in problems if (oid := oids.get(problem.where)) and oid not in members]
    on_source = _definitions(source, [*members, *new])
    on_target = _definitions(target, [member.target_oid for member in members.values()])
    aside = {problem.where for problem in problems}
    pairs = [
        (member, on_source[oid], on_target[member.target_oid])
        for oid, member in members.items()
        if oid in on_source and member.target_oid in on_target
    ]
    notes: list[str] = []
    renames, renamed = _renames(target, pairs, notes)
    freed = {present.table for _, present in renamed} - {wanted.table for wanted, _ in renamed}
    changes, concerned = label_changes(source, target, on_source, notes)
    changes += [*renames, *_sequences(source, target, problems)]
    references: list[Change] = []
    for oid in dict.fromkeys(new):
        if oid in on_source and (on_source[oid].table in freed or not _exists(target, on_source[oid])):
            changes += _without_references(_created(target, on_source[oid], notes), references)
    compared = compare(source, target, _same_names(pairs))
    altered: set[TableName] = set()
    for member, wanted, present in pairs:
        is_aside = member.name in aside or str(wanted) in aside
        change = _altered(member, wanted, present, notes, compared, is_aside=is_aside)
        if change.statements:
            changes += _without_references(change, references)
            altered |= {wanted.table, *_partition_names(wanted), *_partition_names(present)}
    changes += references
    notes += compared.by_hand(altered, {wanted.table for _, wanted, _ in pairs})
    changes += [
        _dropped(on_target[member.target_oid])
        for oid, member in members.items()
        if oid not in on_source and oid not in oids.values() and member.target_oid in on_target
    ]
    named = {change.table for change in changes} | {str(present) for _, present in renamed}
    named |= {str(on_source[oid]) for oid in concerned}
    notes += [
        f"{problem}; alter it on the target"
        for problem in problems
        if problem.cure == SAME
        and problem.where not in named
        and not any(note.startswith(f"{problem.where}: ") for note in notes)
    ]
    return Differences(tuple(changes), tuple(dict.fromkeys(notes)))


def _without_references(change: Change, references: list[Change]) -> list[Change]:
    """Move new foreign keys out of a change, to `references`: the keys that they need may be created after it."""
    late = tuple(each for each in change.statements if each.is_reference)
    if late:
        references.append(replace(change, statements=late, empties=False, creates=False))
    change = replace(change, statements=tuple(each for each in change.statements if not each.is_reference))
    return [change] if change.statements else []


def _same_names(pairs: Iterable[tuple[Member, Definition, Definition]]) -> frozenset[TableName]:
    """Return the tables that have the same name on both databases, and their partitions."""
    return frozenset(
        name
        for _, wanted, present in pairs
        if wanted.table == present.table
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
            yield Change(where, (Statement(f"{verb} SEQUENCE {quoted} {definition}"),))


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
    target: Connection, pairs: Sequence[tuple[Member, Definition, Definition]], notes: list[str]
) -> tuple[list[Change], list[tuple[Definition, Definition]]]:
    """Return one change that renames tables, also if they exchange their names; and the tables, wanted and present."""
    renamed = [(wanted, present) for _, wanted, present in pairs if wanted.table != present.table]
    leaving = {_quoted(*present.table) for _, present in renamed}
    taken = _taken(target, [wanted.table for wanted, _ in renamed])
    first, second = [], []
    done: list[tuple[Definition, Definition]] = []
    for wanted, present in renamed:
        name = _quoted(*wanted.table)
        if name in taken and name not in leaving:
            notes.append(f"{present}: it was renamed to {wanted}, but another relation of the target has that name")
            continue
        done.append((wanted, present))
        schema, table = present.table
        if taken & leaving:
            # A name is free only when its table has another one.
            temporary = _TEMPORARY.format(present.oid)
            first.append(f"ALTER TABLE {_quoted(schema, table)} RENAME TO {quoted_name(temporary)}")
            table = temporary
        if wanted.schema != schema:
            second.append(f"ALTER TABLE {_quoted(schema, table)} SET SCHEMA {quoted_name(wanted.schema)}")
        if wanted.name != table:
            second.append(f"ALTER TABLE {_quoted(wanted.schema, table)} RENAME TO {quoted_name(wanted.name)}")
    if not done:
        return [], []
    return [Change(", ".join(str(present) for _, present in done), tuple(map(Statement, [*first, *second])))], done


def _altered(
    member: Member, wanted: Definition, present: Definition, notes: list[str], compared: Compared, *, is_aside: bool
) -> Change:
    """Return the statements for a table of the sync, which has its new name already."""
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
    for column in wanted.columns:
        other = by_name.get(column["name"])
        if column["number"] not in matched and other is not None and other["number"] not in used:
            matched[column["number"]] = other
            used.add(other["number"])
    statements += _renamed_columns(alter, wanted, matched)
    carried, extra = {second for _, second in member.columns.values()}, list[dict[str, Any]]()
    for column in present.columns:
        if column["number"] not in used and column["number"] in carried:
            statements.append(Statement(f"{alter} DROP COLUMN {quoted_name(column['name'])}", drops=True))
        elif column["number"] not in used:
            extra.append(column)
            notes.append(f"{wanted}: column {column['name']} exists only on the target, and the sync did not carry it")
    empties = False
    for column in wanted.columns:
        if column["number"] in matched:
            continue
        if others := [other["name"] for other in extra if other["type"] == column["type"]]:
            notes.append(
                f"{wanted}: column {column['name']} does not exist on the target: if it is {' or '.join(others)},"
                " rename that one; else drop that one, or add the new one"
            )
        else:
            statements += _added_column(alter, column)
            empties |= bool(column["not_null"] and not column["generated"])
    for column in wanted.columns:
        if column["number"] in matched:
            changed, needs_rows = _changed_column(wanted, alter, column, matched[column["number"]], compared, notes)
            statements += changed
            empties |= needs_rows
    statements += _constraints(alter, wanted, present, compared, notes)
    statements += _indexes(wanted, present, compared, notes)
    statements += _partitions(wanted, present, notes)
    if empties:
        # No rows are left.
        statements = [replace(each, cost="") for each in statements]
    known = {(each["schema"], each["name"]) for each in present.sequences}
    for each in wanted.sequences:
        if (each["schema"], each["name"]) not in known:
            statements.append(_owned(wanted, each))
    return Change(
        str(wanted), tuple(statements), wanted.table, _types(wanted), tuple(wanted.classes), empties,
        may_empty=is_aside, source_oid=wanted.oid,
    )  # fmt: skip


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
    statements = [Statement(f"{alter} ADD COLUMN {_column_text(column)}", expressions=evaluated, cost=cost)]
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
) -> tuple[list[Statement], bool]:
    """Return the statements for a column that both tables have, and whether rows of the target are in the way."""
    change = f"{alter} ALTER COLUMN {quoted_name(wanted['name'])}"
    if wanted["generated"] != present["generated"] or (
        wanted["generated"] and compared.differs("column", table.table, wanted["name"], "generated")
    ):
        if present["generated"] == "s" and not wanted["generated"]:
            return [Statement(f"{change} DROP EXPRESSION")], False
        notes.append(
            f"{table}: the expression of the generated column {wanted['name']} differs: drop the column on the target"
            " and add it again"
        )
        return [], False
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
    alter: str, wanted: Definition, present: Definition, compared: Compared, notes: list[str]
) -> list[Statement]:
    known = {constraint["name"]: constraint for constraint in present.constraints}
    statements: list[Statement] = []
    for constraint in wanted.constraints:
        statements += [
            replace(each, is_reference=constraint["kind"] == "f")
            for each in _constraint(alter, wanted, constraint, known.get(constraint["name"]), compared)
        ]
    names = {constraint["name"] for constraint in wanted.constraints}
    notes += [f"{wanted}: the constraint {name} {_ONLY}" for name in sorted(known.keys() - names)]
    return statements


def _constraint(
    alter: str,
    wanted: Definition,
    constraint: Mapping[str, Any],
    former: Mapping[str, Any] | None,
    compared: Compared,
) -> list[Statement]:
    """Return the statements for a constraint; `former` is the one of the target with its name."""
    name, definition = quoted_name(constraint["name"]), constraint["definition"]
    statements: list[Statement] = []
    is_replaced = False
    if former is not None:
        # The key of a partitioned table is not valid if partitions lack it.
        facts = ("definition", "index", "index is valid")
        is_replaced = compared.differs("constraint", wanted.table, constraint["name"], *facts)
        if not is_replaced and constraint["validated"] and not former["validated"]:
            return [Statement(f"{alter} VALIDATE CONSTRAINT {name}", cost=_READS)]
        if not is_replaced:
            return []
        statements.append(Statement(f"{alter} DROP CONSTRAINT {name}", drops=True))
    # Checked by a statement of its own, after the code that it would run was checked.
    late = constraint["kind"] in "cf" and not (constraint["kind"] == "f" and wanted.kind == "p")
    text = f"{alter} ADD CONSTRAINT {name} {definition}{' NOT VALID' if late else ''}"
    cost = "" if late else _READS if constraint["kind"] == "f" else _BUILDS
    # What it replaces is dropped: one is not done without the other.
    statements.append(Statement(text, drops=is_replaced, expressions=tuple(constraint["expressions"]), cost=cost))
    if late and constraint["validated"]:
        statements.append(Statement(f"{alter} VALIDATE CONSTRAINT {name}", drops=is_replaced, cost=_READS))
    return statements


def _indexes(wanted: Definition, present: Definition, compared: Compared, notes: list[str]) -> list[Statement]:
    known = {index["name"] for index in present.indexes} | {key["name"] for key in present.constraints}
    names = {index["name"] for index in wanted.indexes} | {key["name"] for key in wanted.constraints}
    only = sorted({index["name"] for index in present.indexes} - names)
    notes += [f"{wanted}: the index {name} {_ONLY}" for name in only]
    statements: list[Statement] = []
    for index in wanted.indexes:
        is_replaced = compared.differs("index", wanted.table, index["name"], "definition")
        if is_replaced:
            statements.append(Statement(f"DROP INDEX {_quoted(wanted.schema, index['name'])}", drops=True))
        if is_replaced or index["name"] not in known:
            expressions = tuple(index["expressions"])
            statements.append(Statement(index["definition"], drops=is_replaced, expressions=expressions, cost=_BUILDS))
    return statements


def _partitions(wanted: Definition, present: Definition, notes: list[str]) -> list[Statement]:
    if wanted.kind != "p" or wanted.partition_key != present.partition_key:
        return []
    known = {(each["schema"], each["name"]) for each in present.partitions}
    bounds = {_place(each): each for each in present.partitions}
    statements = []
    for each in wanted.partitions:
        if (each["schema"], each["name"]) in known:
            continue
        if former := bounds.get(_place(each)):
            statements += _renamed_partition(each, former, notes)
            continue
        if each["kind"] == "f":
            shown = display_name(each["schema"], each["name"])
            notes.append(f"{wanted}: the partition {shown} is a foreign table, which is not created")
            continue
        statements += _new_partition(each)
    names = {(each["schema"], each["name"]) for each in wanted.partitions}
    places = {_place(each) for each in wanted.partitions}
    for each in present.partitions:
        if (each["schema"], each["name"]) not in names and _place(each) not in places:
            parent, shown = _quoted(each["parent_schema"], each["parent"]), _quoted(each["schema"], each["name"])
            statements.append(Statement(f"ALTER TABLE {parent} DETACH PARTITION {shown}", drops=True))
    return statements


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


def _created(target: Connection, wanted: Definition, notes: list[str]) -> Change:
    """Return the statements for a table that the target does not have."""
    table = _quoted(*wanted.table)
    roles = {wanted.owner} | {grant["role"] for grant in wanted.grants if grant["role"]}
    rows = target.execute(load("trueup.verbs.sync_ddl", "ddl.sql")["roles"], {"names": sorted(roles)}).fetchall()
    known = {role for (role,) in rows}
    notes += [f"{wanted}: the role {role} does not exist on the target" for role in sorted(roles - known)]
    statements: list[Statement] = []
    columns = ", ".join(_column_text(column, has_expression=True) for column in wanted.columns)
    key = f" PARTITION BY {wanted.partition_key}" if wanted.partition_key else ""
    expressions = [column["expression"] for column in wanted.columns if column["expression"]]
    text = f"CREATE TABLE {table} ({columns}){key}"
    statements.append(Statement(text, expressions=(*expressions, *wanted.partition_expressions)))
    statements += [_owned(wanted, each) for each in wanted.sequences]
    empty = replace(wanted, constraints=[], indexes=[], partitions=[])
    statements += _constraints(f"ALTER TABLE {table}", wanted, empty, Compared(), notes)
    statements += _indexes(wanted, empty, Compared(), notes)
    statements += _partitions(wanted, empty, notes)
    if wanted.owner in known:
        statements.append(Statement(f"ALTER TABLE {table} OWNER TO {quoted_name(wanted.owner)}"))
        for each in (each for each in wanted.partitions if each["kind"] != "f"):
            name = _quoted(each["schema"], each["name"])
            statements.append(Statement(f"ALTER TABLE {name} OWNER TO {quoted_name(wanted.owner)}"))
    for grant in wanted.grants:
        if grant["role"] is None or grant["role"] in known:
            role = quoted_name(grant["role"]) if grant["role"] else "PUBLIC"
            option = " WITH GRANT OPTION" if grant["option"] else ""
            statements.append(Statement(f"GRANT {grant['privilege']} ON {table} TO {role}{option}"))
    # No rows exist yet.
    texts = tuple(replace(each, cost="") for each in statements)
    return Change(str(wanted), texts, wanted.table, _types(wanted), tuple(wanted.classes), creates=True)


def _dropped(present: Definition) -> Change:
    text = f"DROP TABLE {_quoted(*present.table)}"
    return Change(str(present), (Statement(text, drops=True),), removes=True)
