"""Tables whose definition is changed while `start` records and copies them: they are set aside, all others go on.

An error of the copy is compared with the catalogs: if a table of it is not as it was, the table is left out, and the
copy continues with the others in another snapshot. When the table is in step again, a round copies all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import psycopg

from trueup.capture.triggers.session import Session
from trueup.db.connection import Connection
from trueup.db.statements import load
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed, NodeError, QueryError, TrueupError
from trueup.verbs.sync import changelog, check, link, members, state
from trueup.verbs.sync.link import Checked, read_shape
from trueup.verbs.sync.model import REFUSED, Plan, SyncTable
from trueup.verbs.sync.request import SyncRequest

# How often tables are checked again because one was changed between its check and the creation of its triggers.
_ATTEMPTS = 5
Shapes = dict[int, str]


@dataclass(frozen=True)
class Watched:
    """The fingerprints of tables on both databases, read before the tables were checked."""

    source: Connection
    target: Connection
    shapes: tuple[Shapes, Shapes]
    # The plan with more fingerprints, if it has no problems.
    checked: Checked | None = None

    def changed(self, tables: Sequence[SyncTable]) -> list[SyncTable]:
        """Return the tables that have another definition now, do not exist any more, or are not watched."""
        before, now = self.shapes, _shapes(self.source, self.target, _names(tables))
        return [
            table
            for table in tables
            if table.oid not in now[0]
            or before[0].get(table.oid) != now[0].get(table.oid)
            or before[1].get(table.target_oid) != now[1].get(table.target_oid)
        ]

    def changed_after(self, error: Exception, live: Sequence[SyncTable]) -> list[SyncTable]:
        """Return the tables that are the cause of the error: changed ones, or one whose rows the target refused.

        Raise the error if there are none. Only tables of `live` count.
        """
        if isinstance(error, NodeError) or self.source.closed or self.target.closed:
            raise error
        for connection in (self.source, self.target):
            if connection.info.transaction_status != 0:
                connection.execute("ROLLBACK")
        tables = self.changed(live)
        if not tables and isinstance(error, QueryError) and error.sqlstate[:2] in REFUSED:
            tables = [table for table in live if str(table) == error.table]
        if not tables:
            raise error
        return tables


@dataclass(frozen=True)
class _Names:
    """Tables by what their fingerprints need: oids on source and target, quoted names on the target."""

    on_source: list[int]
    on_target: list[int]
    quoted: list[str]


def _names(tables: Iterable[SyncTable]) -> _Names:
    tables = list(tables)
    return _Names(
        [table.oid for table in tables],
        [table.target_oid for table in tables],
        [table.quoted_name for table in tables],
    )


def _stored_names(target: Connection, stored: state.State) -> _Names:
    """Return the tables of a sync before they are checked."""
    known = members.read(target, stored.sync)
    return _Names(
        list(known), [member.target_oid for member in known.values()], members.quoted_names(target, known.values())
    )


def _shapes(source: Connection, target: Connection, names: _Names) -> tuple[Shapes, Shapes]:
    query = load("trueup.verbs.sync", "copy.sql")["shapes"]
    on_source = source.execute(query, {"oids": names.on_source}).fetchall()
    on_target = target.execute(query, {"oids": names.on_target}).fetchall()
    return dict(on_source), dict(on_target)


def record_changes(
    request: SyncRequest,
    source: Connection,
    target: Connection,
    log: Session,
    stored: state.State,
    epoch: int,
    progress: Progress,
) -> tuple[Plan, tuple[SyncTable, ...], Watched]:
    """Record the changes of all tables that can be synced; the problems of the others are set aside.

    Return the plan, its tables as the change log has them, and their fingerprints: every change that is later than the
    check and the triggers differs from these.
    """
    names = _stored_names(target, stored)
    for attempt in range(_ATTEMPTS):
        # Before the check: a change between the two is noticed below.
        watched = Watched(source, target, _shapes(source, target, names))
        enums = tuple(enum.oid for enum in members.enums(source, names.on_source))
        shape = read_shape(source, request.name, link.Watched(tuple(names.on_source), enums))
        shapes = members.shapes(target, names.quoted)
        plan, problems = check.plan_live(source, target, stored, request.node_names)
        check.refuse(plan)
        if not attempt:
            owner = changelog.Owner(stored.id, state.identity(target))
            changelog.install(log, request.name, owner, (), timeout=0, is_claimed=stored.is_claimed_by_start)
        tables = _attach(request, log, watched, plan.tables)
        names = _names(plan.tables)
        if len(tables) == len(plan.tables) and shapes.keys() >= {*names.quoted} and not watched.changed(plan.tables):
            break
        progress.say("a table was changed meanwhile: checking all tables again")
    else:
        raise CheckFailed(["tables were changed each time they were checked"], cure="run the same command again")
    with state.writing(target, request.name, epoch):
        for table in members.record(source, target, request.name, tables):
            changelog.reload(log, request.name, table.oid, "its columns were changed on the target")
        state.set_aside(target, request.name, problems)
    if not problems:
        watched = replace(watched, checked=Checked(plan, shape.without_triggers(), shapes))
    return plan, tuple(members.with_shapes(tables, shapes)), watched


def _attach(request: SyncRequest, log: Session, watched: Watched, tables: Sequence[SyncTable]) -> tuple[SyncTable, ...]:
    """Attach the tables to the change log, also behind one that was dropped or renamed; return those attached."""
    attached: list[SyncTable] = []
    for table in tables:
        try:
            attached += changelog.attach(log, request.name, [table], timeout=request.timeout)
        except (TrueupError, psycopg.Error) as error:
            watched.changed_after(error, tables)
    return tuple(attached)


def copy_later(request: SyncRequest, target: Connection, log: Session, copied: Iterable[SyncTable]) -> None:
    """Let rounds copy all rows of the tables of the sync that were not copied, when these are in step again."""
    oids = {table.oid for table in copied}
    for oid in members.read(target, request.name):
        if oid not in oids:
            changelog.reload(log, request.name, oid, "it was changed before it was copied")
