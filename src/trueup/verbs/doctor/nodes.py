"""Can each node be reached, is its server one to work with, and will it stand a run?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trueup.config import address
from trueup.config.model import Node
from trueup.db.catalog import Server, read_server
from trueup.db.connection import Connection, one_value
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.db.statements import load
from trueup.engine.slots import Share, cores_here
from trueup.errors import NodeError
from trueup.rows.comparable import OLDEST_VERSION
from trueup.verbs.doctor.guarded import Background, all_at_once, broken
from trueup.verbs.doctor.model import Finding, fail, failed, ok, warn
from trueup.verbs.doctor.request import DoctorRequest

APPLICATION = "trueup doctor"
# For all questions to one node, once it is reached.
ANSWER_SECONDS = 30.0
MOST_SKEW = 1.0
_PINNED = "pg_catalog|UTC|on"
_CLOCK_LOOKS = 5

now = time.time


@dataclass(frozen=True)
class Facts:
    """What one node says of itself."""

    row: Mapping[str, Any]
    timeouts: Mapping[str, tuple[int, int]]
    server: Server
    # Seconds by which its clock is ahead of ours, and how sure that is.
    skew: float
    unsure: float


@dataclass
class Met:
    """The nodes after the first round: those that answered, and why others did not."""

    controls: dict[str, Control] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    trouble: dict[str, Exception] = field(default_factory=dict)

    @property
    def living(self) -> list[Control]:
        """Sessions with the nodes that answered every question so far."""
        return [control for name, control in self.controls.items() if name not in self.trouble]


def begin(nodes: Sequence[Node]) -> list[tuple[Node, Background[tuple[Control, float]]]]:
    """Set out for all nodes at the same time."""
    return [(node, Background(lambda node=node: _open(node))) for node in nodes]  # type: ignore[misc]


@contextmanager
def meet(asked: Sequence[tuple[Node, Background[tuple[Control, float]]]]) -> Iterator[Met]:
    """Wait for the nodes, each as long as its connect time-out, and ask those that answer."""
    met = Met()
    for node, background in asked:
        try:
            met.controls[node.name], met.seconds[node.name] = background.result(patience(node))
        except Exception as error:
            met.trouble[node.name] = error
    found = all_at_once(met.living, _facts, within=lambda _: ANSWER_SECONDS)
    for control, facts in zip(list(met.controls.values()), found, strict=True):
        if isinstance(facts, Facts):
            met.facts[control.node.name] = facts
        else:
            met.trouble[control.node.name] = error_from_server(facts, control.node)
    try:
        yield met
    finally:
        # A session whose node hangs may still be in use by a thread that was left behind.
        for control in met.living:
            control.close()


def patience(node: Node) -> float:
    """The seconds that a node gets to answer: its connect time-out, and a moment for libpq to say so itself."""
    given = address.parse(node.conninfo)[0].get("connect_timeout", "")
    seconds = int(given) if given.isdigit() and int(given) > 0 else 10
    return max(2.0, float(seconds)) + 1.0


def check(request: DoctorRequest, met: Met) -> Iterator[Finding]:
    """The lines of each node."""
    for node in request.nodes:
        where = node.name
        if where not in met.facts:
            yield _unreachable(node, met.trouble[where])
            continue
        facts = met.facts[where]
        tls = "TLS" if met.controls[where].connection.pgconn.ssl_in_use else "no TLS"
        yield ok("connection", where, f"{node.describe()} answered in {met.seconds[where] * 1000:.0f} ms, {tls}")
        yield _version(where, facts)
        yield _session(where, facts)
        if facts.row["in_recovery"]:
            yield _standby(where, facts)
        yield _room(request, where, met)
        yield _timeouts(where, facts)
        yield _replication(where, facts)
        yield _clock(where, facts)


def _open(node: Node) -> tuple[Control, float]:
    begun = time.monotonic()
    control = Control(node, application=APPLICATION)
    return control, time.monotonic() - begun


def _facts(control: Control) -> Facts:
    connection: Any = control.connection
    blocks = load("trueup.verbs.doctor", "facts.sql")
    timeouts = {name: (set_to, usual) for name, set_to, usual in connection.execute(blocks["timeouts"]).fetchall()}
    # Whoever holds a lock, or has an endless view of its own: we do not wait for it.
    connection.execute("SET statement_timeout = '10s'; SET lock_timeout = '2s'")
    cursor = connection.execute(blocks["node"])
    row = dict(zip((column.name for column in cursor.description), cursor.fetchone(), strict=True))
    skew, unsure = clock_skew(connection)
    return Facts(row, timeouts, read_server(connection), skew, unsure)


def clock_skew(connection: Connection) -> tuple[float, float]:
    """How far a server's clock is ahead of ours, and half the round trip: it looked at it somewhere in between."""
    query = load("trueup.verbs.doctor", "facts.sql")["clock"]
    looks = []
    for _ in range(_CLOCK_LOOKS):
        sent = now()
        theirs = one_value(connection.execute(query))
        received = now()
        looks.append(((received - sent) / 2, theirs - (sent + received) / 2))
    # The quickest answer is the surest one.
    unsure, skew = min(looks)
    return skew, unsure


def _unreachable(node: Node, error: Exception) -> Finding:
    if isinstance(error, NodeError):
        return failed("connection", node.name, error)
    return broken("connection", node.name, error_from_server(error, node))


def _version(where: str, facts: Facts) -> Finding:
    text = f"PostgreSQL {facts.row['version_text']}"
    if facts.row["version"] < OLDEST_VERSION:
        return fail("version", where, f"{text} is too old for the row hash", "upgrade to PostgreSQL 13 or newer")
    return ok("version", where, text)


def _session(where: str, facts: Facts) -> Finding:
    if facts.row["pinned"] != _PINNED:
        cure = "connect to the server itself, or let the pooler keep a session for a client (pgbouncer: session mode)"
        return fail("session", where, "settings do not stay: a pooler gives every statement another session", cure)
    return ok("session", where, f"role {facts.row['role']}, read-only, and its settings stay")


def _standby(where: str, facts: Facts) -> Finding:
    row = facts.row
    age = f", last change replayed {row['replay_age']:,.0f} s ago" if row["replay_age"] is not None else ""
    if row["feedback"] or row["standby_delay"] == "-1":
        return ok("standby", where, f"a standby{age}")
    return warn(
        "standby",
        where,
        f"a standby{age}: a query that stands in the way of replay is cancelled after {row['standby_delay']}",
        "set hot_standby_feedback = on or a longer max_standby_streaming_delay there, or use --no-snapshot",
    )


def _room(request: DoctorRequest, where: str, met: Met) -> Finding:
    """Nodes on one server share its connections; the doctor's own will be gone by then."""
    row = met.facts[where].row
    mates = [name for name, facts in met.facts.items() if facts.row["server_id"] == row["server_id"]]
    share = Share(request.settings.concurrency_factor, request.settings.max_connections, fixed=request.spark.slots)
    one = share.of(cores_here()) + 1
    needed = one * len(mates)
    places = [(row["max_connections"] - row["reserved"] - row["in_use"] + len(mates), needed, "the server")]
    if row["role_limit"] >= 0:
        places.append((row["role_limit"] - row["role_in_use"] + 1, one, f"role {row['role']}"))
    if row["database_limit"] >= 0:
        places.append((row["database_limit"] - row["database_in_use"] + 1, one, "the database"))
    free, wanted, place = min(places, key=lambda each: each[0] - each[1])
    shared = f" ({', '.join(mates)} are on one server)" if len(mates) > 1 and place == "the server" else ""
    cluster = (
        "; on a cluster, one for each core of the executors" if request.spark.master or request.spark.remote else ""
    )
    text = f"a run opens up to {wanted} connections{shared}{cluster}; {place} has {max(free, 0)} left"
    if free < wanted:
        return fail("connections", where, text, "lower --max-connections or --concurrency-factor, or free some")
    return ok("connections", where, text)


def _timeouts(where: str, facts: Facts) -> Finding:
    stuck = [name for name in ("transaction_timeout", "idle_session_timeout") if facts.timeouts.get(name, (0, 0))[0]]
    if stuck:
        cure = f"ALTER ROLE {facts.row['role']} SET {stuck[0]} = 0"
        return warn("timeouts", where, f"{' and '.join(stuck)} cannot be lifted: a long run would be ended", cure)
    usual = [f"{name} {milliseconds / 1000:g} s" for name, (_, milliseconds) in facts.timeouts.items() if milliseconds]
    if usual:
        return ok("timeouts", where, f"the role has {', '.join(usual)}: sessions of a run set their own")
    return ok("timeouts", where, "none is set for the role")


def _replication(where: str, facts: Facts) -> Finding:
    row = facts.row
    may = "may" if row["may_replicate"] else "may not"
    return ok(
        "replication",
        where,
        f"wal_level {row['wal_level']}, {row['slots']} of {row['max_slots']} slots used,"
        f" {row['max_senders']} senders; role {row['role']} {may} replicate",
    )


def _clock(where: str, facts: Facts) -> Finding:
    ahead = "ahead of" if facts.skew >= 0 else "behind"
    text = f"{abs(facts.skew):.3f} s {ahead} this machine (±{facts.unsure:.3f} s)"
    if abs(facts.skew) - facts.unsure > MOST_SKEW:
        return warn("clock", where, text, "let both machines follow a time server (chrony, ntpd)")
    return ok("clock", where, text)
