"""Apply the statements of `ddl` on the target: one transaction per table, with short attempts for its locks.

Expressions of the source (defaults, checks, generated columns) were written by other roles. For a superuser they are
checked as `foreign_code` does, before a statement could run them; if one calls code of another role, nothing of the
table is applied.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.db.durable import durable_transaction
from trueup.db.expressions import Expression, foreign_calls
from trueup.db.foreign_code import FOREIGN_CODE_CURE, code_of_definitions, foreign_code
from trueup.db.names import quoted_name
from trueup.db.node import error_from_server
from trueup.db.statements import load
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed, TrueupError
from trueup.rows.write.triggers import silence_triggers
from trueup.verbs.sync import changelog, check, members
from trueup.verbs.sync.aside import SAME
from trueup.verbs.sync.link import open_ends
from trueup.verbs.sync.naming import identified
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
        found = _differences(request, source, target)
        for change in found.changes:
            wanted = change if drops else change.without_drops()
            if not wanted.statements or wanted in known:
                continue
            try:
                if wanted.removes:
                    change_tables.remove(request, [wanted.table], timeout=timeout)
                _apply(request, target, stored, wanted, timeout)
                if wanted.creates:
                    change_tables.add(request, [wanted.table])
                done.append(Applied(wanted))
            except (TrueupError, psycopg.Error) as error:
                done.append(Applied(wanted, str(error_from_server(error, request.target))))
        done += _add_unrecorded(request, source, target, stored)
    return done, found


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
    if change.empties and not change.may_empty:
        raise CheckFailed(["its rows would have to be copied again, and it is not set aside yet"], cure="run it again")
    while True:
        try:
            if change.empties:
                _request_copy(request, stored, change)
            with durable_transaction(target):
                target.execute(f"SET LOCAL lock_timeout = {_ATTEMPT_MS}; SET LOCAL statement_timeout = 0")
                _run(request, target, stored, change)
            return
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
        except psycopg.errors.IntegrityError:
            # Rows of the target are behind: the changes that make them fit wait in the change log.
            if change.empties or not change.may_empty:
                raise
            change = replace(change, empties=True)


def _request_copy(request: SyncRequest, stored: State, change: Change) -> None:
    """Let a round copy all rows of a table, before they are deleted."""
    with changelog.open_log(request.source) as log:
        changelog.reload(log, stored.sync, change.source_oid, "its definition was changed on the target")


def _run(request: SyncRequest, target: Connection, stored: State, change: Change) -> None:
    is_checked = bool(one_value(target.execute(load("trueup.db", "foreign_code.sql")["is_superuser"])))
    if is_checked:
        _refuse(code_of_definitions(target, change.classes))
    if is_checked and change.name is not None and not change.creates:
        # Its owner cannot change it between a check and the statement that follows.
        table = sql.Identifier(*change.name)
        target.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(table))
        _check_table(target, change)
    if change.empties and change.name is not None:
        # Triggers of trueup recognize the sync.
        target.execute("SELECT set_config('trueup.sync', %s, true)", [stored.id])
        is_silent = silence_triggers(target)
        # After a rename in an earlier transaction it has the name of the source.
        table = sql.Identifier(*change.name)
        target.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(table))
        target.execute(sql.SQL("DELETE FROM {}").format(table))
        if is_silent:
            target.execute("SET LOCAL session_replication_role = origin")
    for statement in change.statements:
        if is_checked:
            # Without an expression, the types of the columns are checked: a new column of a domain runs its checks.
            for text in statement.expressions or ("true",):
                _check_expression(request, target, change, text)
        target.execute(statement.text)
        if is_checked and change.name is not None:
            # A later statement may evaluate what this one has defined.
            _check_table(target, change)


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
