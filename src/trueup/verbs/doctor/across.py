"""Checks across nodes: encoding, collation, identity, row hash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from trueup.db.catalog import Server, same_databases
from trueup.rows.comparable import check_servers
from trueup.rows.probe import choose_digest
from trueup.verbs.doctor.guarded import Background, guarded
from trueup.verbs.doctor.model import DoctorRequest, Finding, fail, ok, warn
from trueup.verbs.doctor.nodes import ANSWER_SECONDS, Reached

WHERE = "all nodes"


def check(request: DoctorRequest, reached: Reached) -> Iterator[Finding]:
    """Yield the findings of checks that need two nodes."""
    if len(request.nodes) < 2:
        return
    if len(reached.answering) < 2:
        cure = "fix the connections above, and run doctor again"
        yield fail("nodes", WHERE, "not checked, because fewer than two nodes answer", cure)
        return
    servers = {name: facts.server for name, facts in reached.facts.items()}
    parts: dict[str, Callable[[], Iterator[Finding]]] = {
        "encoding": partial(_encoding, servers),
        "collation": partial(_collation, servers),
        "identity": partial(_identity, servers),
        "row hash": partial(_row_hash, request, reached),
    }
    for name, part in parts.items():
        yield from guarded(name, WHERE, part)


def _encoding(servers: Mapping[str, Server]) -> Iterator[Finding]:
    reasons = [reason for reason in check_servers(servers) if "too old" not in reason]
    for reason in reasons:
        yield fail("encoding", WHERE, reason, "compare databases of one encoding, other than SQL_ASCII")
    if not reasons:
        yield ok("encoding", WHERE, next(iter(servers.values())).encoding)


def _collation(servers: Mapping[str, Server]) -> Iterator[Finding]:
    for name, server in servers.items():
        recorded, actual = server.collation_version, server.collation_actual
        if recorded and actual and recorded != actual:
            cure = "REINDEX, then ALTER DATABASE … REFRESH COLLATION VERSION"
            yield warn("collation", name, f"created with version {recorded}, now {actual}: indexes may be wrong", cure)
    sorts = {name: f"{server.collation} {server.collation_actual or ''}".strip() for name, server in servers.items()}
    if len(set(sorts.values())) > 1:
        listed = ", ".join(f"{sort} on {name}" for name, sort in sorts.items())
        cure = 'use the same collation ("C") on all nodes for text columns of keys: other such tables are refused'
        yield warn("collation", WHERE, f"the default collations differ: {listed}", cure)
    else:
        yield ok("collation", WHERE, next(iter(sorts.values())))


def _identity(servers: Mapping[str, Server]) -> Iterator[Finding]:
    for remark in same_databases(servers):
        yield warn("identity", WHERE, f"{remark}: a comparison would always match", "check the addresses")


def _row_hash(request: DoctorRequest, reached: Reached) -> Iterator[Finding]:
    """Run the probe that a diff runs first."""
    connections = [control.connection for control in reached.answering]
    configured = request.settings.digest
    kind = Background(lambda: choose_digest(connections, configured)).result(ANSWER_SECONDS)
    if kind == "native":
        yield ok("row hash", WHERE, "the nodes hash a row to the same value: the fast native digest is used")
    elif configured == "portable":
        yield ok("row hash", WHERE, "the portable digest, as configured")
    else:
        cure = "no action needed; PostgreSQL 14 or newer on all nodes, on the same CPU architecture, would be faster"
        yield warn(
            "row hash", WHERE, "the nodes hash a row to different values: the slower portable digest is used", cure
        )
