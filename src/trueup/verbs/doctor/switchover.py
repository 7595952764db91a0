"""Checks of a switchover between two nodes: privileges, versions, the plan of its sync, long transactions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from trueup.config.model import Node
from trueup.config.wording import counted
from trueup.db.node import error_from_server
from trueup.db.statements import load
from trueup.errors import TrueupError
from trueup.verbs.doctor.guarded import Background, guarded
from trueup.verbs.doctor.model import DoctorRequest, Finding, fail, failed, ok, warn
from trueup.verbs.doctor.nodes import Reached
from trueup.verbs.switchover.prepare import plan_sync

CHECK = "switchover"
_PLAN_SECONDS = 60.0
# A transaction that is open for more seconds would use up the default budget.
LONG_SECONDS = 5.0


def check(request: DoctorRequest, reached: Reached) -> Iterator[Finding]:
    """Yield findings about each node, then about the plan."""
    names = request.switchover
    if not names:
        return
    known = {node.name: node for node in request.nodes}
    missing = [name for name in names if name not in known]
    if len(names) != 2 or missing:
        where = ",".join(names)
        cure = "name two nodes of the configuration: --switchover n1,n2"
        yield fail(
            CHECK, where, f"node {missing[0]} is not configured" if missing else "exactly two nodes are required", cure
        )
        return
    for position, name in enumerate(names):
        if name not in reached.facts:
            yield fail(CHECK, name, "not checked, because the node does not answer", "fix the connection above first")
            continue
        yield from guarded(CHECK, name, partial(_node, reached, name, is_source=not position))
    if all(name in reached.facts for name in names):
        yield from guarded(CHECK, ",".join(names), lambda: _plan(known[names[0]], known[names[1]]))


def _node(reached: Reached, name: str, *, is_source: bool) -> Iterator[Finding]:
    """Yield findings about privileges and settings of one node."""
    control = reached.controls[name]
    try:
        row: Any = control.connection.execute(
            load("trueup.verbs.doctor", "facts.sql")["switchover"], {"long": LONG_SECONDS}
        ).fetchone()
    except Exception as error:
        raise error_from_server(error, control.node) from None
    version, in_recovery, may_create, is_durable, prepared, long_transactions = row
    if version < 140000:
        yield fail(CHECK, name, f"PostgreSQL {version // 10000} is too old", "upgrade to PostgreSQL 14 or newer")
    if in_recovery:
        yield fail(CHECK, name, "the node is a standby and cannot be written", "name the primary")
    if not may_create:
        cure = "GRANT CREATE ON DATABASE … to the role, or use the owner of the database"
        yield fail(CHECK, name, "the role cannot create the schema trueup", cure)
    else:
        yield ok(CHECK, name, "the role can create the schema trueup")
    if not is_durable:
        cure = "set fsync = on: otherwise a crash of the server can lose the commit of a switchover"
        yield warn(CHECK, name, "commits do not wait for the disk (fsync = off)", cure)
    for gid in (prepared or ()) if is_source else ():
        cure = f"COMMIT PREPARED or ROLLBACK PREPARED '{gid}'"
        yield fail(CHECK, name, f"prepared transaction {gid} blocks a switchover", cure)
    for session in (long_transactions or ()) if is_source else ():
        cure = "end the transaction before the switchover: a writer that exceeds the budget aborts it"
        yield warn(CHECK, name, f"{session}: its transaction is open for more than {LONG_SECONDS:g} s", cure)


def _plan(source: Node, target: Node) -> Iterator[Finding]:
    """Yield the problems of the plan of the sync."""
    where = f"{source.name},{target.name}"
    try:
        plan = Background(lambda: plan_sync(source, target)).result(_PLAN_SECONDS)
    except TrueupError as error:
        yield failed(CHECK, where, error)
        return
    for problem in plan.problems:
        yield fail(CHECK, where, str(problem), problem.cure)
    if plan.is_ordered:
        cure = "no action needed; GRANT SET ON PARAMETER session_replication_role to the role would be faster"
        yield warn(CHECK, target.name, "rows are written in the order of foreign keys, which is slower", cure)
    if not plan.problems:
        yield ok(
            CHECK,
            where,
            f"can be moved: {counted(len(plan.tables), 'table')}, {counted(len(plan.sequences), 'sequence')}",
        )
