"""Both ends of a sync, open: the sessions, the tables, who is allowed to write. Rounds and switchovers work on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from trueup.capture.triggers import tubes
from trueup.db.connection import Connection, one_row
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.switchover import pointer
from trueup.verbs.sync import changelog, marks
from trueup.verbs.sync.model import LOG_SCHEMA, REPLICA, Plan, Problem, SyncTable
from trueup.verbs.sync.plan import Wanted, make_plan

if TYPE_CHECKING:
    from psycopg import sql

    from trueup.config.model import Node
    from trueup.verbs.sync.round import Changes


@dataclass
class Link:
    """A sync at work: `source` and `target` are pinned sessions in autocommit, held by whoever carries changes over."""

    name: str
    source_node: Node
    target_node: Node
    source: Connection
    target: Connection
    plan: Plan
    # With their numbers in the change log, parents before children.
    tables: tuple[SyncTable, ...]
    epoch: int
    # What the source's tables were when the link was opened.
    shape: str = ""
    # Told of a round when its rows are read, while the target writes them: the session with the source is free then.
    ahead: Callable[[Changes], None] | None = None
    # Asked of every round when the target has its rows and the view of the source is still open; may refuse it.
    check: Callable[[Changes], None] | None = None
    # Keys that a round may carry directly, where it is not the usual number.
    direct: int | None = None

    @property
    def log(self) -> sql.Identifier:
        """The table of the change log."""
        return sql.Identifier(LOG_SCHEMA, f"pods_{self.name}")

    @property
    def application(self) -> str:
        """What its sessions are called."""
        return application(self.name)

    def named(self, error: BaseException) -> TrueupError:
        """An error of either side as one of ours, with the node that spoke."""
        return named_of(error, (self.source_node, self.source), (self.target_node, self.target))

    def by_number(self) -> dict[int, SyncTable]:
        """The tables by their numbers in the change log."""
        return {table.number: table for table in self.tables}


def application(name: str) -> str:
    """What the sessions of a sync are called on both servers."""
    return f"trueup sync {name}"


def open_session(node: Node, name: str, *, read_only: bool = False) -> Any:
    """A session that may take its time."""
    connection = connect(node, application=application(name), read_only=read_only)
    connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
    return connection


def named_of(error: BaseException, *ends: tuple[Node, Any]) -> TrueupError:
    """A driver's error as one of ours: of the end whose session is lost or in trouble, else of the last one."""
    trouble = [node for node, connection in ends if connection.broken or connection.info.transaction_status == 3]
    return error_from_server(error, trouble[0] if trouble else ends[-1][0])


@contextmanager
def open_ends(
    source: Node, target: Node, name: str, *, read_only: tuple[bool, bool] = (False, False)
) -> Iterator[tuple[Any, Any]]:
    """A session with each end; errors that leave the block are ours."""
    with ExitStack() as stack:
        here = stack.enter_context(open_session(source, name, read_only=read_only[0]))
        there = stack.enter_context(open_session(target, name, read_only=read_only[1]))
        try:
            yield here, there
        except psycopg.Error as error:
            raise named_of(error, (source, here), (target, there)) from error


@contextmanager
def open_link(source: Node, target: Node, name: str, *, phases: tuple[str, ...] = ("running",)) -> Iterator[Link]:
    """Both ends of a sync that was started before; refuses if a table has changed, or somebody else is at it."""
    with open_ends(source, target, name) as (here, there):
        status = marks.expect(there, name, marks.identity(here), target.name)
        if status.phase not in phases:
            raise CheckFailed(
                [f"the sync {name} is not copied yet: it is {status.phase}"],
                cure="go on with: trueup sync start",
                node=target.name,
            )
        changelog.take(here, source)
        try:
            yield _link(source, target, status, here, there)
        finally:
            changelog.let_go(here)


def _link(source: Node, target: Node, status: marks.Status, here: Connection, there: Connection) -> Link:
    name = status.sync
    found = pointer.read(there, name)
    if found is not None and found.is_in_use:
        # Guards would refuse the rows; sequences have none.
        raise CheckFailed(
            [f"applications were moved to {target.name}: nothing must be carried over to it any more"],
            cure="the way back is trueup switchover rollback; trueup switchover finish ends it",
            node=target.name,
        )
    plan = check_plan(here, there, status, (source.name, target.name))
    with changelog.open_log(source) as log:
        # Partitions that came since get their triggers; those that came or went with rows are read anew.
        tubes.cover(log, name)
        tables = changelog.attached(log, name, plan.tables)
    link = Link(name, source, target, here, there, plan, tables, marks.take_over(there, name))
    link.shape = read_shape(link)
    if plan.mode == REPLICA:
        there.execute("SET session_replication_role = replica")
    return link


def plan_again(source: Connection, target: Connection, status: marks.Status, names: tuple[str, str]) -> Plan:
    """The plan of a sync that has begun, made again: what was changed, made or dropped since is a problem by name."""
    bare = status.made_schema and status.phase != "running"
    wanted = Wanted(status.sync, status.named, status.left_out, is_begun=True, is_bare=bare)
    plan = make_plan(source, target, wanted, names)
    known = {str(table) for table in plan.tables} | {problem.where for problem in plan.problems}
    since = [
        Problem(str(table), "it was made after the sync began, and is not in it", "drop the sync and start again")
        for table in plan.tables
        if str(table) not in status.tables
    ]
    since += [
        Problem(name, "it was in the sync and is gone, or was given another name", "drop the sync and start again")
        for name in status.tables
        if name not in known
    ]
    return replace(plan, problems=(*plan.problems, *since))


def check_plan(source: Connection, target: Connection, status: marks.Status, names: tuple[str, str]) -> Plan:
    """The same, where a problem is an error."""
    plan = plan_again(source, target, status, names)
    refuse(plan)
    return plan


def refuse(plan: Plan) -> None:
    """Raise an error that lists all problems of a plan, if it has any."""
    if plan.problems:
        cures = dict.fromkeys(problem.cure for problem in plan.problems)
        raise CheckFailed([str(problem) for problem in plan.problems], cure="; ".join(cures))


def shape_query(link: Link) -> tuple[Any, dict[str, Any]]:
    """The statement that tells whether the source's tables are what they were."""
    oids = [table.oid for table in link.tables]
    return load("trueup.verbs.sync", "round.sql")["shape"], {"oids": oids, "prefix": f"{LOG_SCHEMA}_{link.name}_"}


def read_shape(link: Link) -> str:
    """What the source's tables and our triggers on them are now."""
    row = one_row(link.source.execute(*shape_query(link)))
    return str(row[0])
