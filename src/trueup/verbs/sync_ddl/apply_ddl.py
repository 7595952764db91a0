"""Apply the statements of `ddl` on the target: one transaction per table, with short attempts for its locks.

Expressions of the source (defaults, checks, generated columns) were written by other roles. For a superuser they are
checked as `foreign_code` does, before a statement could run them; if one calls code of another role, nothing of the
table is applied.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import psycopg
from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.db.durable import durable_transaction
from trueup.db.expressions import Expression, foreign_calls
from trueup.db.foreign_code import FOREIGN_CODE_CURE, code_of_definitions, foreign_code
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name, quoted_name
from trueup.db.node import error_from_server
from trueup.db.statements import load
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed, TrueupError
from trueup.rows.write.triggers import silence_triggers
from trueup.verbs.sync import changelog, check, members
from trueup.verbs.sync.aside import SAME
from trueup.verbs.sync.identity.naming import identified
from trueup.verbs.sync.link import open_ends
from trueup.verbs.sync.request import SyncRequest
from trueup.verbs.sync.state import State
from trueup.verbs.sync_ddl import change_tables, ddl
from trueup.verbs.sync_ddl.change import Change, Differences

# A session in the queue of a lock makes others wait behind it: leave the queue after this time, and join it again.
_ATTEMPT_MS = 300
_PAUSE = 0.1


@dataclass(frozen=True)
class Applied:
    """What became of a change."""

    change: Change
    # Why it was not applied; "": it was.
    problem: str = ""


def differences(request: SyncRequest) -> Differences:
    """Return the statements that make the tables of the target like those of the source; write nothing."""
    request = identified(request)
    with open_ends(request.source, request.target, request.name, read_only=(True, True)) as (source, target):
        return _differences(request, source, target)


def _differences(request: SyncRequest, source: Connection, target: Connection) -> Differences:
    stored = change_tables.running(request, source, target)
    _, problems = check.plan_live(source, target, stored, request.node_names)
    # Rows that the target refused are problems that only the running sync knows; differences are known here.
    problems += [problem for problem in stored.aside if problem not in problems and problem.cure != SAME]
    return ddl.find(source, target, members.read(target, stored.sync), problems)


def apply(
    request: SyncRequest, *, drops: bool, timeout: float, known: Container[Change] = ()
) -> tuple[list[Applied], Differences]:
    """Apply the changes, table by table, without those in `known`; return what became of them, and all differences.

    Without `drops` nothing is dropped on the target. A table that was created is added to the sync, and the next round
    copies its rows.
    """
    request = identified(request)
    done: list[Applied] = []
    with open_ends(request.source, request.target, request.name) as (source, target):
        stored = change_tables.running(request, source, target)
        while True:
            found = _differences(request, source, target)
            wanted = [change if drops else change.without_drops() for change in found.changes]
            tried = {each.change for each in done}
            changes = [each for each in wanted if each.statements and each not in known and each not in tried]
            more = _apply_each(request, target, stored, changes, timeout)
            done += more
            if not found.is_first_part or not more or any(each.problem for each in more):
                break
        done += _add_unrecorded(request, source, target, stored)
    return done, found


def _apply_each(
    request: SyncRequest, target: Connection, stored: State, changes: Sequence[Change], timeout: float
) -> list[Applied]:
    done: list[Applied] = []
    # Partitions that could not be detached: their rows are those of another table.
    attached: set[TableName] = set()
    for change in changes:
        try:
            if attached & {each.deletes for each in change.statements}:
                raise CheckFailed(["it is still a partition on the target"], cure="run it again")
            if change.removes:
                change_tables.detach(request, stored, [change.removes], timeout=timeout)
            _apply(request, target, stored, change, timeout)
            if change.creates:
                change_tables.add(request, [change.table])
            done.append(Applied(change))
        except (TrueupError, psycopg.Error) as error:
            done.append(Applied(change, str(error_from_server(error, request.target))))
            attached |= {each.detaches for each in change.statements if each.detaches}
    return done


def _add_unrecorded(request: SyncRequest, source: Connection, target: Connection, stored: State) -> list[Applied]:
    """Add the tables of the sync that are in step now, and were not when `start` began to record changes."""
    missing = members.read(target, stored.sync).keys() - changelog.recorded(source, stored.sync)
    if not missing:
        return []
    plan, _ = check.plan_live(source, target, stored, request.node_names)
    done: list[Applied] = []
    for change in (Change(str(table), (), creates=True) for table in plan.tables if table.oid in missing):
        try:
            change_tables.add(request, [change.table])
            done.append(Applied(change))
        except (TrueupError, psycopg.Error) as error:
            done.append(Applied(change, str(error_from_server(error, request.source))))
    return done


class Follower:
    """Applies the changes of a running sync when it sees them (`--follow-ddl`)."""

    def __init__(self, request: SyncRequest, progress: Progress, *, timeout: float = 30.0) -> None:
        self._request = request
        self._progress = progress
        self._timeout = timeout
        # A change that is found again after it was applied is only printed in another way by the other server.
        self._applied: set[Change] = set()
        self._reported: set[str] = set()

    def __call__(self) -> tuple[bool, bool]:
        """Apply what can be applied; return whether something was, and whether something failed."""
        done, found = apply(self._request, drops=False, timeout=self._timeout, known=self._applied)
        self._applied &= {change.without_drops() for change in found.changes}
        for each in done:
            if each.problem:
                self._say(f"not applied on {self._request.target.name}: {each.change.table}: {each.problem}")
                continue
            self._applied.add(each.change)
            for statement in each.change.statements:
                self._progress.say(f"applied on {self._request.target.name}: {statement.text}")
        for change in found.changes:
            for statement in change.statements:
                if statement.drops:
                    self._say(f"not applied without trueup sync ddl --apply: {statement.text}")
        return any(not each.problem for each in done), any(each.problem for each in done)

    def _say(self, text: str) -> None:
        """Report it once."""
        if text not in self._reported:
            self._reported.add(text)
            self._progress.say(text)


def _apply(request: SyncRequest, target: Connection, stored: State, change: Change, timeout: float) -> None:
    until = time.monotonic() + timeout
    while True:
        try:
            with durable_transaction(target):
                target.execute(f"SET LOCAL lock_timeout = {_ATTEMPT_MS}; SET LOCAL statement_timeout = 0")
                _run(request, target, stored, change)
            return
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
        except (psycopg.errors.IntegrityError, psycopg.errors.DataError):
            # Rows of the target are behind: the changes that make them fit wait in the change log, or were made by a
            # conversion of the column, and all rows are copied again.
            if change.empties or not change.may_empty:
                raise
            change = change.emptied()


def _request_copy(request: SyncRequest, stored: State, change: Change) -> None:
    """Let a round copy all rows of a table, before they are deleted."""
    with changelog.open_log(request.source) as log:
        changelog.reload(log, stored.sync, change.source_oid, "its definition was changed on the target")


def _run(request: SyncRequest, target: Connection, stored: State, change: Change) -> None:
    _refuse_others(target, change)
    is_checked = bool(one_value(target.execute(load("trueup.db", "foreign_code.sql")["is_superuser"])))
    if is_checked:
        _refuse(code_of_definitions(target, change.classes))
    if is_checked and _exists(target, change):
        # Its owner cannot change it between a check and the statement that follows.
        table = sql.Identifier(*(change.name or ()))
        target.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(table))
        _check_table(target, change)
    for statement in change.statements:
        if is_checked:
            # Without an expression, the types of the columns are checked: a new column of a domain runs its checks.
            for text in statement.expressions or ("true",):
                _check_expression(request, target, change, text)
        if place := statement.deletes or statement.detaches:
            # No round writes to it until the end of the transaction: the request cannot be done before that.
            target.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(*place)))
            _refuse_others(target, change, place)
            if is_checked:
                _refuse(foreign_code(target, *place, writes=True))
            if statement.deletes or _has_rows(target, place):
                _request_copy(request, stored, change)
        with _silent(target, stored) if statement.deletes or statement.moves else nullcontext():
            target.execute(statement.text)
        if is_checked and _exists(target, change):
            # A later statement may evaluate what this one has defined.
            _check_table(target, change)
    members.adopt(target, stored.sync, change.source_oid, dict(each.adds for each in change.statements if each.adds))
    if change.removes:
        known = members.read(target, stored.sync)
        change_tables.forget(target, stored, [known[change.removes].name] if change.removes in known else [])


def _refuse_others(target: Connection, change: Change, only: TableName | None = None) -> None:
    """Raise if a name in the statements is not that of the table which they mean."""
    for name, oid in change.expects:
        if only in (None, name) and not one_value(
            target.execute("SELECT to_regclass(%s)::oid = %s::oid", [sql.Identifier(*name).as_string(target), oid])
        ):
            raise CheckFailed([f"the name {display_name(*name)} belongs to another table"], cure="run it again")


def _exists(target: Connection, change: Change) -> bool:
    """Return whether the table of a change exists: it may be created or dropped by it."""
    quoted = sql.Identifier(*change.name).as_string(target) if change.name is not None else None
    return bool(one_value(target.execute("SELECT to_regclass(%s) IS NOT NULL", [quoted])))


def _has_rows(target: Connection, table: TableName) -> bool:
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(*table))
    return bool(one_value(target.execute(query)))


@contextmanager
def _silent(target: Connection, stored: State) -> Iterator[None]:
    """Run the block without triggers, if the role may do that; those of trueup recognize the sync."""
    target.execute("SELECT set_config('trueup.sync', %s, true)", [stored.id])
    is_silent = silence_triggers(target)
    yield
    if is_silent:
        target.execute("SET LOCAL session_replication_role = origin")


def _check_expression(request: SyncRequest, target: Connection, change: Change, text: str) -> None:
    columns = ", ".join(f"CAST(NULL AS {kind}) AS {quoted_name(name)}" for name, kind in change.columns)
    place = sql.SQL(f"(SELECT {columns}) AS r")
    _refuse(foreign_calls(target, request.target, Expression(f"an expression of {change.table}", text, place, "value")))


def _check_table(target: Connection, change: Change) -> None:
    """Raise if a superuser would run code of another role by using the table."""
    assert change.name is not None
    _refuse(foreign_code(target, *change.name, writes=True))


def _refuse(reasons: Sequence[str]) -> None:
    if reasons:
        raise CheckFailed(reasons, cure=f"run the statements as the owner of the table, or {FOREIGN_CODE_CURE}")
