"""The beginning of a sync: plan, schema, change log, barrier, copy, indexes. Killed anywhere, the same call goes on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.db import reader
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_keys import in_order
from trueup.db.node import connect, error_from_server
from trueup.engine.choose import EngineStarter
from trueup.errors import CheckFailed
from trueup.rows.write.ordered import write_ordered
from trueup.verbs.sync import changelog, create_schema, marks
from trueup.verbs.sync.copy import Job, copy, hold_snapshot, parts_of, read_done, rewritten, start_anew
from trueup.verbs.sync.link import Link, application, check_plan, open_ends, open_link, plan_again, refuse
from trueup.verbs.sync.model import ORDERED, REPLICA, Plan, SyncTable
from trueup.verbs.sync.plan import Wanted, make_plan

if TYPE_CHECKING:
    from trueup.engine.progress import Progress
    from trueup.engine.work import Engine


@dataclass(frozen=True)
class SyncRequest:
    """What the user asked for: from where to where, which tables, and how."""

    source: Node
    target: Node
    wanted: Wanted = field(default_factory=Wanted)
    spark: SparkSettings = field(default_factory=SparkSettings)
    concurrency_factor: float = 1.0
    max_connections: int = 0
    # Seconds to try for the locks on tables in use, and to wait for transactions that began before.
    patience: float = 30.0
    barrier: float = 300.0
    pg_bin: str = ""

    @property
    def name(self) -> str:
        """What the sync is called."""
        return self.wanted.name


def plan(request: SyncRequest) -> Plan:
    """What would happen; nothing is written."""
    with open_ends(request.source, request.target, request.name, read_only=(True, True)) as (source, target):
        status = marks.read(target, request.name)
        names = (request.source.name, request.target.name)
        if status is not None and status.phase != "making":
            return plan_again(source, target, status, names)
        if request.wanted.create_schema:
            create_schema.find_programs(source.info.server_version, request.pg_bin)
        return make_plan(source, target, request.wanted, names)


def start(request: SyncRequest, progress: Progress) -> Plan:
    """Begin a sync, or go on with one that was stopped before all rows were there."""
    with open_ends(request.source, request.target, request.name) as (source, target), ExitStack() as stack:
        changelog.take(source, request.source)
        stack.callback(changelog.let_go, source)
        status = marks.read(target, request.name) or _begin(request, source, target)
        marks.expect(target, request.name, marks.identity(source), request.target.name)
        if status.phase == "making":
            _make_schema(request, source, progress)
            marks.set_phase(target, request.name, "copying")
        found = check_plan(source, target, status, (request.source.name, request.target.name))
        starter = EngineStarter(
            request.spark, concurrency_factor=request.concurrency_factor, max_connections=request.max_connections
        )
        stack.callback(starter.close)
        engine = starter.get(found.rows)
        if status.phase in ("making", "copying"):
            _copy(request, source, target, found, status, engine, progress)
    if status.phase != "running":
        _finish(request, engine, progress, made_schema=status.made_schema)
    return found


def _begin(request: SyncRequest, source: Connection, target: Connection) -> marks.Status:
    """Check all, then write down that it begins."""
    found = make_plan(source, target, request.wanted, (request.source.name, request.target.name))
    refuse(found)
    if not found.tables:
        raise CheckFailed(["there is no table to sync"], cure="check the database, and --tables", node=found.source)
    if request.wanted.create_schema:
        create_schema.find_programs(source.info.server_version, request.pg_bin)
    marks.make(target)
    marks.begin(target, request.wanted, marks.identity(source), found.tables)
    status = marks.read(target, request.name)
    assert status is not None
    return status


def _make_schema(request: SyncRequest, source: Connection, progress: Progress) -> None:
    progress.say("making the tables of the target")
    with _dumped(request, source) as (programs, file):
        create_schema.restore(programs, request.target, file, create_schema.PRE)


@contextmanager
def _dumped(request: SyncRequest, source: Connection) -> Iterator[tuple[Path, Path]]:
    programs = create_schema.find_programs(source.info.server_version, request.pg_bin)
    with tempfile.TemporaryDirectory(prefix="trueup-schema-") as folder:
        file = Path(folder) / "schema.dump"
        create_schema.dump(programs, request.source, source, file)
        yield programs, file


def _copy(
    request: SyncRequest,
    source: Connection,
    target: Connection,
    found: Plan,
    status: marks.Status,
    engine: Engine,
    progress: Progress,
) -> None:
    """The change log, the barrier, and all rows in one snapshot."""
    with changelog.open_log(request.source) as log:
        progress.say(f"recording changes of {len(found.tables)} tables on {request.source.name}")
        tables = changelog.install(log, request.name, found.tables, patience=request.patience)
        changelog.barrier(log, timeout=request.barrier)
    epoch = marks.take_over(target, request.name)
    snapshots = one_value(target.execute(marks.block("another_snapshot"), [request.name]))
    # Of a schema that we made, the foreign keys come later.
    mode = REPLICA if found.mode == REPLICA or status.made_schema else ORDERED
    names = (request.source, request.target)
    title = application(request.name)
    reader.allow(title)
    try:
        with hold_snapshot(source, tables) as (snapshot, _):
            job = Job(request.name, *names, snapshot, title, found.mode, epoch, again=snapshots > 1)
            done = read_done(target, request.name)
            stale = rewritten(source, tables, done)
            if stale:
                leaves = [part.oid for part in parts_of(source, job, stale, 1)]
                start_anew(target, job, stale, [*leaves, *(oid for oid, _ in done if oid in leaves)])
                done = read_done(target, request.name)
            if mode == REPLICA:
                rows = copy(engine, parts_of(source, job, tables, engine.slots, done), progress)
            else:
                rows = _copy_in_order(source, target, found, tables, job, engine, done, progress)
    finally:
        reader.stop_all(title)
    marks.set_phase(target, request.name, "copied")
    progress.say(f"copied {rows:,} rows")


def _copy_in_order(
    source: Connection,
    target: Connection,
    found: Plan,
    tables: Sequence[SyncTable],
    job: Job,
    engine: Engine,
    done: dict[tuple[int, int], Any],
    progress: Progress,
) -> int:
    """Parents first; tables that refer to themselves or to one another are one transaction, with those that wait."""
    by_name = {table.name: table for table in tables}
    rows = 0
    for group in in_order(by_name, found.foreign_keys).groups:
        mine = [by_name[name] for name in group]
        inside = [key for key in found.foreign_keys if key.child in group and key.parent in group]
        if not inside:
            rows += copy(engine, parts_of(source, job, mine, engine.slots, done), progress)
            continue
        parts = parts_of(source, job, mine, 1)
        if parts and all((part.oid, part.file) in done for part in parts):
            continue
        with target.transaction():
            marks.check_ours(target, job.sync, job.epoch)
            rows += write_ordered(source, target, [table.target for table in mine], dict.fromkeys(group), inside)
            for oid, file in {(part.oid, part.file) for part in parts}:
                target.execute(marks.block("copied"), [job.sync, oid, file, 0, None])
    return rows


def _finish(request: SyncRequest, engine: Engine, progress: Progress, *, made_schema: bool) -> None:
    """All rows are there: where we made the schema, build what checks them."""
    from trueup.verbs.sync.run import Runner

    with open_link(request.source, request.target, request.name, phases=("copied",)) as link:
        status = marks.read(link.target, request.name)
        assert status is not None
        if made_schema:
            if status.snapshots > 1:
                # Rows of several snapshots may not fit together yet; one round of all that waits makes them fit.
                with Runner(link, request, progress) as runner:
                    runner.round(everything=True)
            _build(request, link, progress, slots=engine.slots)
        _analyze(link, engine.slots)
        marks.set_phase(link.target, request.name, "running")


def _build(request: SyncRequest, link: Link, progress: Progress, *, slots: int) -> None:
    progress.say("building indexes, constraints, views, functions and triggers of the target")
    again = one_value(
        link.target.execute(
            "SELECT EXISTS (SELECT FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid"
            " JOIN pg_namespace n ON n.oid = r.relnamespace WHERE c.contype IN ('p', 'f') AND n.nspname <> 'trueup'"
            " AND n.nspname !~ '^pg_')"
        )
    )
    with _dumped(request, link.source) as (programs, file):
        create_schema.restore(programs, request.target, file, create_schema.POST, slots=slots, again=bool(again))


def _analyze(link: Link, slots: int) -> None:
    """Fresh tables have no statistics, and rounds would be planned badly."""
    with ThreadPoolExecutor(max(1, min(slots, len(link.tables)))) as threads:
        list(threads.map(lambda table: _analyze_one(link, table), link.tables))


def _analyze_one(link: Link, table: SyncTable) -> None:
    try:
        with connect(link.target_node, application=application(link.name), read_only=False) as target:
            target.execute("SET statement_timeout = 0")
            target.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(*table.name)))
    except psycopg.Error as error:
        if error.sqlstate != "42501":
            raise error_from_server(error, link.target_node, table=str(table)) from None
