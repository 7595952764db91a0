"""The link of a sync: one open session with each end, the plan, and the tables. Rounds and switchovers work on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from trueup.capture.log.publications import ensure_identities, refuse_column_lists
from trueup.capture.triggers.readers import Reader
from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.db.connection import Connection, node_of, one_row
from trueup.db.durable import warn_unsafe
from trueup.db.names import display_name, parse_table_name
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load
from trueup.errors import CheckFailed, QueryError, TrueupError
from trueup.verbs.sync import aside, changelog, check, members, state
from trueup.verbs.sync.identity import chain, history
from trueup.verbs.sync.model import LOG_SCHEMA, REFUSED, STATE_SCHEMA, Plan, Problem, SyncTable, application
from trueup.verbs.sync.silence import silence
from trueup.verbs.sync.state import State

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# How often the triggers of the change log are checked because they were changed meanwhile.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Shape:
    """Fingerprints of the source, which change with what they are of."""

    tables: str
    triggers: str | None
    partitions: str
    # What does not concern the rows of a round: all relations, labels of other types.
    others: str

    def without_triggers(self) -> Shape:
        """Return the fingerprints that the triggers of the change log do not change."""
        return replace(self, triggers=None)


@dataclass(frozen=True)
class Watched:
    """The oids on the source of all tables of a sync, and of the enums in their columns."""

    tables: tuple[int, ...] = ()
    enums: tuple[int, ...] = ()


@dataclass(frozen=True)
class Link:
    """The open link of a sync; `source` and `target` are pinned sessions in autocommit mode."""

    name: str
    # Shared by the sync and its way back.
    id: str
    source_node: Node
    target_node: Node
    source: Connection
    target: Connection
    # A second session with the source, to write while the first one reads in a snapshot.
    marker: Connection
    plan: Plan
    # With their numbers in the change log, parents before children.
    tables: tuple[SyncTable, ...]
    epoch: int
    # When the link was opened.
    shape: Shape
    # What is not in the link, and why: changes of these tables stay in the change log.
    aside: tuple[Problem, ...] = ()
    # The names of all tables of the sync, and what the fingerprints of the source are of.
    names: tuple[str, ...] = ()
    watched: Watched = Watched()
    # The quoted names of all tables of the sync on the target, and their fingerprint.
    target_shape: tuple[list[str], str] = ([], "")

    @property
    def log(self) -> sql.Identifier:
        """The table of the change log."""
        return log_table(self.name)

    @property
    def reader(self) -> Reader:
        """The rounds of the sync, as the change log knows them."""
        return history.reader(self.name)

    @property
    def application(self) -> str:
        """The `application_name` of its sessions."""
        return application(self.name)

    def error_from_server(self, error: BaseException) -> TrueupError:
        """Return an error of either session as a TrueupError with the node that raised it, and the table if known."""
        known = error_of(error, (self.source_node, self.source), (self.target_node, self.target))
        if isinstance(error, psycopg.Error) and error.diag.schema_name and error.diag.table_name:
            known.table = known.table or display_name(error.diag.schema_name, error.diag.table_name)
        return known

    def is_outdated(self) -> bool:
        """Return whether a table of either database was changed since the link was opened."""
        for connection in (self.source, self.target):
            if connection.info.transaction_status != 0:
                connection.execute("ROLLBACK")
        names, shape = self.target_shape
        return (
            read_shape(self.source, self.name, self.watched) != self.shape
            or members.shape(self.target, self.name, names) != shape
        )

    def refused_table(self, error: QueryError) -> str:
        """Return the synced table whose rows the target refused with this error, or "" if it was not that."""
        if error.node != self.target_node.name or error.sqlstate[:2] not in REFUSED or not error.table:
            return ""
        # The server names a partition.
        schema, table = parse_table_name(error.table)
        query = (
            "SELECT n.nspname, c.relname FROM pg_partition_root(to_regclass(%s)) r(oid)"
            " JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace"
        )
        quoted = sql.Identifier(schema.text, table.text).as_string(self.target)
        root = self.target.execute(query, [quoted]).fetchone() or (schema.text, table.text)
        name = display_name(*root)
        return name if name in map(str, self.tables) else ""

    def by_number(self) -> dict[int, SyncTable]:
        """Return the tables by their numbers in the change log."""
        return {table.number: table for table in self.tables}


def log_table(name: str) -> sql.Identifier:
    """Return the table of the change log of the sync `name`."""
    return sql.Identifier(LOG_SCHEMA, f"pods_{name}")


def open_session(node: Node, name: str, *, read_only: bool = False) -> Connection:
    """Open a session of a sync without time-outs."""
    connection = connect(node, application=application(name), read_only=read_only)
    connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
    return connection


def error_of(error: BaseException, *ends: tuple[Node, Connection]) -> TrueupError:
    """Return a driver's error as a TrueupError of the end whose session is broken or failed, else of the last end."""
    failed = [node for node, connection in ends if connection.broken or connection.info.transaction_status == 3]
    return error_from_server(error, node_of(error) or (failed[0] if failed else ends[-1][0]))


@contextmanager
def open_ends(
    source: Node, target: Node, name: str, *, read_only: tuple[bool, bool] = (False, False)
) -> Iterator[tuple[Connection, Connection]]:
    """Open a session with each end; driver errors that leave the block become TrueupErrors."""
    with ExitStack() as stack:
        first = stack.enter_context(open_session(source, name, read_only=read_only[0]))
        second = stack.enter_context(open_session(target, name, read_only=read_only[1]))
        try:
            yield first, second
        except psycopg.Error as error:
            raise error_of(error, (source, first), (target, second)) from error


@dataclass(frozen=True)
class Checked:
    """A plan without problems, and the fingerprints of both databases, which were read before it was made."""

    plan: Plan
    # Without triggers.
    shape: Shape
    # By the quoted names of the tables: see `members.shapes`.
    on_target: Mapping[str, str]


@dataclass(frozen=True)
class Opened:
    """The open sessions of a started sync; this process holds its lock."""

    name: str
    source_node: Node
    target_node: Node
    source: Connection
    target: Connection
    # See `Link`.
    marker: Connection
    # An open session with the change log; without one, `link` opens it.
    log: Session | None = None
    # An earlier plan, which is still the same if no fingerprint has changed; without one, `link` makes it.
    checked: Checked | None = None

    def link(self, *, sets_aside: bool, refused: Mapping[str, str] = MappingProxyType({})) -> Link:
        """Check all tables, and return the link; call it again when tables were changed.

        A table that cannot be synced at present is an error, or with `sets_aside` is left out of the link. `refused`
        are tables whose rows could not be written, and why.
        """
        for connection in (self.source, self.target):
            if connection.info.transaction_status != 0:
                connection.execute("ROLLBACK")
        stored = state.expect(self.target, self.name, state.identity(self.source), self.target_node.name)
        nodes = (self.source_node.name, self.target_node.name)
        # What a move has left must not be repaired in this direction.
        refuse_moved(self.source, self.target, stored.id, nodes)
        history.refuse(self.source, stored, nodes)
        return _link(self, stored, sets_aside=sets_aside, refused=refused)


@contextmanager
def open_sync(source: Node, target: Node, name: str, *, phases: tuple[str, ...] = ("running",)) -> Iterator[Opened]:
    """Open the sessions of a started sync; raise if another process holds the sync lock."""
    with open_ends(source, target, name) as (from_source, to_target):
        stored = state.expect(to_target, name, state.identity(from_source), target.name)
        state.check_finished(stored, target.name, phases)
        with changelog.sync_lock(from_source, source, name), open_session(source, name) as marker:
            yield Opened(name, source, target, from_source, to_target, marker)


@contextmanager
def open_link(source: Node, target: Node, name: str, *, phases: tuple[str, ...] = ("running",)) -> Iterator[Link]:
    """Open the link of a started sync; raise if a table was changed, or another process holds the sync lock."""
    with open_sync(source, target, name, phases=phases) as opened:
        yield opened.link(sets_aside=False)


def refuse_moved(source: Connection, target: Connection, sync_id: str, nodes: tuple[str, str]) -> None:
    """Raise if applications use the target, or do not use the source any more."""
    here, there = state.pointer_state(source, sync_id), state.pointer_state(target, sync_id)
    if there not in (None, "use_next"):
        if here not in (None, "use_next"):
            raise CheckFailed([state.SPLIT.format(*nodes)], cure="see trueup switchover status, and close one of them")
        # Guards would refuse the rows, but not the values of sequences.
        raise CheckFailed(
            [f"applications were moved to {nodes[1]}: the sync must not write to it any more"],
            cure="to move them back: trueup switchover rollback; to end the switchover: trueup switchover finish",
            node=nodes[1],
        )
    if here == "use_next":
        raise CheckFailed(
            [f"{nodes[0]} is not in use any more: the switchover to {nodes[1]} is decided"],
            cure="complete it: trueup switchover execute, or rollback",
            node=nodes[0],
        )


def _link(ends: Opened, stored: State, *, sets_aside: bool, refused: Mapping[str, str]) -> Link:
    name, source, target = stored.sync, ends.source, ends.target
    nodes = (ends.source_node.name, ends.target_node.name)
    # Before the pointer is read: the opening of a database ends the epoch, so this process cannot write after it.
    epoch = state.take_over(target, name)
    refuse_moved(source, target, stored.id, nodes)
    # Before anything is checked: what changes meanwhile ends the first round.
    known = members.read(target, name)
    watched = Watched(tuple(known), tuple(enum.oid for enum in members.enums(source, known)))
    shape, target_names = read_shape(source, name, watched), members.quoted_names(target, known.values())
    target_shape = members.shape(target, name, target_names)
    plan, problems = _plan(ends, stored, shape)
    problems += [
        Problem(str(table), refused[str(table)], "fix the cause, then run it again")
        for table in plan.tables
        if str(table) in refused
    ]
    check.refuse(plan if sets_aside else replace(plan, problems=(*plan.problems, *problems)))
    silence(target, name, epoch, plan.tables, plan.mode)
    chain.record(target, name, epoch, chain.origins(source, target, stored.id, stored.tables, nodes[1]))
    with nullcontext(ends.log) if ends.log else changelog.open_log(ends.source_node) as log:
        changelog.check_owner(log, name, stored.id)
        tables, unrecorded, triggers = _attached(ends, log, watched, plan.tables)
        problems += unrecorded
        wrong = {problem.where for problem in problems}
        tables = [table for table in tables if str(table) not in wrong]
        if plan.is_ordered:
            problems += aside.with_relatives(target, tables, known.values())
            wrong = {problem.where for problem in problems}
            tables = [table for table in tables if str(table) not in wrong]
        if not sets_aside:
            check.refuse(replace(plan, problems=tuple(problems)))
        with state.writing(target, name, epoch):
            for table in members.record(source, target, name, tables):
                changelog.reload(log, name, table.oid, "its columns were changed on the target")
            state.set_aside(target, name, problems)
            names = members.follow_names(target, stored, known, tables)
    history.reader(name).done(ends.marker, stored.mark)
    ensure_identities(target, STATE_SCHEMA)
    refuse_column_lists(source, LOG_SCHEMA)
    warn_unsafe(target, nodes[1])
    state.check_role(target, stored.id, nodes[1])
    if not plan.is_ordered:
        target.execute("SET session_replication_role = replica")
    return Link(
        name, stored.id, ends.source_node, ends.target_node, source, target, ends.marker,
        aside.only(plan, tables, problems), tuple(tables), epoch, replace(shape, triggers=triggers), tuple(problems),
        names, watched, (target_names, target_shape),
    )  # fmt: skip


def _attached(
    ends: Opened, log: Session, watched: Watched, tables: Sequence[SyncTable]
) -> tuple[list[SyncTable], list[Problem], str | None]:
    """Return what `changelog.attached` does, and the fingerprint of the triggers that it checked.

    A trigger that is disabled after its check differs from the fingerprint, also if ENABLE TRIGGER follows (its state
    was ENABLE ALWAYS): the first round notices it. Where the check has created triggers, it is repeated.
    """
    for _ in range(_ATTEMPTS):
        triggers = read_shape(ends.source, ends.name, watched).triggers
        recorded, problems = changelog.attached(log, ends.name, tables)
        if read_shape(ends.source, ends.name, watched).triggers == triggers:
            break
    return recorded, problems, triggers


def _plan(ends: Opened, stored: State, shape: Shape) -> tuple[Plan, list[Problem]]:
    """Return the plan of a started sync, and the problems of what is set aside."""
    known = ends.checked
    if (
        known is not None
        and shape.without_triggers() == known.shape
        and members.shapes(ends.target, known.on_target) == known.on_target
    ):
        return known.plan, []
    return check.plan_live(ends.source, ends.target, stored, (ends.source_node.name, ends.target_node.name))


def read_shape(source: Connection, name: str, watched: Watched) -> Shape:
    """Return the fingerprints of the source."""
    return Shape(*one_row(source.execute(*shape_query(name, watched))))


def shape_query(name: str, watched: Watched) -> tuple[LiteralString, dict[str, Any]]:
    """Return the query for the fingerprints of the source: see `Shape`."""
    values = {"oids": list(watched.tables), "enums": list(watched.enums), "prefix": f"{LOG_SCHEMA}_{name}_"}
    return load("trueup.verbs.sync", "round.sql")["shape"], values
