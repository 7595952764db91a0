"""The name of a sync in its databases: the one that the user chose, or that one with a suffix.

Change log, state, pointer and guards of a sync have its name. If another sync of one of the two databases has that name
already, such as the other step of a chain, a suffix is added when the sync is started. The user need not know it: the
sync is found by its name and its two databases. A name with a suffix names one sync only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import psycopg

from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.db.connection import Connection, one_value
from trueup.db.database_identity import identity
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load
from trueup.db.trust import check_schema
from trueup.errors import CheckFailed, ConfigError, NodeError
from trueup.verbs.sync import changelog, state
from trueup.verbs.sync.model import LOG_SCHEMA, STATE_SCHEMA, application
from trueup.verbs.sync.request import SyncRequest

# The column `named` of the pointers is without it too.
SUFFIX = "__[0-9a-f]{6}$"
_SUFFIX_LENGTH = 8
# That of a tube.
_MAX_LENGTH = 30


@dataclass(frozen=True)
class Trace:
    """What a database has of a sync: its state, its change log or its pointer."""

    name: str
    id: str
    # The other database.
    peer: str
    # Whether the sync was started from this database: its way back has a state and a change log too.
    is_first: bool
    # Whether it is a state or a change log: a pointer also remains of a finished switchover.
    is_live: bool
    # The name of the other node, if it is known.
    node: str = ""


@dataclass(frozen=True)
class Side:
    """One of the two databases of a request."""

    identity: str
    traces: tuple[Trace, ...]


def identified(request: SyncRequest, *, is_new: bool = False) -> SyncRequest:
    """Return the request with the name of the sync in its databases; `is_new`: it may have to be started."""
    if request.is_identified:
        return request
    name = find_name(request.source, request.target, request.name, is_new=is_new)
    return replace(request, scope=replace(request.scope, name=name), is_identified=True)


def identified_new(request: SyncRequest, source: Connection, target: Connection) -> SyncRequest:
    """Return the same with open sessions, for a sync that may have to be started; they get the name of the sync."""
    if request.is_identified:
        return request
    first, second = (_side(connection, request.name, is_new=True) for connection in (source, target))
    name = _name_between(first, second, request.name, is_new=True)
    if name != request.name:
        for connection in (source, target):
            connection.execute("SELECT set_config('application_name', %s, false)", [application(name)])
    return replace(request, scope=replace(request.scope, name=name), is_identified=True)


def identified_without(request: SyncRequest, lost: Node | None = None) -> SyncRequest:
    """Return the same, also if one of the nodes does not answer, or `lost` is another database now."""
    name = find_name(request.source, request.target, request.name, both=False, lost=lost)
    return replace(request, scope=replace(request.scope, name=name), is_identified=True)


def find_name(
    source: Node, target: Node, name: str, *, is_new: bool = False, both: bool = True, lost: Node | None = None
) -> str:
    """Return the name of the sync `name` from `source` to `target` in these databases.

    If there is none, it is `name`, or with `is_new` one that no other sync of these databases has. Without `both`, a
    node that does not answer is left out; `lost` is a node whose database may be another one now. Raise if several
    syncs are possible.
    """
    sides: list[Side | None] = []
    for node in (source, target):
        try:
            sides.append(_read_side(node, name, is_new=is_new))
        except NodeError:
            if both:
                raise
            sides.append(None)
    first, second = sides
    if first is not None and second is not None:
        return _name_between(first, second, name, is_new=is_new, lost=lost, is_first=lost is target)
    left = first or second
    if left is None or re.search(SUFFIX, name):
        return name
    gone = target if left is first else source
    return only(on_one(left, gone, is_first=left is first), name)


def _name_between(
    first: Side, second: Side, name: str, *, is_new: bool, lost: Node | None = None, is_first: bool = False
) -> str:
    """Return the name of the sync `name`; `is_first`: of the lost node the other one is the first."""
    if re.search(SUFFIX, name):
        if is_new and not first.traces and not second.traces:
            raise ConfigError(f"the name {name} has a suffix of trueup", cure="choose a name without __ at its end")
        return name
    found = between(first, second)
    if is_new:
        found = [trace for trace in found if trace.is_live]
    if not found and lost is not None:
        found = on_one(first if is_first else second, lost, is_first=is_first)
    return only(found, name) if found or not is_new else free_name(name, first, second)


def claim(
    request: SyncRequest, source: Connection, target: Connection, log: Session, stored: state.State, *, is_new: bool
) -> None:
    """Create the change log of a sync that has a state, so that both databases know its name; raise if another has it.

    Syncs that are started at the same moment all find the name free. Each of them writes it into both databases first
    and looks afterwards, so at most one of two sees no other. A sync that is new is removed again.
    """
    changelog.claim(log, request.name, changelog.Owner(stored.id, identity(target)))
    taken = [
        node.name
        for node, connection in ((request.source, source), (request.target, target))
        for trace in _traces(connection, request.name, is_new=True)
        if trace.name == request.name and trace.id != stored.id
    ]
    if not taken:
        return
    if is_new:
        changelog.drop(log, request.name, stored.id, timeout=request.timeout)
        state.remove(target, request.name, stored.id)
    again = "run the same command again" if is_new else "trueup sync drop, then trueup sync start"
    raise CheckFailed(
        [f"another sync {request.name} of this database was started at the same time"],
        cure=f"start this sync with another name, which trueup chooses: {again}",
        node=taken[0],
    )


def _read_side(node: Node, name: str, *, is_new: bool) -> Side:
    with connect(node, application=application(name)) as connection:
        try:
            return _side(connection, name, is_new=is_new)
        except psycopg.Error as error:
            raise error_from_server(error, node) from error


def _side(connection: Connection, name: str, *, is_new: bool) -> Side:
    return Side(identity(connection), tuple(_traces(connection, name, is_new=is_new)))


def _traces(connection: Connection, name: str, *, is_new: bool) -> Iterable[Trace]:
    """Return what a database has of syncs with this name, with or without a suffix."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    # The row of a finished switchover on the database that stayed in use does not keep its name.
    values = {"name": name, "suffix": SUFFIX, "alone": not is_new}
    tables = (("pointers", STATE_SCHEMA, "switchover"), ("into", STATE_SCHEMA, "syncs"), ("from", LOG_SCHEMA, "tubes"))
    for query, schema, table in tables:
        rows[query] = []
        readable = "SELECT coalesce(has_table_privilege(to_regclass(%s), 'SELECT'), false)"
        if check_schema(connection, schema) and one_value(connection.execute(readable, [f"{schema}.{table}"])):
            try:
                rows[query] = connection.execute(
                    load("trueup.verbs.sync.identity", "naming.sql")[query], values
                ).fetchall()
            except psycopg.errors.UndefinedColumn:
                # Of an earlier version of trueup: the caller refuses it.
                continue
    pointers = {sync_id: (is_first, node) for _, sync_id, _, is_first, node in rows["pointers"]}
    for found, sync_id, peer, is_first, node in rows["pointers"]:
        yield Trace(found, sync_id, peer, bool(is_first), is_live=False, node=node)
    for query, default in (("into", False), ("from", True)):
        for found, sync_id, peer in rows[query]:
            is_first, node = pointers.get(sync_id, (default, ""))
            yield Trace(found, sync_id, peer, bool(is_first), is_live=True, node=node)


def between(first: Side, second: Side) -> list[Trace]:
    """Return the syncs from the first database to the second; if there is none, the ways back in that direction."""
    on_first = [trace for trace in first.traces if trace.peer == second.identity]
    on_second = [trace for trace in second.traces if trace.peer == first.identity]
    for is_first in (True, False):
        here = [trace for trace in on_first if trace.is_first is is_first]
        there = [trace for trace in on_second if trace.is_first is not is_first]
        known = {(trace.name, trace.id) for trace in here} & {(trace.name, trace.id) for trace in there}
        # Some services hide the identity of a server; that of the sync decides.
        found = [trace for trace in here if (trace.name, trace.id) in known] or here + there
        if found:
            return [trace for trace in found if trace.is_live] or found
    return []


def on_one(side: Side, lost: Node, *, is_first: bool) -> list[Trace]:
    """Return the syncs that the remaining database knows; several ones only if the name of the lost node is no help."""
    for role in (is_first, not is_first):
        found = [trace for trace in side.traces if trace.is_first is role]
        if len({trace.name for trace in found}) > 1:
            found = [trace for trace in found if trace.node == lost.name] or found
        if found:
            return found
    return []


def only(found: Sequence[Trace], name: str) -> str:
    """Return the name of the only sync; raise if there are several."""
    nodes = {trace.name: "" for trace in found}
    nodes.update({trace.name: f" (with {trace.node})" for trace in found if trace.node})
    if len(nodes) > 1:
        listed = ", ".join(f"{each}{node}" for each, node in sorted(nodes.items()))
        raise CheckFailed([f"there are several syncs {name}: {listed}"], cure="name one of them: --name")
    return next(iter(nodes), name)


def free_name(name: str, first: Side, second: Side) -> str:
    """Return the name, with a suffix if another sync of one of the databases has it: the same one for each call."""
    used = {trace.name for side in (first, second) for trace in side.traces}
    if name not in used:
        return name
    if len(name) > _MAX_LENGTH - _SUFFIX_LENGTH:
        raise CheckFailed(
            [f"another sync of these databases has the name {name}, which is too long for a suffix"],
            cure=f"choose another name, or one of at most {_MAX_LENGTH - _SUFFIX_LENGTH} characters: --name",
        )
    pair = f"{first.identity} {second.identity}"
    digests = (hashlib.sha256(f"{pair} {number}".encode()).hexdigest() for number in count())
    return next(each for digest in digests if (each := f"{name}__{digest[:6]}") not in used)
