"""Phase `prepare`: all that can be done before the pause.

Pointers, guards, the reverse change log, rounds until few keys are left, schemas compared, most of the proof.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime

from psycopg import sql

from trueup.config.model import Node
from trueup.db.catalog import read_server
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_keys import TableName
from trueup.db.names import parse_table_name
from trueup.db.node import connect
from trueup.engine.failures import environment_errors
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed
from trueup.rows.comparable import check_servers
from trueup.rows.write import disabled_triggers as triggers
from trueup.task import materialized
from trueup.verbs.switchover import gate, guard, pointer, way_back
from trueup.verbs.switchover.accepted import parse_accepted
from trueup.verbs.switchover.compared import Compared, schema_differences
from trueup.verbs.switchover.fence import APPLICATION_NAME, Fence, open_session
from trueup.verbs.switchover.hold import Hold, Reader
from trueup.verbs.switchover.proof import Prover
from trueup.verbs.switchover.ready import Ready
from trueup.verbs.switchover.request import DIGEST, KEYS, VALIDATED, WAY_BACK_LIMIT, Route, SwitchoverRequest
from trueup.verbs.switchover.role_rights import Side
from trueup.verbs.switchover.rounds import Rounds
from trueup.verbs.switchover.validated import Validated, digested_tables, find
from trueup.verbs.sync import changelog, check, ending, members, state
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.identity import history
from trueup.verbs.sync.link import Link, open_link
from trueup.verbs.sync.model import Plan
from trueup.verbs.sync.plan import outside
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.runner import Runner
from trueup.verbs.sync.target_schema.not_copied import remarks_on

# A prepared transaction that is older is forgotten, or the program that has to end it is down.
_PREPARED_SECONDS = 5.0
_BETWEEN = 0.05


def plan_sync(source: Node, target: Node) -> Plan:
    """Return the plan of a sync of the whole database; write nothing."""
    return sync.plan(SyncRequest(source, target))


@environment_errors()
def prepare_only(request: SwitchoverRequest) -> tuple[str, int]:
    """Create pointers and guards in both databases; return the node in use and the number of new guards.

    Applications can use the pointer from then on.
    """
    request = request.identified()
    with open_session(request.first) as first, open_session(request.second) as second:
        pointer.refuse_split(pointer.read(first, request.sync), pointer.read(second, request.sync))
        known = state.read(second, request.sync)
        if known is None:
            cure = "start it first: trueup sync start"
            raise CheckFailed([f"the sync {request.sync} into {request.second.name} does not exist"], cure=cure)
        state.check_finished(known, request.second.name)
        _check_names(request.sync, known.id, first, request.first, request.second)
        _refuse_went_back(request, known, first, second)
        _create_pointers(request, known.id, first, second)
        current, _ = pointer.check_both(
            pointer.read(first, request.sync), pointer.read(second, request.sync), request.sync
        )
        if request.way_back_limit is not None:
            with changelog.open_log(request.second) as log:
                owner = changelog.owner(log, request.sync)
                if owner is not None and owner.id == known.id:
                    changelog.set_limit(log, request.sync, request.way_back_limit)
        names = [(schema.text, table.text) for schema, table in map(parse_table_name, known.tables)]
        guards = sum(
            guard.install(connection, names, request.sync, timeout=request.timeout) for connection in (first, second)
        )
        return request.first.name if current.is_in_use else request.second.name, guards


@contextmanager
def prepare(
    request: SwitchoverRequest, route: Route, fence: Fence, target: Connection, attempt: str, progress: Progress
) -> Iterator[Ready]:
    """Do all that can be done before the pause, and raise here rather than inside of the pause."""
    source = fence.connection
    with ExitStack() as stack:
        sync_request = SyncRequest(
            route.source, route.target, Scope(request.sync), timeout=request.timeout, is_identified=True
        )
        link = _take_over(sync_request, stack, progress, is_short=not route.decides)
        _check_names(request.sync, link.id, link.source, link.source_node, link.target_node)
        _check_encodings(link)
        validated = _validation(request, link, stack) if request.proof == VALIDATED else None
        is_back = route.source is request.second
        pointer.check_not_copied(source, link.id, [table.oid for table in link.tables], route.source.name)
        _create_pointers(request, link.id, *((target, source) if is_back else (source, target)))
        current, _ = pointer.check_both(
            pointer.read(source, request.sync), pointer.read(target, request.sync), request.sync
        )
        pointer.check_not_closed(source, request.sync, (table.oid for table in link.tables), route.source.name)
        fence.claim(request.sync)
        pointer.begin_attempt(source, request.sync, attempt)
        names = [table.name for table in link.tables]
        _wait_for_prepared(source, min(request.budget, _PREPARED_SECONDS))
        for connection in (source, target):
            guard.install(connection, names, request.sync, timeout=request.timeout)
        guard.lift(target, request.sync, timeout=request.timeout)
        _prepare_way_back(request, link, is_back=is_back)
        runner = stack.enter_context(Runner(link, sync_request, progress))
        prover = stack.enter_context(Prover(route.source, route.target, link.tables, jobs=request.jobs))
        rounds = stack.enter_context(Rounds(link, runner, prover))
        rounds.catch_up(request.close_keys, request.timeout)
        denied: list[str] = []
        left = _refresh(link, progress, denied, is_back=is_back)
        rounds.catch_up(request.close_keys, request.timeout)
        enable = _enable(source, target, link, names)
        with _enabled(target, enable, request.timeout):
            fingerprints = _fingerprint(source, names), _fingerprint(target, names)
            accepted = _compare_schemas(request, source, target, link, denied)
        settled = _settle(source, target, link, names)
        if request.proof == KEYS:
            progress.say("comparing all tables before the pause")
            gate.refuse([gate.condition(gate.ROWS, rounds.prove_all())])
            rounds.catch_up(request.close_keys, request.timeout)
        if validated is not None:
            progress.say(f"waiting until the validation {validated.name} has caught up")
            _await_validation(request, validated, rounds, pointer.closed_since(target, request.sync))
        runner.copy_sequences()
        runner.copy_large_objects()
        token = secrets.token_hex(16) if route.decides else ""
        # Deleted entries of the log that a crash brings back are applied once more. The rows on the target are on the
        # disk before the decision: each round commits durably.
        link.source.execute("SET synchronous_commit = off")
        keeper = stack.enter_context(connect(route.source, application=APPLICATION_NAME))
        hold = Hold(route.source, _readers(request, link, prover, keeper))
        stack.callback(hold.release)
        ready = Ready(
            request, attempt, token, fence, hold, target, link, prover, rounds, current.next_address,
            (*accepted, *left), fingerprints, settled, enable, validated, _outside(source, link),
            tuple(remarks_on(source, target, creates=False, is_superuser=True)),
        )  # fmt: skip
        ready.warm_up()
        yield ready


def _outside(source: Connection, link: Link) -> dict[int, tuple[str, str]]:
    """Return the tables of the source that are not in the sync, by oid, and who decided that."""
    stored = state.read(link.target, link.name)
    return outside(source, check.scope_of(link.target, stored)) if stored is not None else {}


def _refresh(link: Link, progress: Progress, denied: list[str], *, is_back: bool) -> list[str]:
    """Refresh the materialized views of the new database and collect statistics; return what was not done.

    A view whose owner may not read what it selects is added to `denied`: the gate names it, and an owner that differs.

    A move back should not wait for views: they are as old as the switchover.
    """
    names = [table.name for table in link.tables]
    left = materialized.analyze_stale(link.target, link.target_node, names, link.application, progress)
    stored = state.read(link.target, link.name)
    if stored is None or stored.named:
        return left
    if is_back:
        views = ", ".join(materialized.populated(link.source))
        return [*left, f"not refreshed on {link.target_node.name}: {views}"] if views else left
    return left + materialized.refresh(link.source, link.target_node, link.application, progress, denied)


def _take_over(request: SyncRequest, stack: ExitStack, progress: Progress, *, is_short: bool) -> Link:
    """Stop the running sync, and open its link instead; stop one that starts at the same moment as well."""
    until = time.monotonic() + request.timeout
    while True:
        if ending.stop(request, timeout=request.timeout, is_short=is_short):
            progress.say("stopped the running sync")
        try:
            return stack.enter_context(open_link(request.source, request.target, request.name))
        except changelog.AlreadyRunning:
            if time.monotonic() > until:
                raise


def _refuse_went_back(request: SwitchoverRequest, known: state.State, first: Connection, second: Connection) -> None:
    """Raise if a failover or a restore has stopped the rounds: guards would not make the databases equal again."""
    names = (request.first.name, request.second.name)
    if state.pointer_state(second, known.id) in (None, "use_next"):
        history.refuse(first, known, names)
    elif (back := state.read(first, request.sync)) is not None:
        history.refuse(second, back, names[::-1])


def _wait_for_prepared(source: Connection, seconds: float) -> None:
    """Wait until the prepared transactions of this moment have ended; refuse one that is older than `seconds`.

    Later ones do not matter: with guards, the fence waits for those that write, as for all writers.
    """
    seen = set(gate.prepared_names(gate.query_prepared(source)))
    # Names may be used again: what was there at the beginning is refused by then.
    until = time.monotonic() + seconds
    while seen:
        old = gate.prepared_names(source.execute(gate.statement("prepared_before"), {"seconds": seconds}))
        gate.refuse([gate.condition(gate.PREPARED, old)])
        if time.monotonic() > until:
            return
        time.sleep(_BETWEEN)
        seen &= set(gate.prepared_names(gate.query_prepared(source)))


def _create_pointers(request: SwitchoverRequest, sync_id: str, first: Connection, second: Connection) -> None:
    """Create the pointers of both databases, or update their names and addresses."""
    given = [pointer.application_address(text) for text in (request.first_address, request.second_address)]
    addresses = [text or pointer.address_of(side) for text, side in zip(given, (first, second), strict=True)]
    names = (request.first.name, request.second.name)
    pair = pointer.pair_of(first, second)
    for connection, node in ((first, names[0]), (second, names[1])):
        stored = pointer.read(connection, request.sync)
        if stored is not None and not stored.is_alone:
            pointer.check_pair(stored, pair, node)
        pointer.install(connection)
    for connection, other, own_names in ((first, 1, names), (second, 0, names[::-1])):
        pointer.create(
            *(connection, request.sync, sync_id),
            pair=pair,
            names=own_names,
            address=addresses[other],
            is_first=connection is first,
            given=bool(given[other]),
        )


def _check_names(name: str, sync_id: str, source: Connection, source_node: Node, target_node: Node) -> None:
    """Raise if the name is used by another sync that would share the change log or the state of the way back."""
    with changelog.open_log(target_node) as log:
        changelog.check_owner(log, name, sync_id)
    stored = state.read(source, name)
    if stored is not None and stored.id != sync_id:
        raise CheckFailed(
            [f"another sync {name} writes to this database: the way back would replace its state"],
            cure="drop one of the two syncs, and start it with another name: --name",
            node=source_node.name,
        )


def _check_encodings(link: Link) -> None:
    """Raise if no proof is possible: digests of the same text differ in two encodings."""
    sides = {link.source_node.name: link.source, link.target_node.name: link.target}
    reasons = check_servers({name: read_server(connection) for name, connection in sides.items()})
    if reasons:
        raise CheckFailed(reasons, cure="sync the database into one with the same encoding, and switch to that one")


def _prepare_way_back(request: SwitchoverRequest, link: Link, *, is_back: bool) -> None:
    """Create a change log on the new database, and on the old one the state of a sync into it."""
    with changelog.open_log(link.target_node) as log:
        owner = changelog.Owner(link.id, state.identity(link.source))
        changelog.install(log, link.name, owner, link.tables, timeout=request.timeout)
        if not is_back:
            # It grows as long as no rounds run back, and must not fill the disk of the database in use.
            if request.way_back_limit is not None:
                changelog.set_limit(log, link.name, request.way_back_limit)
            elif changelog.limit(log, link.name) is None:
                changelog.set_limit(log, link.name, WAY_BACK_LIMIT)
    state.install(link.source)
    back, known = state.read(link.source, link.name), state.read(link.target, link.name)
    names = [str(table) for table in link.tables]
    assert known is not None
    if back is None:
        # What the user excluded is excluded on the way back too.
        scope = Scope(link.name, known.named, known.left_out)
        history.reader(link.name).forget(link.target)
        state.create(link.source, scope, link.id, state.identity(link.target), link.tables, phase="running")
        back = state.read(link.source, link.name)
    assert back is not None
    if sorted(back.tables) != sorted(names):
        # Tables were added, removed or renamed since an earlier attempt.
        state.set_tables(link.source, link.name, names, back.left_out)
    members.record(link.target, link.source, link.name, members.turned(link.tables), no_others=True)
    found = outside(link.target, check.scope_of(link.source, back))
    others = {oid: name for oid, (name, why) in found.items() if not why}
    members.leave_out(link.source, link.name, others, f"not in the sync before {link.target_node.name} came into use")


def _enable(source: Connection, target: Connection, link: Link, names: list[TableName]) -> tuple[sql.Composed, ...]:
    """Return the statements that set the triggers which the sync has disabled as on the source."""
    return tuple(triggers.statements(triggers.as_on(source, triggers.recorded(target, link.name), names)))


@contextmanager
def _enabled(target: Connection, enable: tuple[sql.Composed, ...], timeout: float) -> Iterator[None]:
    """Run the block in a transaction of the target in which the triggers are as in the pause; roll it back.

    An autovacuum of these tables, which the pause would wait for, is ended by this.
    """

    def set_states() -> None:
        for statement in enable:
            target.execute(statement)

    triggers.begin(target, set_states, timeout)
    try:
        yield
    finally:
        if not target.closed:
            target.execute("ROLLBACK")


def _fingerprint(connection: Connection, tables: list[TableName]) -> str:
    return str(one_value(gate.query_fingerprint(connection, tables)))


def _compare_schemas(
    request: SwitchoverRequest, source: Connection, target: Connection, link: Link, denied: list[str]
) -> tuple[str, ...]:
    """Raise if the schemas differ, or views are `denied`; return the differences that were accepted."""
    known = state.read(link.target, link.name)
    refused, remarks = schema_differences(
        Side(link.source_node.name, source),
        Side(link.target_node.name, target),
        Compared(
            [table.name for table in link.tables],
            [(sequence.schema, sequence.name) for sequence in link.plan.sequences],
            is_whole=known is not None and not known.named,
        ),
        parse_accepted(request.accept_schema),
    )
    gate.refuse([gate.condition(gate.SCHEMA, [*refused, *denied])])
    return tuple(remarks)


def _validation(request: SwitchoverRequest, link: Link, stack: ExitStack) -> Validated:
    """Return the validation that proves the rows; raise if it cannot."""
    validated = stack.enter_context(find(request, link))
    validated.check_suitable()
    return validated


def _await_validation(request: SwitchoverRequest, validated: Validated, rounds: Rounds, since: datetime) -> None:
    """Wait until all rows were scrubbed, all foreign keys checked, and few changes are left to validate."""
    validated.wait_for_scrubs(since, timeout=request.timeout, run_round=rounds.round)
    gate.refuse([gate.condition(gate.REFERENCES, rounds.check_references())])
    validated.catch_up(timeout=request.timeout, run_round=rounds.round)
    rounds.catch_up(request.close_keys, request.timeout)


def _settle(source: Connection, target: Connection, link: Link, names: list[TableName]) -> tuple[gate.Condition, ...]:
    """Check the conditions that cannot change without the catalog, whose fingerprint the gate compares."""
    bare = [
        f"{schema}.{table}" for node in (source, target) for schema, table in guard.unguarded(node, names, link.name)
    ]
    guarded = gate.condition(gate.GUARDED, [f"{name} has no guard" for name in bare])
    back = gate.condition(gate.WAY_BACK, way_back.problems(link, source, target), way_back.description(link))
    gate.refuse([guarded, back])
    return guarded, back


def _readers(request: SwitchoverRequest, link: Link, prover: Prover, keeper: Connection) -> list[Reader]:
    """Return the sessions that read the source inside of the pause, with their tables."""
    # The first one keeps its locks until the decision: a TRUNCATE … RESTART IDENTITY locks sequences.
    readers = [Reader(keeper, link.tables), Reader(link.source, link.tables)]
    compared = {DIGEST: list(link.tables), VALIDATED: digested_tables(link.tables)}
    return readers + [Reader(session, compared.get(request.proof, [])) for session in prover.source.connections]
