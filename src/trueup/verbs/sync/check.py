"""The checks of a plan: before a sync is recorded as started, and each time it continues."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace

from trueup.capture.triggers.session import Session
from trueup.db.connection import Connection
from trueup.db.names import display_name, parse_table_name
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.sync import aside, changelog, definitions, members, state
from trueup.verbs.sync.identity import chain, naming
from trueup.verbs.sync.model import Plan, Problem
from trueup.verbs.sync.plan import make_plan
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.state import State
from trueup.verbs.sync.target_schema.plan_target import TargetState
from trueup.verbs.sync.target_schema.programs import find_programs


def read_or_create(request: SyncRequest, source: Connection, target: Connection, log: Session) -> State:
    """Return the sync of a request, which is recorded on both databases if it was not."""
    known = state.read(target, request.name)
    stored = known or create(request, source, target, log)
    state.check_source(stored, state.identity(source), request.target.name)
    check_scope(request.scope, stored)
    if stored.is_claimed_by_start:
        naming.claim(request, source, target, log, stored, is_new=known is None)
    return stored


def create(request: SyncRequest, source: Connection, target: Connection, log: Session) -> State:
    """Check the plan of a new sync, and record the sync on the target."""
    # Its remarks are for `trueup sync plan` only.
    plan = plan_new(request, source, target, is_brief=True)
    refuse(plan)
    if not plan.tables:
        raise CheckFailed(["there is no table to sync"], cure="check the database and --tables", node=plan.source)
    changelog.check_free(log, request.name)
    sync_id = uuid.uuid4().hex
    chain.origins(source, target, sync_id, map(str, plan.tables), request.target.name)
    state.install(target)
    phase = "making" if request.scope.create_schema else "copying"
    with target.transaction():
        state.create(target, request.scope, sync_id, state.identity(source), plan.tables, phase=phase)
        if not request.scope.create_schema:
            # What is changed on the source from now on is recognized.
            members.record(source, target, request.name, plan.tables)
    return state.expect(target, request.name, state.identity(source), request.target.name)


def plan_new(
    request: SyncRequest,
    source: Connection,
    target: Connection,
    stored: State | None = None,
    *,
    is_brief: bool = False,
) -> Plan:
    """Plan a new sync, or `stored`, whose schema is not created yet; see `TargetState` for `is_brief`.

    A target that is closed to writes is a problem of it.
    """
    scope = request.scope
    if stored is not None:
        check_scope(scope, stored)
        scope = replace(scope, tables=stored.named, exclude_tables=stored.left_out, no_owner=stored.no_owner)
        scope = replace(scope, create_schema=stored.made_schema)
    if scope.create_schema:
        find_programs(source.info.server_version, target.info.server_version, request.pg_bin)
    plan = make_plan(source, target, scope, request.node_names, TargetState(is_brief=is_brief))
    return replace(plan, problems=(*plan.problems, *_closed(request, target, plan)))


def _closed(request: SyncRequest, target: Connection, plan: Plan) -> list[Problem]:
    """Return why guards of a switchover would refuse the rows."""
    names = [str(table) for table in plan.tables]
    for problem in plan.problems:
        # A table with a problem is not in the plan.
        with suppress(TrueupError):
            names.append(display_name(*(part.text for part in parse_table_name(problem.where))))
    return [
        Problem(
            f"node {request.target.name}",
            f"it does not accept writes: {in_use} is in use since the switchover of the sync {name}",
            f"open it first: trueup switchover finish --name {name}{' --reopen-old' if is_finished else ''}",
        )
        for name, in_use, is_finished in state.closed_by(target, names)
    ]


def check_scope(scope: Scope, stored: State) -> None:
    """Raise CheckFailed if the request names other tables than the sync was started with: it would not use them."""
    requested, started = (scope.tables, scope.exclude_tables), (tuple(stored.named), tuple(stored.left_out))
    if any(requested) and requested != started:
        named = ", ".join(stored.named) or "all tables"
        without = f" without {', '.join(stored.left_out)}" if stored.left_out else ""
        raise CheckFailed(
            [f"sync {stored.sync} was started with {named}{without}"],
            cure="run without --tables and --exclude-tables, or drop the sync first: trueup sync drop",
        )


def plan_again(source: Connection, target: Connection, stored: State, names: tuple[str, str]) -> Plan:
    """Plan a started sync again; tables that were changed, created or dropped since are problems of the plan."""
    plan, problems = plan_live(source, target, stored, names, is_brief=False)
    return replace(plan, problems=(*plan.problems, *problems))


def plan_live(
    source: Connection, target: Connection, stored: State, names: tuple[str, str], *, is_brief: bool = True
) -> tuple[Plan, list[Problem]]:
    """Plan a started sync again; return the plan of what can be synced, and the problems of what is set aside."""
    plan = plan_present(source, target, stored, names, is_brief=is_brief)
    known = members.read(target, stored.sync)
    plan, problems = aside.split(plan, known, members.names_by_oid(source), members.partitions(source, known))
    if found := definitions.differing(source, target, known, plan.tables):
        wrong = {problem.where for problem in found}
        problems += found
        plan = aside.only(plan, [table for table in plan.tables if str(table) not in wrong], problems)
    return plan, problems


def plan_present(
    source: Connection, target: Connection, stored: State, names: tuple[str, str], *, is_brief: bool = False
) -> Plan:
    """Plan a started sync again, whichever tables have the names now."""
    scope = scope_of(target, stored)
    is_bare = stored.made_schema and stored.phase != "running"
    return make_plan(source, target, scope, names, TargetState(True, is_bare, is_brief))


def scope_of(target: Connection, stored: State) -> Scope:
    """Return the tables of a started sync: those of its options when it was started, and what was decided since."""
    known = frozenset(members.read(target, stored.sync))
    return Scope(
        stored.sync,
        stored.named,
        stored.left_out,
        members=known,
        left_out=members.left_out(target, stored.sync),
    )


def refuse(plan: Plan) -> None:
    """Raise an error that lists all problems of a plan, if it has any."""
    if plan.problems:
        cures = dict.fromkeys(problem.cure for problem in plan.problems)
        raise CheckFailed([str(problem) for problem in plan.problems], cure="; ".join(cures))
