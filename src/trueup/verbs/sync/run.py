"""The path of a sync: plan, change log, copy, rounds.

`start` ends when all rows are copied, `run` applies later changes in rounds. After a kill, the same call continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from trueup.capture.log.publications import published_problem
from trueup.config.wording import counted
from trueup.engine.choose import EngineStarter
from trueup.engine.failures import known_error, uninterrupted
from trueup.engine.progress import Progress
from trueup.verbs.sync import changelog, check, reshaped, snapshot_copy, state, turn
from trueup.verbs.sync.following import FollowDdl, Following
from trueup.verbs.sync.identity import history
from trueup.verbs.sync.identity.naming import identified, identified_new
from trueup.verbs.sync.link import Opened, open_ends, open_sync
from trueup.verbs.sync.model import LOG_SCHEMA, Outdated, Plan
from trueup.verbs.sync.request import SyncRequest
from trueup.verbs.sync.runner import Runner
from trueup.verbs.sync.target_schema import create_schema
from trueup.verbs.sync.totals import Totals, Until

RETRY_SECONDS = 2.0


def plan(request: SyncRequest) -> Plan:
    """Return what `start` would do; write nothing."""
    request = identified(request, is_new=True)
    with open_ends(request.source, request.target, request.name, read_only=(True, True)) as (source, target):
        stored = state.read(target, request.name)
        if stored is not None and stored.phase != "making":
            check.check_scope(request.scope, stored)
            return check.plan_again(source, target, stored, request.node_names)
        return check.plan_new(request, source, target, stored)


def start(request: SyncRequest, progress: Progress) -> Plan:
    """Start a sync, or continue one whose copy is not finished: plan, schema, change log, copy, indexes.

    The problems of the result are those of tables that were changed meanwhile, and are set aside.
    """
    with ExitStack() as stack:
        source, target = stack.enter_context(open_ends(request.source, request.target, request.name))
        named, request = request.name, identified_new(request, source, target)
        if request.name != named:
            progress.say(f"another sync has the name {named}: this one is {request.name} in its databases")
        stack.enter_context(changelog.sync_lock(source, request.source, request.name))
        log = stack.enter_context(changelog.open_log(request.source))
        stored = check.read_or_create(request, source, target, log)
        if stored.snapshots:
            history.refuse(source, stored, request.node_names)
        epoch = state.take_over(target, request.name)
        if stored.phase == "making":
            create_schema.make_tables(request, source, stored, epoch, progress)
        if stored.phase == "running":
            plan, problems = check.plan_live(source, target, stored, request.node_names)
            check.refuse(plan)
            return replace(plan, problems=tuple(problems))
        # Spark starts while tables are checked.
        starter = EngineStarter(
            request.spark, concurrency_factor=request.concurrency_factor, max_connections=request.max_connections
        )
        refused, ran_on = dict[str, str](), dict[str, int]()
        opened = Opened(request.name, request.source, request.target, source, target, log.connection, log)
        with closing(starter):
            if stored.phase in ("making", "copying"):
                progress.say(f"recording changes of {counted(len(stored.tables), 'table')} on {request.source.name}")
                plan, tables, watched = reshaped.record_changes(request, source, target, log, stored, epoch, progress)
                # The lock did not exist before the change log did.
                stack.enter_context(changelog.sync_lock(source, request.source, request.name))
                if not stored.snapshots:
                    history.reader(request.name).forget(source)
                changelog.wait_for_older_transactions(log, timeout=request.timeout)
                engine = starter.get_with_hand_over(plan.rows)
                refused, ran_on = snapshot_copy.copy_all(
                    request, watched, log, plan, tables, stored, epoch, engine, progress
                )
                opened = replace(opened, checked=watched.checked)
            slots = starter.get(0).slots
        return replace(snapshot_copy.build(request, opened, stored, slots, progress, refused), ran_on=ran_on)


def run(
    request: SyncRequest,
    until: Until,
    progress: Progress,
    heartbeat: Callable[[dict[str, Any]], object],
    follow_ddl: FollowDdl | None = None,
) -> Totals:
    """Run rounds until `until` is reached; `heartbeat` gets the totals every few seconds.

    Tables whose definition was changed are set aside, and the other ones go on; `follow_ddl` changes the target.
    """
    totals, following = Totals(), Following(progress, follow_ddl)
    began = time.monotonic()
    while True:
        try:
            request = identified(request)
            with open_sync(request.source, request.target, request.name) as opened:
                while True:
                    try:
                        link = following.link(opened)
                        totals = replace(totals, aside=link.aside)
                        if problem := published_problem(link.source, f"{LOG_SCHEMA}.pods_{request.name}"):
                            progress.say(problem)
                        with Runner(link, request, progress) as runner:
                            for now in following.rounds(runner, until, totals, began):
                                totals = now
                                heartbeat(totals.as_json())
                                progress.say(totals.text())
                        if not following.has_to_open:
                            if not (until.follow and turn.is_short_stop(link)):
                                return totals
                            break
                    except Outdated as error:
                        progress.say(f"{error.message}: checking all tables again")
            turn.wait_for_turn(request, progress)
        except Exception as error:
            if not until.follow or not turn.is_passing(known := known_error(uninterrupted(error)), totals):
                raise
            # A restart, a failover, a rehearsal of a switchover: nothing is lost, and rounds continue after it.
            progress.say(f"{known}; trying again")
            time.sleep(RETRY_SECONDS)
