"""The copy of all rows in one snapshot of the source, and what follows it: indexes, constraints, statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import psycopg

from trueup.capture.triggers.session import Session
from trueup.config.wording import counted
from trueup.db import reader
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_keys import in_order
from trueup.engine.progress import Progress
from trueup.engine.work import Engine
from trueup.errors import TrueupError
from trueup.rows.write.ordered import write_ordered
from trueup.task import materialized
from trueup.verbs.sync import aside, members, reshaped, state
from trueup.verbs.sync.copy import Done, Job, copy, hold_snapshot, parts_of, read_done, rewritten, start_anew
from trueup.verbs.sync.following import Following
from trueup.verbs.sync.identity import history
from trueup.verbs.sync.link import Checked, Link, Opened, read_shape
from trueup.verbs.sync.model import Outdated, Plan, Refused, SyncTable, application
from trueup.verbs.sync.plan import not_created
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.runner import Runner
from trueup.verbs.sync.silence import silence
from trueup.verbs.sync.target_schema import create_schema
from trueup.verbs.sync.target_schema.dump import DumpAhead, dumped_ahead

# How often indexes are built again because a table was changed meanwhile.
ATTEMPTS = 20


@dataclass(frozen=True)
class CopyTask:
    """The copy of a sync: the open sessions, what is copied, and how."""

    request: SyncRequest
    source: Connection
    target: Connection
    log: Session
    plan: Plan
    epoch: int
    engine: Engine
    progress: Progress
    # Foreign keys are checked while rows are written: parents must be copied before children, in one snapshot.
    ordered: bool
    # How many parts each engine has copied.
    ran_on: Counter[str] = field(default_factory=Counter)


def copy_all(
    request: SyncRequest,
    watched: reshaped.Watched,
    log: Session,
    plan: Plan,
    tables: Sequence[SyncTable],
    stored: state.State,
    epoch: int,
    engine: Engine,
    progress: Progress,
) -> tuple[dict[str, str], dict[str, int]]:
    """Copy all rows that an earlier call has not copied.

    Return the tables that could not be copied, and why; and how many parts each engine has copied.

    A table that is rewritten before it is copied is copied again in a snapshot of its own, in which it is locked. A
    table that cannot be copied because its definition was changed is left to the rounds.
    """
    # If trueup makes the schema, the foreign keys are created after the copy: no order is needed.
    ordered = plan.is_ordered and not stored.made_schema
    source, target = watched.source, watched.target
    work = CopyTask(request, source, target, log, plan, epoch, engine, progress, ordered)
    silence(target, request.name, epoch, plan.tables, plan.mode)
    title = application(request.name)
    reader.allow(title)
    live, refused = list(tables), dict[str, str]()
    try:
        while True:
            try:
                rows = _copy_tables(work, live)
                break
            except (TrueupError, psycopg.Error) as error:
                left = watched.changed_after(error, live)
                refused |= {str(table): f"it could not be copied: {error}" for table in left}
                for table in left:
                    progress.say(f"{table} is set aside: {refused[str(table)]}")
                live = [table for table in live if table not in left]
                if ordered:
                    problems = aside.with_relatives(target, live, members.read(target, request.name).values())
                    wrong = {problem.where for problem in problems}
                    live = [table for table in live if str(table) not in wrong]
                # Tasks that are still running must not write after the copied pages are read again.
                reader.stop_all(title)
                epoch = state.take_over(target, request.name)
                reader.allow(title)
                work = replace(work, plan=aside.only(plan, live, ()), epoch=epoch)
        reshaped.copy_later(request, target, log, live)
        state.set_phase(target, request.name, epoch, "copied")
        progress.say(f"copied {counted(rows, 'row')}")
        return refused, dict(sorted(work.ran_on.items()))
    finally:
        reader.stop_all(title)


def _copy_tables(work: CopyTask, tables: Sequence[SyncTable]) -> int:
    rows, stale = _copy_in_snapshot(work, tables, locked=tables if work.ordered else ())
    for table in tables:
        if str(table) in stale:
            work.progress.say(f"{table} was rewritten meanwhile: copying it again")
            rows += _copy_in_snapshot(work, [table], locked=[table])[0]
    return rows


def _copy_in_snapshot(
    work: CopyTask, tables: Sequence[SyncTable], *, locked: Sequence[SyncTable]
) -> tuple[int, set[str]]:
    """Copy what is not copied yet in a new snapshot; return the number of rows, and the tables rewritten meanwhile."""
    request, source, target = work.request, work.source, work.target
    with state.writing(target, request.name, work.epoch):
        snapshots = one_value(target.execute(state.statement("count_snapshot"), [request.name]))
    with hold_snapshot(source, request.source, locked) as snapshot:
        _set_mark(work)
        job = Job(
            request.name, request.source, request.target, snapshot, application(request.name), work.epoch,
            silent=not work.plan.is_ordered, continued=snapshots > 1, held=bool(locked),
        )  # fmt: skip
        done = read_done(target, request.name)
        stale = rewritten(source, tables, done)
        if stale:
            leaves = [part.oid for part in parts_of(source, job, stale, 1)]
            start_anew(target, job, stale, [*leaves, *(oid for oid, _ in done if oid in leaves)])
            done = read_done(target, request.name)
        if work.ordered:
            return _copy_in_order(work, tables, job, done), set()
        return copy(
            work.engine, parts_of(source, job, tables, work.engine.slots, done), work.progress, source, work.ran_on
        )


def _set_mark(work: CopyTask) -> None:
    """Commit the token of the snapshot on both databases: see `history`."""
    name, target, log = work.request.name, work.target, work.log
    reader = history.reader(name)
    with log.errors():
        mark = reader.begin(log.connection)
        with state.writing(target, name, work.epoch):
            state.set_mark(target, name, mark)
        reader.done(log.connection, mark)


def _copy_in_order(work: CopyTask, tables: Sequence[SyncTable], job: Job, done: Done) -> int:
    """Copy parents first; tables that refer to themselves or to one another are copied in one transaction."""
    source, target, engine = work.source, work.target, work.engine
    by_name = {table.name: table for table in tables}
    rows = 0
    for group in in_order(by_name, work.plan.foreign_keys).groups:
        members = [by_name[name] for name in group]
        inside = [key for key in work.plan.foreign_keys if key.child_root in group and key.parent_root in group]
        if not inside:
            # The tables are locked: none can be rewritten.
            rows += copy(
                engine, parts_of(source, job, members, engine.slots, done), work.progress, source, work.ran_on
            )[0]
            continue
        parts = parts_of(source, job, members, 1)
        if parts and all((part.oid, part.file) in done for part in parts):
            continue
        with state.writing(target, job.sync, job.epoch):
            for table in members:
                state.check_table(target, job.sync, table)
            rows += write_ordered(source, target, [table.target for table in members], dict.fromkeys(group), inside)
            for oid, file in {(part.oid, part.file) for part in parts}:
                target.execute(state.statement("copied"), [job.sync, oid, file, 0, None])
                work.ran_on["local"] += 1
    return rows


def build(
    request: SyncRequest,
    opened: Opened,
    stored: state.State,
    slots: int,
    progress: Progress,
    refused: Mapping[str, str],
) -> Plan:
    """Build indexes and constraints where trueup made the schema, collect statistics, and end the copy.

    `refused` are tables that could not be copied, and why. Return the plan; its problems are those of the tables that
    are set aside.
    """
    following = Following(progress, refused=refused)
    with ExitStack() as stack:
        ahead: DumpAhead | None = None
        if stored.made_schema and opened.checked:
            # While the tables are checked. It is not used if they were changed meanwhile.
            left_out = not_created(opened.source, Scope(opened.name, stored.named, stored.left_out))
            ahead = stack.enter_context(dumped_ahead(request, opened.source, opened.target, left_out))
        attempts = 1
        while True:
            try:
                link = following.link(opened)
                others = members.other_partitions(link.source, link.target, link.tables) if stored.made_schema else ()
                for table in others:
                    # The indexes of partitions that the target does not have cannot be created.
                    following.set_aside(str(table), "its partitions are not those of the source")
                with following.errors(link):
                    _build(request, link, slots, progress, opened.checked, ahead)
                return replace(link.plan, problems=link.aside)
            except Outdated as error:
                # A table whose rows are refused is set aside until a table is changed again: these end by themselves.
                attempts += not isinstance(error, Refused)
                if attempts > ATTEMPTS:
                    raise
                progress.say(f"{error.message}: checking all tables again")
                opened = replace(opened, checked=None)


def _build(
    request: SyncRequest,
    link: Link,
    slots: int,
    progress: Progress,
    checked: Checked | None,
    ahead: DumpAhead | None,
) -> None:
    stored = state.expect(link.target, request.name, state.identity(link.source), request.target.name)
    has_failed = stored.phase == "building"
    if stored.phase == "copied" or has_failed:
        with Runner(link, request, progress) as runner:
            if not has_failed:
                # Before indexes are built: after a kill, these would be built again.
                runner.copy_large_objects(is_first=True)
            if stored.made_schema and (stored.snapshots > 1 or has_failed):
                # Rows of several snapshots may contradict each other; one round over the whole log corrects that. So it
                # does with rows that a constraint has refused, and that were changed on the source since then.
                silence(link.target, link.name, link.epoch, link.tables, link.plan.mode)
                runner.round(everything=True)
    if stored.made_schema:
        state.set_phase(link.target, request.name, link.epoch, "building")
        scope = Scope(link.name, stored.named, stored.left_out)
        left_out = not_created(link.source, scope, [table.oid for table in link.tables])
        shape = read_shape(link.source, link.name, link.watched).without_triggers()
        if checked is None or shape != checked.shape:
            ahead = None
        try:
            with state.writing(link.target, link.name, link.epoch):
                create_schema.build_rest(
                    request, link.source, link.target, stored, left_out, progress, slots=slots, ahead=ahead
                )
        except TrueupError as error:
            if read_shape(link.source, link.name, link.watched) == link.shape:
                raise
            raise Outdated([f"a table was changed meanwhile ({error})"]) from error
        silence(link.target, link.name, link.epoch, link.tables, link.plan.mode)
    # New tables have no statistics, and rounds would get bad query plans.
    names = [table.name for table in link.tables]
    left = materialized.analyze(link.target, link.target_node, names, link.application, slots=slots)
    if not stored.named:
        left += materialized.refresh(link.source, link.target_node, link.application, progress)
    for remark in left:
        progress.say(remark)
    state.set_phase(link.target, request.name, link.epoch, "running")
    with state.writing(link.target, link.name, link.epoch):
        link.target.execute(state.statement("large_objects_kept"), [link.name])
