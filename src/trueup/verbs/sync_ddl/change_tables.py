"""Add tables to a started sync and remove some, also while it runs: nothing else is copied again.

A new table gets its triggers, then an entry in the change log that lets a round copy all of its rows, then it is
recorded as a table of the sync. After a kill at any point, the same call continues. A running sync notices the change
in its next round.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence

from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.db.durable import durable_transaction
from trueup.db.foreign_keys import read_foreign_keys
from trueup.db.names import display_name, table_spellings
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.sync import changelog, check, members, state
from trueup.verbs.sync.identity.naming import identified
from trueup.verbs.sync.link import log_table, open_ends
from trueup.verbs.sync.members import Member
from trueup.verbs.sync.model import Plan, Problem, SyncTable
from trueup.verbs.sync.plan import make_plan, matching_tables
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.state import State
from trueup.verbs.sync.target_schema.plan_target import TargetState, filled_tables

_POLL_SECONDS = 0.1
# Who decided that a table is not in the sync.
LEFT_OUT = "trueup sync remove"


def add(request: SyncRequest, names: Sequence[str]) -> tuple[SyncTable, ...]:
    """Add tables to a started sync, or copy tables of it again, and return them. The next round copies the rows."""
    request = identified(request)
    with open_ends(request.source, request.target, request.name) as (source, target):
        stored = running(request, source, target)
        chosen = matching_tables(source, names)
        tables = _addable(request, source, target, stored, chosen)
        with changelog.open_log(request.source) as log:
            changelog.check_owner(log, stored.sync, stored.id)
            tables = changelog.attach(log, stored.sync, tables, timeout=request.timeout)
            changelog.wait_for_older_transactions(log, timeout=request.timeout)
            # Before the table is recorded: it must not be in the sync without this.
            for table in tables:
                changelog.reload(log, stored.sync, table.oid, "it was added")
            parts = _parts(source, target, stored, tables)
            changelog.detach(log, stored.sync, [part.source_oid for part in parts], timeout=request.timeout)
            _record(source, target, stored, tables, parts)
            changelog.forget_detached(log, stored.sync)
        return tuple(tables)


def remove(request: SyncRequest, names: Sequence[str], *, timeout: float) -> tuple[str, ...]:
    """Remove tables from a started sync; return their names. Their rows on the target stay."""
    request = identified(request)
    with open_ends(request.source, request.target, request.name) as (source, target):
        stored = running(request, source, target)
        known = members.read(target, stored.sync)
        of_sync = {member.name: member for member in known.values()}
        chosen = _named(source, names, of_sync)
        if of_sync.keys() & set(chosen):
            _refuse_switchover(request, source, target, stored)
        _refuse_references(target, of_sync, chosen)
        if not set(stored.tables) - set(chosen):
            raise CheckFailed(["no table would be left in the sync"], cure="remove the sync: trueup sync drop")
        with changelog.open_log(request.source) as log:
            changelog.check_owner(log, stored.sync, stored.id)
            oids = [of_sync[name].source_oid for name in chosen if name in of_sync]
            changelog.detach(log, stored.sync, oids, timeout=timeout)
            with durable_transaction(target):
                forget(target, stored, chosen, _meant(source, of_sync, chosen))
            changelog.forget_detached(log, stored.sync)
        return chosen


def detach(request: SyncRequest, stored: State, oids: Sequence[int], *, timeout: float) -> None:
    """Remove tables, which may not exist any more, from the change log with their entries."""
    with changelog.open_log(request.source) as log:
        changelog.check_owner(log, stored.sync, stored.id)
        changelog.detach(log, stored.sync, oids, timeout=timeout)
        changelog.forget_detached(log, stored.sync)


def wait_until_copied(request: SyncRequest, tables: Sequence[SyncTable], *, timeout: float) -> bool:
    """Wait until the running sync has copied these tables; return False if no sync is running.

    Other tables do not count: a copy of one that is set aside may wait for days.
    """
    request = identified(request)
    until = time.monotonic() + timeout
    oids = [table.oid for table in tables]
    with open_ends(request.source, request.target, request.name, read_only=(True, True)) as (source, target):
        query = sql.SQL("SELECT count(*) FROM {} WHERE op = '{{' AND source = ANY(%s)").format(log_table(request.name))
        while True:
            numbers = changelog.numbers(source, request.name, oids)
            if not one_value(source.execute(query, [numbers])):
                return True
            if changelog.holder(source, request.name) is None:
                return False
            if time.monotonic() > until:
                stored = state.read(target, request.name)
                refuse_aside(stored.aside if stored is not None else (), tables)
                raise TrueupError(
                    f"the running sync has not copied the tables within {timeout:g} s",
                    cure="see trueup sync status: the tables may be large",
                    node=request.source.name,
                )
            time.sleep(_POLL_SECONDS)


def refuse_aside(problems: Sequence[Problem], tables: Sequence[SyncTable]) -> None:
    """Raise if one of these tables is set aside: no round copies it."""
    names = {str(table) for table in tables}
    if own := [problem for problem in problems if problem.where in names]:
        cures = dict.fromkeys(problem.cure for problem in own)
        raise CheckFailed([f"set aside, and not copied: {problem}" for problem in own], cure="; ".join(cures))


def running(request: SyncRequest, source: Connection, target: Connection) -> State:
    stored = state.expect(target, request.name, state.identity(source), request.target.name)
    state.check_finished(stored, request.target.name)
    return stored


def _addable(
    request: SyncRequest, source: Connection, target: Connection, stored: State, chosen: Sequence[str]
) -> list[SyncTable]:
    """Return the tables as the plan has them; raise if one cannot be synced."""
    known, present = members.read(target, stored.sync), members.names_by_oid(source)
    others = [present[oid] for oid in known if oid in present]
    scope = Scope(stored.sync, tuple(dict.fromkeys([*others, *chosen])))
    plan = make_plan(source, target, scope, request.node_names, TargetState(True, is_brief=True))
    tables = [table for table in plan.tables if str(table) in chosen]
    problems = [problem for problem in plan.problems if problem.where in chosen]
    # The rows of a table of the sync are copied again.
    ours = {(member.source_oid, member.target_oid) for member in known.values()}
    parts = {part.target_oid for part in _parts(source, target, stored, tables)}
    filled = filled_tables(target, [table for table in tables if (table.oid, table.target_oid) not in ours])
    of_sync = (table for table in tables if parts and table.is_partitioned and table.name in filled)
    filled -= {table.name for table in of_sync if not _has_others(target, table, parts)}
    what, cure = "it is not empty on the target", "delete its rows there: the copy needs an empty table"
    problems += [Problem(str(table), what, cure) for table in tables if table.name in filled]
    missing = set(chosen) - {str(table) for table in tables} - {problem.where for problem in problems}
    problems += [Problem(name, "it cannot be synced: see trueup sync plan", "name a table") for name in sorted(missing)]
    check.refuse(_with(plan, problems))
    return tables


def _has_others(target: Connection, table: SyncTable, parts: Container[int]) -> bool:
    """Return whether a table of the target has rows outside of these tables of the sync, which are its partitions."""
    query = "SELECT relid::oid::bigint, relid::text FROM pg_partition_tree(%s::oid) WHERE isleaf"
    leaves = target.execute(query, [table.target_oid]).fetchall()
    exists = "SELECT EXISTS (SELECT FROM ONLY {})"
    return any(
        bool(one_value(target.execute(sql.SQL(exists).format(sql.SQL(name)))))
        for oid, name in leaves
        if oid not in parts
    )


def _with(plan: Plan, problems: Sequence[Problem]) -> Plan:
    return Plan(
        plan.name, plan.source, plan.target, plan.tables, (), (), (), plan.mode, False, tuple(problems)
    )  # fmt: skip


def _lock(target: Connection, stored: State) -> State:
    """Wait for the round that is writing, and return the state; call it in a transaction."""
    target.execute("SELECT FROM trueup.syncs WHERE sync = %s AND id = %s FOR UPDATE", [stored.sync, stored.id])
    again = state.read(target, stored.sync)
    if again is None or again.id != stored.id:
        raise CheckFailed([f"the sync {stored.sync} was dropped meanwhile"], cure="start it: trueup sync start")
    return again


def _parts(source: Connection, target: Connection, stored: State, tables: Sequence[SyncTable]) -> list[Member]:
    """Return the tables of the sync that are partitions of these tables now."""
    known, oids = members.read(target, stored.sync), {table.oid for table in tables}
    return [known[oid] for oid, root in members.partitions(source, known).items() if root in oids]


def _record(
    source: Connection, target: Connection, stored: State, tables: Sequence[SyncTable], parts: Sequence[Member]
) -> None:
    names = [str(table) for table in tables]
    with durable_transaction(target):
        forget(target, stored, [part.name for part in parts])
        stored = _lock(target, stored)
        renamed = members.make_room(source, target, stored.sync, tables)
        excluded = tuple(text for text in stored.left_out if not _is_one_of(text, names))
        state.set_tables(target, stored.sync, tuple(dict.fromkeys([*stored.tables, *renamed, *names])), excluded)
        members.take_in(target, stored.sync, [table.oid for table in tables])
        members.record(source, target, stored.sync, tables)
        state.set_aside(target, stored.sync, [problem for problem in stored.aside if problem.where not in names])


def forget(target: Connection, stored: State, names: Sequence[str], left_out: Mapping[int, str] | None = None) -> None:
    """Remove tables from the sync, in the caller's transaction; `left_out`: those of the source that it shall not have.

    A table that was dropped on the source is not left out: another one with its name is a new table.
    """
    stored = _lock(target, stored)
    state.set_tables(target, stored.sync, [name for name in stored.tables if name not in names], stored.left_out)
    target.execute(state.statement("remove_members"), {"sync": stored.sync, "names": list(names)})
    members.leave_out(target, stored.sync, left_out or {}, LEFT_OUT)
    state.set_aside(target, stored.sync, [problem for problem in stored.aside if problem.where not in names])


def _is_one_of(text: str, names: Sequence[str]) -> bool:
    """Return whether a name of --tables or --exclude-tables, not a pattern, is one of these tables."""
    if "*" in text or "?" in text:
        return False
    return any(display_name(*spelling) in names for spelling in table_spellings(text))


def _named(source: Connection, names: Sequence[str], of_sync: dict[str, Member]) -> tuple[str, ...]:
    """Return the tables of these names: of the sync, also if they do not exist any more, or of the source."""
    chosen: list[str] = []
    for text in names:
        own = [] if "*" in text or "?" in text else [display_name(*spelling) for spelling in table_spellings(text)]
        found = [name for name in own if name in of_sync][:1]
        chosen += found or matching_tables(source, [text])
    return tuple(dict.fromkeys(chosen))


def _meant(source: Connection, of_sync: Mapping[str, Member], chosen: Sequence[str]) -> dict[int, str]:
    """Return the tables of the source with these names, when they were last in step or else now."""
    present = members.names_by_oid(source)
    oids = {name: oid for oid, name in present.items()}
    meant = {
        name: own.source_oid if (own := of_sync.get(name)) and own.source_oid in present else oids.get(name)
        for name in chosen
    }
    return {oid: name for name, oid in meant.items() if oid is not None}


def _refuse_references(target: Connection, of_sync: dict[str, Member], chosen: Sequence[str]) -> None:
    """Raise if foreign keys of the target connect a removed table with one that stays."""
    removed = {of_sync[name].table for name in chosen if name in of_sync}
    staying = {member.table for name, member in of_sync.items() if name not in chosen}
    problems = []
    for key in read_foreign_keys(target, removed):
        ends = {key.child_root, key.parent_root}
        if ends & removed and ends & staying:
            other = display_name(*next(iter(ends & staying)))
            problems.append(
                f"{display_name(*next(iter(ends & removed)))}: the foreign key {key} connects it with {other}"
            )
    if problems:
        raise CheckFailed(problems, cure="remove both tables, or drop the foreign key on the target")


def _refuse_switchover(request: SyncRequest, source: Connection, target: Connection, stored: State) -> None:
    for node, connection in ((request.source, source), (request.target, target)):
        if state.pointer_state(connection, stored.id) is not None:
            raise CheckFailed(
                [f"a switchover of the sync {request.name} is prepared: its guards are on all tables"],
                cure="end the switchover first: trueup switchover reset",
                node=node.name,
            )
