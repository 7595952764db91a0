"""Which subscriptions get what a repair writes, and whether one of them would stop.

A repair brings each of its nodes to the wanted state itself. If a change is replicated to another of these nodes as
well, an inserted row exists there already, and the subscription stops with a duplicate key. So nodes are written under
a replication origin, and subscriptions with `origin = none` do not get the changes. A subscription belongs to a written
node if it uses one of its slots and one of its publications: the address in a subscription can be read by superusers
only, and may name the server in another way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import dict_row

from trueup.db.names import display_part
from trueup.db.snapshot import Control
from trueup.db.statements import load
from trueup.rows.spec import TableSpec
from trueup.rows.write.origin import FUNCTIONS
from trueup.verbs.repair.lag import PATIENCE, slots_behind
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.request import Replicate

_ORIGIN_SINCE = 160000


@dataclass(frozen=True)
class Replication:
    """The nodes that are written under a replication origin, what is replicated, and reasons not to write."""

    under_origin: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Subscription:
    """A subscription of a node."""

    node: str
    name: str
    slot: str
    publications: frozenset[str]
    # Whether it has `origin = none`.
    local_only: bool
    # Whether it fills the table.
    has_table: bool


@dataclass(frozen=True)
class _Node:
    """A node and what it replicates."""

    name: str
    version: int
    # The plugins of its logical slots.
    plugins: Mapping[str, str]
    # Whether a publication publishes inserted rows of the table; None: it does not contain the table.
    publications: Mapping[str, bool | None]
    # Why no replication origin is used; "" if one is.
    without_origin: str

    @property
    def is_published(self) -> bool:
        """Whether a publication contains the table."""
        return any(inserts is not None for inserts in self.publications.values())

    def feeds(self, subscription: _Subscription) -> bool:
        """Return whether a subscription fills the table of its node from this node."""
        published = any(self.publications.get(name) is not None for name in subscription.publications)
        return subscription.slot in self.plugins and published and subscription.has_table

    def is_known(self, subscription: _Subscription) -> bool:
        """Return whether a subscription is one of this node: several nodes may have slots of the same name."""
        return subscription.publications <= self.publications.keys()

    def why_replicated(self, subscription: _Subscription) -> str:
        """Return why a subscription gets what is written; "" if it does not."""
        if self.version < _ORIGIN_SINCE:
            return "PostgreSQL before 16 replicates changes of all origins"
        return self.without_origin if subscription.local_only else "origin = any"

    def why_stopped(self, subscription: _Subscription) -> str:
        """Return why an inserted row stops a subscription; "" if it does not."""
        published = any(self.publications.get(name) for name in subscription.publications)
        return self.why_replicated(subscription) if published else ""


_Pair = tuple[_Node, _Subscription]


def check_replication(
    controls: Sequence[Control],
    specs: Mapping[str, TableSpec],
    planned: Mapping[str, Mapping[Act, int]],
    replicate: Replicate,
    *,
    until: float,
) -> Replication:
    """Return which nodes are written under a replication origin, and which subscriptions get what is written.

    Waits for subscriptions between the nodes that have changes to apply, until the monotonic clock shows `until`.
    """
    written = {node for node, acts in planned.items() if any(acts.values())}
    if not written:
        return Replication()
    nodes = [_node(control, specs[control.node.name], replicate) for control in controls]
    nodes = [node for node in nodes if node.plugins]
    remarks: list[str] = []
    subscriptions = [subscription for control in controls for subscription in _subscriptions(control, specs, remarks)]
    pairs = [
        (node, subscription)
        for node in nodes
        for subscription in subscriptions
        if subscription.node != node.name and node.feeds(subscription)
    ]
    problems: list[tuple[str, str]] = []
    for node, subscription in pairs:
        if node.name in written:
            remarks.append(_effect(node, subscription))
            if planned[node.name].get("insert", 0) and node.why_stopped(subscription):
                problems.append(_conflict(node, subscription))
    touched = [(node, subscription) for node, subscription in pairs if {node.name, subscription.node} & written]
    for node, subscription in _behind(controls, touched, until):
        if planned[subscription.node].get("insert", 0):
            problems.append(_late(node, subscription))
        else:
            remarks.append(f"{_lag(node, subscription)}: they arrive after the repair")
    fed = {subscription for _, subscription in pairs}
    remarks += [
        _outside(subscription)
        for subscription in subscriptions
        if subscription.has_table and subscription not in fed and planned[subscription.node].get("insert", 0)
    ]
    for node in nodes:
        if node.name in written:
            remarks += _unknown(node, [each for each in subscriptions if each.node != node.name])
    used = frozenset(node.name for node in nodes if node.name in written and not node.without_origin)
    if replicate != "safe":
        return Replication(used, (*remarks, *(problem for problem, _ in problems)))
    return Replication(used, tuple(remarks), tuple("; ".join(problem) for problem in problems))


def _behind(controls: Sequence[Control], pairs: Sequence[_Pair], until: float) -> list[_Pair]:
    """Return the subscriptions that do not catch up."""
    sessions = {control.node.name: control.connection for control in controls}
    late = slots_behind(sessions, [(node.name, subscription.slot) for node, subscription in pairs], until)
    return [pair for pair in pairs if (pair[0].name, pair[1].slot) in late]


def _lag(node: _Node, subscription: _Subscription) -> str:
    return (
        f"node {subscription.node}: subscription {subscription.name} has not applied all changes of {node.name} within"
        f" {PATIENCE:g} s"
    )


def _late(node: _Node, subscription: _Subscription) -> tuple[str, str]:
    """Return what happens, and the cure."""
    problem = f"{_lag(node, subscription)}, and stops with a duplicate key if it still has to deliver an inserted row"
    return problem, "let it catch up and compare again, or give --replicate accept"


def _effect(node: _Node, subscription: _Subscription) -> str:
    name = f"subscription {subscription.name}"
    if why := node.why_replicated(subscription):
        return f"what is written on {node.name} is replicated to {subscription.node} by {name} ({why})"
    return f"what is written on {node.name} is not replicated to {subscription.node}: {name} has origin = none"


def _conflict(node: _Node, subscription: _Subscription) -> tuple[str, str]:
    """Return what happens, and the cure."""
    name = display_part(subscription.name)
    accept = f"give --replicate accept, and skip the transaction when it has stopped: ALTER SUBSCRIPTION {name} SKIP"
    if node.version < _ORIGIN_SINCE:
        cure = accept
    elif subscription.local_only:
        cure = f"grant what is missing, or {accept}"
    else:
        cure = f"run ALTER SUBSCRIPTION {name} SET (origin = none) on {subscription.node} before, or {accept}"
    problem = (
        f"node {node.name}: subscription {subscription.name} replicates inserted rows to {subscription.node}, which has"
        f" them already, and stops with a duplicate key ({node.why_stopped(subscription)})"
    )
    return problem, cure


def _outside(subscription: _Subscription) -> str:
    return (
        f"{subscription.node}: subscription {subscription.name} fills the table from a server that is not a node of"
        " this repair; whether it still has to deliver an inserted row was not checked"
    )


def _unknown(node: _Node, subscriptions: Sequence[_Subscription]) -> Iterator[str]:
    """Yield what happens to readers of slots that no node of the repair has a subscription for."""
    known = {subscription.slot for subscription in subscriptions if node.is_known(subscription)}
    for slot, plugin in node.plugins.items():
        reader = f"{node.name}: the reader of replication slot {slot}"
        if slot in known:
            continue
        if plugin != "pgoutput":
            yield f"{reader} ({plugin}) gets what is written, unless it filters origins; it was not checked"
        elif node.is_published and (node.without_origin or node.version < _ORIGIN_SINCE):
            yield f"{reader} gets what is written; it was not checked"
        elif node.is_published:
            yield (
                f"{reader} was not checked: a subscription with origin = none does not get what is written, another"
                " one does; compare its node as well"
            )


def _node(control: Control, spec: TableSpec, replicate: Replicate) -> _Node:
    connection, statements = control.connection, load("trueup.verbs.repair", "replication.sql")
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(statements["node"], {"functions": list(FUNCTIONS)}).fetchone()
    assert row is not None
    plugins = dict(row["slots"])
    publications: dict[str, bool | None] = {}
    if plugins:
        publications = dict(connection.execute(statements["publications"], {"table": _name(control, spec)}).fetchall())
    without = ""
    if replicate == "all":
        without = "--replicate all"
    elif not row["may_set_origin"]:
        grant = f"GRANT EXECUTE ON FUNCTION {', '.join(FUNCTIONS)} TO {display_part(row['role'])}"
        without = f"role {row['role']} may not set a replication origin: {grant}"
    elif not row["most_origins"]:
        without = "the server allows no origins: max_active_replication_origins or max_replication_slots is 0"
    return _Node(control.node.name, connection.info.server_version, plugins, publications, without)


def _subscriptions(control: Control, specs: Mapping[str, TableSpec], remarks: list[str]) -> list[_Subscription]:
    node = control.node.name
    has_origin = control.connection.info.server_version >= _ORIGIN_SINCE
    statement = "subscriptions" if has_origin else "subscriptions_before_16"
    try:
        rows = control.connection.execute(
            load("trueup.verbs.repair", "replication.sql")[statement], {"table": _name(control, specs[node])}
        ).fetchall()
    except InsufficientPrivilege:
        remarks.append(f"{node}: the role may not read pg_subscription, so its subscriptions were not checked")
        return []
    return [
        _Subscription(node, name, slot, frozenset(publications), local_only, has_table)
        for name, slot, publications, local_only, has_table in rows
    ]


def _name(control: Control, spec: TableSpec) -> str:
    return sql.Identifier(spec.schema, spec.table).as_string(control.connection)
