"""Can a table be compared: is it there, may it be read, what is its key, are its statistics any good?

On each node first; where nothing is wrong there, with the very checks that a diff begins with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from psycopg import errors, sql
from psycopg.rows import dict_row

from trueup.db import catalog
from trueup.db.catalog import Table, nearest_table
from trueup.db.names import display_name, parse_column_names, table_spellings
from trueup.db.node import error_from_server, is_lost
from trueup.db.snapshot import Control
from trueup.db.statements import load
from trueup.errors import CheckFailed, QueryError
from trueup.rows.comparable import check as check_as_diff
from trueup.rows.request import TableRequest
from trueup.verbs.doctor.guarded import Overdue, all_at_once, broken
from trueup.verbs.doctor.model import Finding, fail, ok, warn, worst
from trueup.verbs.doctor.nodes import ANSWER_SECONDS, Met
from trueup.verbs.doctor.request import DoctorRequest

_DAY = 86_400.0
# So many rows may change before the planner's idea of a table is too old, as autovacuum sees it: and then twice that.
_FEW, _SHARE = 1_000, 0.2


def check(request: DoctorRequest, met: Met, table: str) -> Iterator[Finding]:
    """The lines of one table."""
    table_spellings(table)
    for node in request.nodes:
        if node.name in met.trouble:
            yield fail("table", table, f"not checked on {node.name}, because it does not answer", "see its line above")
    living = met.living
    if not living:
        return
    found: list[Finding] = []
    answers = all_at_once(living, lambda it: list(_on_node(request, it, table)), within=lambda _: ANSWER_SECONDS)
    for control, answer in zip(living, answers, strict=True):
        if isinstance(answer, Exception):
            if isinstance(answer, Overdue) or is_lost(answer):
                met.trouble[control.node.name] = answer
            found.append(broken("table", f"{control.node.name} {table}", error_from_server(answer, control.node)))
        else:
            found += answer
    yield from found
    if worst(found) == "FAIL":
        yield fail("key", table, "not checked, because of what is wrong above", "mend that first")
        return
    asked = all_at_once([living], lambda them: list(_together(request, them, table)), within=lambda _: ANSWER_SECONDS)
    for result in asked:
        if isinstance(result, Exception):
            yield broken("table", table, error_from_server(result, living[0].node))
        else:
            yield from result


def _on_node(request: DoctorRequest, control: Control, name: str) -> Iterator[Finding]:
    """What one node says of the table."""
    table = _find(control, name)
    shown = display_name(table.schema, table.name) if table else name
    where = f"{control.node.name} {shown}"
    if table is None:
        cure = 'check the name and the node; quote what has capitals: public."Orders"'
        hint = nearest_table(control.connection, display_name(*table_spellings(name)[0]))
        yield fail("table", where, f"there is no table {shown}{hint}", cure)
        return
    if table.kind not in catalog.READABLE_KINDS:
        kind = catalog.OTHER_KINDS.get(table.kind, table.kind)
        yield fail("table", where, f"this is of the kind {kind}", "name a table, or a materialized view")
        return
    rights = list(_rights(request, control, table, where))
    yield from rights
    if worst(rights) == "FAIL":
        yield fail("statistics", where, "not checked, because the table cannot be read", "grant the right first")
        return
    yield _statistics(request, control, table, where)


def _find(control: Control, name: str) -> Table | None:
    tables = (catalog.read_table(control.connection, *pair) for pair in table_spellings(name))
    return next((table for table in tables if table is not None), None)


def _rights(request: DoctorRequest, control: Control, table: Table, where: str) -> Iterator[Finding]:
    """May it be read, whole, and locked as a reader does?"""
    shown = display_name(table.schema, table.name)
    excluded = parse_column_names(request.settings.exclude_columns)
    closed = [column.name for column in table.columns if not column.readable and column.name not in excluded]
    if not table.usage:
        cure = f"GRANT USAGE ON SCHEMA {shown.rpartition('.')[0]} to the role"
        yield fail("privileges", where, "the role may not use the schema", cure)
        return
    if closed:
        columns = "all columns" if len(closed) == len(table.columns) else f"column {', '.join(closed)}"
        yield fail("privileges", where, f"the role may not SELECT {columns}", f"GRANT SELECT ON {shown} to the role")
        return
    if table.secured:
        cure = "use the owner, or a role with BYPASSRLS"
        yield fail("privileges", where, "row security hides rows of it from the role", cure)
        return
    yield _lock(control, table, where)


def _lock(control: Control, table: Table, where: str) -> Finding:
    """Take the lock that a run takes, for a moment."""
    connection = control.connection
    lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE NOWAIT").format(sql.Identifier(table.schema, table.name))
    kind = catalog.READABLE_KINDS[table.kind]
    connection.execute("BEGIN READ ONLY")
    try:
        connection.execute(lock)
    except errors.InsufficientPrivilege:
        message = f"{kind}, may be read but not locked: a TRUNCATE right after the snapshot would show it empty"
        cure = f"GRANT SELECT ON {display_name(table.schema, table.name)} as a whole, not on columns only"
        return warn("privileges", where, message, cure)
    except errors.WrongObjectType:
        return ok("privileges", where, f"{kind}, may be read")
    except errors.LockNotAvailable:
        cure = "see pg_locks for who holds it: a run waits 15 seconds for it, and then gives up"
        return warn("privileges", where, f"{kind}, locked by another session right now", cure)
    finally:
        connection.execute("ROLLBACK")
    return ok("privileges", where, f"{kind}, may be read and locked, no row is hidden")


def _statistics(request: DoctorRequest, control: Control, table: Table, where: str) -> Finding:
    """How old is the planner's idea of the table? Blocks are cut by it, and Spark is chosen by it."""
    shown = display_name(table.schema, table.name)
    with control.connection.cursor(row_factory=dict_row) as cursor:
        row: Any = cursor.execute(load("trueup.verbs.doctor", "facts.sql")["statistics"], {"oid": table.oid}).fetchone()
    try:
        source = sql.SQL("{}").format(sql.Identifier(table.schema, table.name))
        rows = catalog.estimate_rows(control.connection, source)
    except Exception as error:
        refused = error_from_server(error, control.node)
        if not isinstance(refused, QueryError) or refused.sqlstate != "55P03":
            raise
        cure = "ask again when it is done"
        return warn("statistics", where, "not checked, because another session holds a lock on the table", cure)
    about = f"about {rows:,} rows"
    text, stale = _age(row, rows, request.stats_days)
    if stale:
        return warn("statistics", where, f"{about}, {text}: blocks may be of uneven size", f"ANALYZE {shown}")
    return ok("statistics", where, f"{about}, {text}")


def _age(row: Mapping[str, Any], rows: int, days: int) -> tuple[str, bool]:
    """What the statistics are like, and whether they should be made anew."""
    modified = int(row["modified"])
    if row["age"] is None:
        # A standby, or a server whose counters were reset, has statistics and does not know their age.
        known = row["seen_rows"] is not None and row["seen_rows"] > 0
        return ("analysed, but the server does not know when" if known else "never analysed"), not known
    age = max(0.0, float(row["age"]))
    when = f"analysed {age / _DAY:.0f} days ago" if age >= 2 * _DAY else f"analysed {age / 3600:.1f} hours ago"
    text = f"{when}, rows changed since: {modified:,}"
    many = modified > 2 * (_FEW + _SHARE * rows)
    return text, many or (age > days * _DAY and modified > 0)


def _together(request: DoctorRequest, controls: list[Control], name: str) -> Iterator[Finding]:
    """Would a diff start? Its own checks say."""
    settings = request.settings
    asked = TableRequest(
        table=name,
        nodes=tuple(control.node for control in controls),
        settings=settings,
        filter=settings.table_filter,
        columns=parse_column_names(settings.columns),
        exclude_columns=parse_column_names(settings.exclude_columns),
        key=parse_column_names(settings.key),
    )
    try:
        checked = check_as_diff(controls, asked)
    except CheckFailed as error:
        for reason in error.reasons:
            yield fail("table", name, reason, error.cure)
        return
    spec = checked.spec
    shown = display_name(spec.schema, spec.table)
    nodes = ", ".join(control.node.name for control in controls)
    if not spec.is_keyless:
        yield ok("key", shown, f"({', '.join(spec.key_names)}) on {nodes}; {len(spec.columns)} columns are compared")
    for remark in checked.remarks:
        if "one and the same database" not in remark:
            yield warn("key" if "key" in remark else "table", shown, remark, _cure_for(remark))


def _cure_for(remark: str) -> str:
    if "has no key" in remark:
        return "give the table a primary key, or name columns with --key"
    if "no snapshot" in remark:
        return "set snapshot = true, or do not compare while others write"
    return "nothing has to be done; see docs/limits.md"
