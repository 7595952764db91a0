"""Would a switchover between two nodes work: rights, versions, the plan of its sync, who would hold up the pause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trueup.config.model import Node
from trueup.db.node import error_from_server
from trueup.db.statements import load
from trueup.errors import TrueupError
from trueup.verbs.doctor.guarded import Background, guarded
from trueup.verbs.doctor.model import Finding, fail, failed, ok, warn
from trueup.verbs.doctor.nodes import Met
from trueup.verbs.doctor.request import DoctorRequest
from trueup.verbs.switchover.prepare import plan_sync

CHECK = "switchover"
_SECONDS_TO_PLAN = 60.0
# A transaction that is open for longer would use up the usual budget.
LONG = 5.0


def check(request: DoctorRequest, met: Met) -> Iterator[Finding]:
    """The two nodes each, then the plan."""
    names = request.switchover
    if not names:
        return
    known = {node.name: node for node in request.nodes}
    missing = [name for name in names if name not in known]
    if len(names) != 2 or missing:
        where = ",".join(names)
        cure = "name two nodes of the configuration: --switchover n1,n2"
        yield fail(CHECK, where, f"there is no node {missing[0]}" if missing else "two nodes are needed", cure)
        return
    for place, name in enumerate(names):
        if name not in met.facts:
            yield fail(CHECK, name, "not checked, because it does not answer", "see its line above")
            continue
        yield from guarded(CHECK, name, lambda name=name, place=place: _node(met, name, is_source=not place))  # type: ignore[misc]
    if all(name in met.facts for name in names):
        yield from guarded(CHECK, ",".join(names), lambda: _plan(known[names[0]], known[names[1]]))


def _node(met: Met, name: str, *, is_source: bool) -> Iterator[Finding]:
    """Rights and circumstances of one node."""
    control = met.controls[name]
    try:
        row: Any = control.connection.execute(
            load("trueup.verbs.doctor", "facts.sql")["switchover"], {"long": LONG}
        ).fetchone()
    except Exception as error:
        raise error_from_server(error, control.node) from None
    version, recovery, may_make, log_stays, prepared, long = row
    if version < 140000:
        yield fail(CHECK, name, f"PostgreSQL {version // 10000} is too old", "upgrade to PostgreSQL 14 or newer")
    if recovery:
        yield fail(CHECK, name, "it is a standby, which takes no triggers and no rows", "name the primary")
    if not may_make:
        cure = "GRANT CREATE ON DATABASE … to the role, or let the database's owner do it"
        yield fail(CHECK, name, "the role may not make the schema trueup", cure)
    else:
        yield ok(CHECK, name, "the role may make the schema trueup")
    if not log_stays:
        cure = "a crash of the server could take a decision back: set synchronous_commit = on, fsync = on"
        yield warn(CHECK, name, "the server does not wait for the disk at a commit", cure)
    for gid in (prepared or ()) if is_source else ():
        cure = f"COMMIT PREPARED or ROLLBACK PREPARED '{gid}'"
        yield fail(CHECK, name, f"the prepared transaction {gid} keeps the gate closed", cure)
    for who in (long or ()) if is_source else ():
        cure = "end it before the switchover: a writer that stays past the budget makes it abort"
        yield warn(CHECK, name, f"{who}: its transaction is open for more than {LONG:g} s", cure)


def _plan(source: Node, target: Node) -> Iterator[Finding]:
    """The plan of the sync says what cannot be handled, by name."""
    where = f"{source.name},{target.name}"
    try:
        plan = Background(lambda: plan_sync(source, target)).result(_SECONDS_TO_PLAN)
    except TrueupError as error:
        yield failed(CHECK, where, error)
        return
    for problem in plan.problems:
        yield fail(CHECK, where, str(problem), problem.cure)
    if plan.is_ordered:
        cure = "nothing has to be done; GRANT SET ON PARAMETER session_replication_role to the role would be faster"
        yield warn(CHECK, target.name, "rows are written in the order of foreign keys, which is slower", cure)
    if not plan.problems:
        yield ok(CHECK, where, f"{len(plan.tables)} tables and {len(plan.sequences)} sequences can be moved")
