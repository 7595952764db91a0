"""Checks of a table: existence, privileges, statistics, key.

First on each node; if there are no failures, with the checks that a diff runs first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from psycopg import errors, sql
from psycopg.rows import dict_row

from trueup.config.wording import counted
from trueup.db import catalog
from trueup.db.catalog import Table, nearest_table
from trueup.db.names import display_name, parse_column_names, table_spellings
from trueup.db.node import error_from_server, is_lost
from trueup.db.snapshot import Control
from trueup.db.statements import load
from trueup.errors import CheckFailed, QueryError
from trueup.rows.comparable import check as check_as_diff
from trueup.rows.request import TableRequest
from trueup.verbs.doctor.guarded import Overdue, broken, in_parallel
from trueup.verbs.doctor.model import DoctorRequest, Finding, fail, ok, warn, worst
from trueup.verbs.doctor.nodes import ANSWER_SECONDS, Reached

_DAY = 86_400.0
# Changed rows (a number plus a share) after which autovacuum analyzes a table; doctor warns at twice that.
_CHANGED_ROWS, _CHANGED_SHARE = 1_000, 0.2


def check(request: DoctorRequest, reached: Reached, table: str) -> Iterator[Finding]:
    """Yield the findings of one table."""
    table_spellings(table)
    for node in request.nodes:
        if node.name in reached.errors:
            yield fail(
                "table",
                table,
                f"not checked on {node.name}, because it does not answer",
                "fix the connection above first",
            )
    controls = reached.answering
    if not controls:
        return
    findings: list[Finding] = []
    answers = in_parallel(
        controls, lambda control: list(_on_node(request, control, table)), within=lambda _: ANSWER_SECONDS
    )
    for control, answer in zip(controls, answers, strict=True):
        if isinstance(answer, Exception):
            if isinstance(answer, Overdue) or is_lost(answer):
                reached.errors[control.node.name] = answer
            findings.append(broken("table", f"{control.node.name} {table}", error_from_server(answer, control.node)))
        else:
            findings += answer
    yield from findings
    if worst(findings) == "FAIL":
        yield fail("key", table, "not checked, because of the failures above", "fix these failures first")
        return
    results = in_parallel([controls], lambda all_: list(_across(request, all_, table)), within=lambda _: ANSWER_SECONDS)
    for result in results:
        if isinstance(result, Exception):
            yield broken("table", table, error_from_server(result, controls[0].node))
        else:
            yield from result


def _on_node(request: DoctorRequest, control: Control, name: str) -> Iterator[Finding]:
    """Yield the findings of the table on one node."""
    table = _find(control, name)
    shown = display_name(table.schema, table.name) if table else name
    where = f"{control.node.name} {shown}"
    if table is None:
        cure = 'check the name and the node; quote names with capitals: public."Orders"'
        hint = nearest_table(control.connection, display_name(*table_spellings(name)[0]))
        yield fail("table", where, f"table {shown} does not exist{hint}", cure)
        return
    if table.kind not in catalog.READABLE_KINDS:
        kind = catalog.OTHER_KINDS.get(table.kind, table.kind)
        yield fail("table", where, f"{shown} is a {kind}", "name a table or a materialized view")
        return
    privileges = list(_privileges(request, control, table, where))
    yield from privileges
    if worst(privileges) == "FAIL":
        yield fail("statistics", where, "not checked, because the table cannot be read", "grant the privilege first")
        return
    yield _statistics(request, control, table, where)


def _find(control: Control, name: str) -> Table | None:
    tables = (catalog.read_table(control.connection, *pair) for pair in table_spellings(name))
    return next((table for table in tables if table is not None), None)


def _privileges(request: DoctorRequest, control: Control, table: Table, where: str) -> Iterator[Finding]:
    """Check that the role can read all rows and columns, and lock the table."""
    shown = display_name(table.schema, table.name)
    excluded = parse_column_names(request.settings.exclude_columns)
    unreadable = [column.name for column in table.columns if not column.readable and column.name not in excluded]
    if not table.usage:
        cure = f"GRANT USAGE ON SCHEMA {shown.rpartition('.')[0]} to the role"
        yield fail("privileges", where, "the role has no USAGE privilege on the schema", cure)
        return
    if unreadable:
        columns = "all columns" if len(unreadable) == len(table.columns) else f"column {', '.join(unreadable)}"
        yield fail("privileges", where, f"the role cannot SELECT {columns}", f"GRANT SELECT ON {shown} to the role")
        return
    if table.secured:
        cure = "use the owner, or a role with BYPASSRLS"
        yield fail("privileges", where, "row security hides rows from the role", cure)
        return
    yield _lock(control, table, where)


def _lock(control: Control, table: Table, where: str) -> Finding:
    """Take the lock that a run takes, and release it."""
    connection = control.connection
    lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE NOWAIT").format(sql.Identifier(table.schema, table.name))
    kind = catalog.READABLE_KINDS[table.kind]
    connection.execute("BEGIN READ ONLY")
    try:
        connection.execute(lock)
    except errors.InsufficientPrivilege:
        message = f"{kind}, readable but not lockable: after a TRUNCATE during the run it would appear empty"
        cure = f"GRANT SELECT ON {display_name(table.schema, table.name)} as a whole, not on columns only"
        return warn("privileges", where, message, cure)
    except errors.WrongObjectType:
        return ok("privileges", where, f"{kind}, readable")
    except errors.LockNotAvailable:
        cure = "find the holder in pg_locks: a run waits 15 seconds for the lock, then fails"
        return warn("privileges", where, f"{kind}, locked by another session", cure)
    finally:
        connection.execute("ROLLBACK")
    return ok("privileges", where, f"{kind}, readable and lockable, no hidden rows")


def _statistics(request: DoctorRequest, control: Control, table: Table, where: str) -> Finding:
    """Check the age of the statistics, which determine the size of blocks and the choice of Spark."""
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
        cure = "run doctor again when the lock is released"
        return warn("statistics", where, "not checked, because another session holds a lock on the table", cure)
    about = f"about {counted(rows, 'row')}"
    text, stale = _age(row, rows, request.stats_days)
    if stale:
        return warn("statistics", where, f"{about}, {text}: blocks may have uneven sizes", f"ANALYZE {shown}")
    return ok("statistics", where, f"{about}, {text}")


def _age(row: Mapping[str, Any], rows: int, days: int) -> tuple[str, bool]:
    """Return a description of the statistics, and whether they are stale."""
    modified = int(row["modified"])
    if row["age"] is None:
        # A standby, or a server whose counters were reset, has statistics of unknown age.
        known = row["seen_rows"] is not None and row["seen_rows"] > 0
        return ("analyzed at an unknown time" if known else "never analyzed"), not known
    age = max(0.0, float(row["age"]))
    when = f"analyzed {age / _DAY:.0f} days ago" if age >= 2 * _DAY else f"analyzed {age / 3600:.1f} hours ago"
    text = f"{when}, {counted(modified, 'row')} changed since"
    many = modified > 2 * (_CHANGED_ROWS + _CHANGED_SHARE * rows)
    return text, many or (age > days * _DAY and modified > 0)


def _across(request: DoctorRequest, controls: list[Control], name: str) -> Iterator[Finding]:
    """Run the checks that a diff runs first."""
    settings = request.settings
    table_request = TableRequest(
        table=name,
        nodes=tuple(control.node for control in controls),
        settings=settings,
        filter=settings.table_filter,
        expressions=request.config.expressions,
        columns=parse_column_names(settings.columns),
        exclude_columns=parse_column_names(settings.exclude_columns),
        key=parse_column_names(settings.key),
    )
    try:
        checked = check_as_diff(controls, table_request)
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
        return "add a primary key to the table, or name columns with --key"
    if "is no key" in remark:
        return "validate the constraint, and set the columns NOT NULL in all tables that inherit"
    if "no snapshot" in remark:
        return "set snapshot = true, or compare while no other session writes"
    return "no action needed; see docs/limits.md"
