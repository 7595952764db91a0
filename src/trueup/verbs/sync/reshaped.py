"""Tables whose definition is changed while `start` records and copies them: they are set aside, all others go on.

An error of the copy is compared with the catalogs: if a table of it is not as it was, the table is left out, and the
copy continues with the others in another snapshot. When the table is in step again, a round copies all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psycopg

from trueup.capture.triggers.session import Session
from trueup.db.connection import Connection
from trueup.db.names import parse_table_name
from trueup.db.statements import load
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed, NodeError, QueryError, TrueupError
from trueup.verbs.sync import changelog, check, members, state
from trueup.verbs.sync.model import REFUSED, Plan, SyncTable
from trueup.verbs.sync.request import SyncRequest

# How often tables are checked again because one was changed between its check and the creation of its triggers.
_ATTEMPTS = 5
Shapes = dict[int, str]


@dataclass(frozen=True)
class Watched:
    """The tables of a copy, and their fingerprints on both databases before it began."""

    source: Connection
    target: Connection
    tables: tuple[SyncTable, ...]
    shapes: tuple[Shapes, Shapes]

    def changed(self) -> list[SyncTable]:
        """Return the tables that have another definition now, or do not exist any more."""
        before, now = self.shapes, _shapes(self.source, self.target, self.tables)
        return [
            table
            for table in self.tables
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
        tables = [table for table in self.changed() if table in live]
        if not tables and isinstance(error, QueryError) and error.sqlstate[:2] in REFUSED:
            tables = [table for table in live if str(table) == error.table]
        if not tables:
            raise error
        return tables


def watch(source: Connection, target: Connection, tables: Iterable[SyncTable]) -> Watched:
    """Read the fingerprints of tables."""
    watched = tuple(tables)
    return Watched(source, target, watched, _shapes(source, target, watched))


def _shapes(source: Connection, target: Connection, tables: Sequence[SyncTable]) -> tuple[Shapes, Shapes]:
    query = load("trueup.verbs.sync", "copy.sql")["shapes"]
    on_source = source.execute(query, {"oids": [table.oid for table in tables]}).fetchall()
    on_target = target.execute(query, {"oids": [table.target_oid for table in tables]}).fetchall()
    return dict(on_source), dict(on_target)


def record_changes(
    request: SyncRequest, source: Connection, target: Connection, stored: state.State, epoch: int, progress: Progress
) -> tuple[Plan, tuple[SyncTable, ...]]:
    """Create the change log, and record all tables that can be synced; the problems of the others are set aside."""
    plan, problems = check.plan_live(source, target, stored, request.node_names)
    check.refuse(plan)
    watched = watch(source, target, plan.tables)
    if not members.read(target, request.name):
        with state.writing(target, request.name, epoch):
            members.record(source, target, request.name, plan.tables, no_others=True)
            # A table that was changed before this is added later, as a new table.
            state.set_tables(target, request.name, [str(table) for table in plan.tables], stored.named, stored.left_out)
    with changelog.open_log(request.source) as log:
        changelog.install(log, request.name, changelog.Owner(stored.id, state.identity(target)), (), timeout=0)
        for _ in range(_ATTEMPTS):
            tables = _attach(request, log, watched)
            if tables is not None:
                break
            progress.say("a table was changed meanwhile: checking all tables again")
            plan, problems = check.plan_live(source, target, stored, request.node_names)
            check.refuse(plan)
            watched = watch(source, target, plan.tables)
        else:
            raise CheckFailed(["tables were changed each time they were checked"], cure="run the same command again")
        with state.writing(target, request.name, epoch):
            for table in members.record(source, target, request.name, tables):
                changelog.reload(log, request.name, table.name, "its columns were changed on the target")
            state.set_aside(target, request.name, problems)
    return plan, tables


def _attach(request: SyncRequest, log: Session, watched: Watched) -> tuple[SyncTable, ...] | None:
    """Attach the tables to the change log, also behind one that was dropped or renamed; return None if one was."""
    tables: list[SyncTable] = []
    for table in watched.tables:
        try:
            tables += changelog.attach(log, request.name, [table], timeout=request.timeout)
        except (TrueupError, psycopg.Error) as error:
            watched.changed_after(error, watched.tables)
    return tuple(tables) if len(tables) == len(watched.tables) else None


def copy_later(request: SyncRequest, source: Connection, target: Connection, copied: Iterable[SyncTable]) -> None:
    """Let rounds copy all rows of the tables of the sync that were not copied, when these are in step again."""
    oids = {table.oid for table in copied}
    present = members.names_by_oid(source)
    with changelog.open_log(request.source) as log:
        for oid in members.read(target, request.name):
            if oid not in oids and oid in present:
                schema, table = parse_table_name(present[oid])
                changelog.reload(log, request.name, (schema.text, table.text), "it was changed before it was copied")
