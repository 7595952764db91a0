"""Checks of each node: connection, version, settings, free connections, timeouts, clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trueup.config import address
from trueup.config.model import Node
from trueup.db.catalog import Server, read_server
from trueup.db.connection import Connection, one_row, one_value
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.db.statements import load
from trueup.engine.slots import Share, cores_here
from trueup.errors import NodeError
from trueup.rows.comparable import OLDEST_VERSION
from trueup.verbs.doctor.guarded import Background, broken, in_parallel
from trueup.verbs.doctor.model import DoctorRequest, Finding, fail, failed, ok, warn

APPLICATION = "trueup doctor"
# Maximum time for all queries of a check on one node.
ANSWER_SECONDS = 30.0
MAX_SKEW = 1.0
_PINNED = "pg_catalog|UTC|on"
_CLOCK_READINGS = 5

now = time.time


@dataclass(frozen=True)
class Facts:
    """The facts of one node."""

    row: Mapping[str, Any]
    timeouts: Mapping[str, tuple[int, int]]
    server: Server
    # Seconds by which its clock is ahead of ours, and the uncertainty in seconds.
    skew: float
    uncertainty: float


@dataclass
class Reached:
    """The nodes that answered, with their facts, and the errors of the others."""

    controls: dict[str, Control] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)

    @property
    def answering(self) -> list[Control]:
        """Sessions with the nodes that have answered every query so far."""
        return [control for name, control in self.controls.items() if name not in self.errors]


def start_connecting(nodes: Sequence[Node]) -> list[tuple[Node, Background[tuple[Control, float]]]]:
    """Start to connect to all nodes in parallel."""
    return [(node, Background(lambda node=node: _open(node))) for node in nodes]  # type: ignore[misc]


@contextmanager
def connected(connecting: Sequence[tuple[Node, Background[tuple[Control, float]]]]) -> Iterator[Reached]:
    """Wait for the connections, at most the connect timeout of each node, and read the facts of the nodes."""
    reached = Reached()
    for node, background in connecting:
        try:
            reached.controls[node.name], reached.seconds[node.name] = background.result(connect_seconds(node))
        except Exception as error:
            reached.errors[node.name] = error
    results = in_parallel(reached.answering, _facts, within=lambda _: ANSWER_SECONDS)
    for control, facts in zip(list(reached.controls.values()), results, strict=True):
        if isinstance(facts, Facts):
            reached.facts[control.node.name] = facts
        else:
            reached.errors[control.node.name] = error_from_server(facts, control.node)
    try:
        yield reached
    finally:
        # The session of a node that hangs may still be in use by its thread.
        for control in reached.answering:
            control.close()


def connect_seconds(node: Node) -> float:
    """Return how long to wait for a connection: the connect timeout, and one second for libpq to report it."""
    configured = address.parse(node.conninfo)[0].get("connect_timeout", "")
    seconds = int(configured) if configured.isdigit() and int(configured) > 0 else 10
    return max(2.0, float(seconds)) + 1.0


def check(request: DoctorRequest, reached: Reached) -> Iterator[Finding]:
    """Yield the findings of each node."""
    for node in request.nodes:
        where = node.name
        if where not in reached.facts:
            yield _unreachable(node, reached.errors[where])
            continue
        facts = reached.facts[where]
        tls = "TLS" if reached.controls[where].connection.pgconn.ssl_in_use else "no TLS"
        yield ok("connection", where, f"{node.describe()} answered in {reached.seconds[where] * 1000:.0f} ms, {tls}")
        yield check_version(where, facts)
        yield check_session(where, facts)
        if facts.row["in_recovery"]:
            yield _standby(where, facts)
        yield _free_connections(request, where, reached)
        yield check_timeouts(where, facts)
        yield check_durability(where, facts)
        yield _replication(where, facts)
        yield from check_slots(where, facts)
        yield _clock(where, facts)


def _open(node: Node) -> tuple[Control, float]:
    started = time.monotonic()
    control = Control(node, application=APPLICATION)
    return control, time.monotonic() - started


def _facts(control: Control) -> Facts:
    connection = control.connection
    blocks = load("trueup.verbs.doctor", "facts.sql")
    timeouts = {name: (set_to, usual) for name, set_to, usual in connection.execute(blocks["timeouts"]).fetchall()}
    # Do not wait for locks of other sessions, or for slow views of the user.
    connection.execute("SET statement_timeout = '10s'; SET lock_timeout = '2s'")
    cursor = connection.execute(blocks["node"])
    names = [column.name for column in cursor.description or ()]
    row = dict(zip(names, one_row(cursor), strict=True))
    skew, uncertainty = clock_skew(connection)
    return Facts(row, timeouts, read_server(connection), skew, uncertainty)


def clock_skew(connection: Connection) -> tuple[float, float]:
    """Return how far the clock of a server is ahead of ours, and half of the round trip as uncertainty."""
    query = load("trueup.verbs.doctor", "facts.sql")["clock"]
    readings = []
    for _ in range(_CLOCK_READINGS):
        sent = now()
        server_time = one_value(connection.execute(query))
        received = now()
        readings.append(((received - sent) / 2, server_time - (sent + received) / 2))
    # The fastest answer has the smallest uncertainty.
    uncertainty, skew = min(readings)
    return skew, uncertainty


def _unreachable(node: Node, error: Exception) -> Finding:
    if isinstance(error, NodeError):
        return failed("connection", node.name, error)
    return broken("connection", node.name, error_from_server(error, node))


def check_version(where: str, facts: Facts) -> Finding:
    """Check the version of the server."""
    text = f"PostgreSQL {facts.row['version_text']}"
    if facts.row["version"] < OLDEST_VERSION:
        return fail("version", where, f"{text} is too old for the row hash", "upgrade to PostgreSQL 13 or newer")
    return ok("version", where, text)


def check_session(where: str, facts: Facts) -> Finding:
    """Check that the settings of a session persist: a pooler may change the session between statements."""
    if facts.row["pinned"] != _PINNED:
        cure = "connect to the server directly, or use a pooler in session mode"
        return fail("session", where, "settings are lost: a pooler changes the session between statements", cure)
    return ok("session", where, f"role {facts.row['role']}, read-only, settings persist")


def _standby(where: str, facts: Facts) -> Finding:
    row = facts.row
    age = f", last change replayed {row['replay_age']:,.0f} s ago" if row["replay_age"] is not None else ""
    if row["feedback"] or row["standby_delay"] == "-1":
        return ok("standby", where, f"a standby{age}")
    return warn(
        "standby",
        where,
        f"a standby{age}: a query that conflicts with replay is cancelled after {row['standby_delay']}",
        "set hot_standby_feedback = on or a longer max_standby_streaming_delay there, or use --no-snapshot",
    )


def _free_connections(request: DoctorRequest, where: str, reached: Reached) -> Finding:
    """Check the free connections. Nodes on one server share them; those of doctor are closed before a run."""
    row = reached.facts[where].row
    mates = [name for name, facts in reached.facts.items() if facts.row["server_id"] == row["server_id"]]
    share = Share(request.settings.concurrency_factor, request.settings.max_connections, fixed=request.spark.slots)
    per_node = share.of(cores_here()) + 1
    free_on_server = row["max_connections"] - row["reserved"] - row["in_use"] + len(mates)
    limits = [(free_on_server, per_node * len(mates), "the server")]
    if row["role_limit"] >= 0:
        limits.append((row["role_limit"] - row["role_in_use"] + 1, per_node, f"role {row['role']}"))
    if row["database_limit"] >= 0:
        limits.append((row["database_limit"] - row["database_in_use"] + 1, per_node, "the database"))
    free, needed, owner = min(limits, key=lambda limit: limit[0] - limit[1])
    shared = f" ({', '.join(mates)} are on one server)" if len(mates) > 1 and owner == "the server" else ""
    cluster = "; on a cluster, one per core of the executors" if request.spark.master or request.spark.remote else ""
    text = f"a run opens at most {needed} connections{shared}{cluster}; {owner} has {max(free, 0)} free"
    if free < needed:
        return fail("connections", where, text, "lower --max-connections or --concurrency-factor, or close connections")
    return ok("connections", where, text)


def check_timeouts(where: str, facts: Facts) -> Finding:
    """Check the timeouts that would end a long session."""
    fixed = [name for name in ("transaction_timeout", "idle_session_timeout") if facts.timeouts.get(name, (0, 0))[0]]
    if fixed:
        cure = f"ALTER ROLE {facts.row['role']} SET {fixed[0]} = 0"
        return warn("timeouts", where, f"{' and '.join(fixed)} cannot be disabled: a long run would be ended", cure)
    configured = [
        f"{name} {milliseconds / 1000:g} s" for name, (_, milliseconds) in facts.timeouts.items() if milliseconds
    ]
    if configured:
        return ok("timeouts", where, f"the role has {', '.join(configured)}; sessions of a run set their own")
    return ok("timeouts", where, "none configured for the role")


def check_durability(where: str, facts: Facts) -> Finding:
    """Check that commits of the server survive a crash of its machine."""
    if facts.row["unsafe"]:
        cure = "set it to on before the node is the target of a tube, a sync or a switchover, or stores validations"
        return warn("durability", where, f"{facts.row['unsafe']}: a crash of its machine can lose commits", cure)
    return ok("durability", where, "commits wait for the disk; sessions that write set synchronous_commit = on")


def _replication(where: str, facts: Facts) -> Finding:
    row = facts.row
    can = "can" if row["may_replicate"] else "cannot"
    return ok(
        "replication",
        where,
        f"wal_level {row['wal_level']}, {row['slots']} of {row['max_slots']} slots used,"
        f" {row['max_senders']} senders; role {row['role']} {can} replicate",
    )


def check_slots(where: str, facts: Facts) -> Iterator[Finding]:
    """Warn if slots exist, and nothing limits the log that they keep when the process that reads one was killed."""
    row = facts.row
    if not row["slots"]:
        return
    limits = [f"max_slot_wal_keep_size = {row['slot_keeps']}"] if row["slot_keeps"] != "-1" else []
    if row["slot_timeout"] != "0":
        limits.append(f"idle_replication_slot_timeout = {row['slot_timeout']}")
    idle = f"; no process reads {', '.join(row['idle_slots'])}" if row["idle_slots"] else ""
    if limits:
        yield ok("slots", where, f"the log that slots keep is limited by {' and '.join(limits)}{idle}")
        return
    also = ", or idle_replication_slot_timeout," if row["version"] >= 180000 else ""
    yield warn(
        "slots",
        where,
        f"the log that slots keep can fill the disk{idle}",
        f"set max_slot_wal_keep_size{also} on the server; drop a slot whose job will not be continued",
    )


def _clock(where: str, facts: Facts) -> Finding:
    ahead = "ahead of" if facts.skew >= 0 else "behind"
    text = f"{abs(facts.skew):.3f} s {ahead} this machine (±{facts.uncertainty:.3f} s)"
    if abs(facts.skew) - facts.uncertainty > MAX_SKEW:
        return warn("clock", where, text, "synchronize both machines with a time server (chrony, ntpd)")
    return ok("clock", where, text)
