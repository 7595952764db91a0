"""Do the nodes agree on what a comparison rests on: encoding, collation, how a row is hashed?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from trueup.db.catalog import Server, same_databases
from trueup.rows.comparable import check_servers
from trueup.rows.probe import choose_digest
from trueup.rows.spec import TableSpec
from trueup.verbs.doctor.guarded import Background, guarded
from trueup.verbs.doctor.model import Finding, fail, ok, warn
from trueup.verbs.doctor.nodes import ANSWER_SECONDS, Met
from trueup.verbs.doctor.request import DoctorRequest

WHERE = "all nodes"


def check(request: DoctorRequest, met: Met) -> Iterator[Finding]:
    """What two nodes or more must have in common."""
    if len(request.nodes) < 2:
        return
    if len(met.living) < 2:
        cure = "mend the connections above, and ask again"
        yield fail("nodes", WHERE, "not checked, because fewer than two nodes answer", cure)
        return
    servers = {name: facts.server for name, facts in met.facts.items()}
    parts: dict[str, Callable[[], Iterator[Finding]]] = {
        "encoding": partial(_encoding, servers),
        "collation": partial(_collation, servers),
        "identity": partial(_identity, servers),
        "row hash": partial(_row_hash, request, met),
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
            yield warn("collation", name, f"made with version {recorded}, and now {actual}: indexes may be wrong", cure)
    sorts = {name: f"{each.collation} {each.collation_actual or ''}".strip() for name, each in servers.items()}
    if len(set(sorts.values())) > 1:
        told = ", ".join(f"{sort} on {name}" for name, sort in sorts.items())
        cure = 'tables whose key holds text are refused: give such columns one collation ("C") on all nodes'
        yield warn("collation", WHERE, f"the default collations differ: {told}", cure)
    else:
        yield ok("collation", WHERE, next(iter(sorts.values())))


def _identity(servers: Mapping[str, Server]) -> Iterator[Finding]:
    for remark in same_databases(servers):
        yield warn("identity", WHERE, f"{remark}: it would match whatever is in it", "check the addresses")


def _row_hash(request: DoctorRequest, met: Met) -> Iterator[Finding]:
    """The very probe that a diff begins with."""
    spec = TableSpec(schema="", table="", key=(), columns=(), seed=1)
    connections = [control.connection for control in met.living]
    wish = request.settings.digest
    kind = Background(lambda: choose_digest(connections, spec, wish)).result(ANSWER_SECONDS)
    if kind == "native":
        yield ok("row hash", WHERE, "the nodes hash the same row alike: the native digest, the fast one")
    elif wish == "portable":
        yield ok("row hash", WHERE, "the portable digest, as configured")
    else:
        cure = "nothing has to be done; PostgreSQL 14 or newer on all nodes, of one kind of machine, would be faster"
        yield warn("row hash", WHERE, "the nodes hash differently: the portable digest is used, a slower one", cure)
