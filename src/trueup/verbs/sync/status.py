"""How far a sync is, as both ends know it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from psycopg import sql

from trueup.db.connection import Connection, one_row, one_value
from trueup.db.statements import load
from trueup.errors import CheckFailed, NodeError
from trueup.verbs.sync import changelog, state
from trueup.verbs.sync.check import scope_of
from trueup.verbs.sync.identity import history
from trueup.verbs.sync.identity.naming import identified_without
from trueup.verbs.sync.link import log_table, open_session
from trueup.verbs.sync.plan import outside
from trueup.verbs.sync.request import SyncRequest


@dataclass(frozen=True)
class SyncStatus:
    """A sync as both ends know it now."""

    sync: str
    # None: the target does not answer.
    known: state.State | None
    # What is in the change log: entries, keys, age of the oldest entry in seconds; None: there is no change log.
    waiting: tuple[int, int, float] | None
    # The sessions that hold the sync lock.
    running: tuple[str, ...]
    # Which database went back by a failover or a restore; "" if none did.
    problem: str = ""
    # Which database does not answer, and why.
    lost: str = ""
    # The tables of the source that are not in the sync, and who decided that.
    outside: tuple[tuple[str, str], ...] = ()
    # Whether a switchover has moved the applications to the target: rounds in this direction are refused.
    is_moved: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the status as plain values."""
        known = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in (asdict(self.known).items() if self.known else ())
        }
        entries, keys, seconds = self.waiting or (None, None, None)
        return {
            "sync": self.sync,
            **known,
            "tables": list(self.known.tables) if self.known else None,
            "waiting_entries": entries,
            "waiting_keys": keys,
            "oldest_seconds": seconds,
            "running": list(self.running),
            "outside": [{"table": name, "why": why} for name, why in self.outside],
            "problem": self.problem,
            "lost": self.lost,
            "moved": self.is_moved,
        }


def status(request: SyncRequest) -> SyncStatus:
    """Return how far a sync is, as far as the ends that answer know; write nothing."""
    request = identified_without(request)
    name = request.name
    with ExitStack() as stack:
        ends: list[Connection | None] = []
        errors: list[NodeError] = []
        for node in (request.source, request.target):
            try:
                ends.append(stack.enter_context(open_session(node, name, read_only=True)))
            except NodeError as error:
                ends.append(None)
                errors.append(error)
        source, target = ends
        if source is not None and target is not None:
            return _of_both(request, source, target)
        if source is not None:
            return SyncStatus(name, None, waiting(source, name), _running(source, name), lost=str(errors[0]))
        if target is None:
            raise errors[0]
        known = state.read(target, name)
        if known is None:
            raise CheckFailed(
                [f"the sync {name} into this database does not exist, and {request.source.name} does not answer"],
                cure=f"start {request.source.name}, or check the name of the sync (--name); after trueup switchover"
                " finish there is no sync any more: trueup switchover status shows which database is in use",
                node=request.target.name,
            )
        return SyncStatus(name, known, None, (), lost=str(errors[0]), is_moved=_is_moved(target, known))


def _of_both(request: SyncRequest, source: Connection, target: Connection) -> SyncStatus:
    known = state.expect(target, request.name, state.identity(source), request.target.name)
    went_back = history.problem(source, known, request.node_names)
    if _is_moved(target, known) and state.pointer_state(source, known.id) not in (None, "use_next"):
        went_back = state.SPLIT.format(*request.node_names)
    running = _running(source, request.name)
    is_moved = _is_moved(target, known)
    found = outside(source, scope_of(target, known)).values() if known.phase == "running" else ()
    waits = waiting(source, request.name)
    return SyncStatus(request.name, known, waits, running, went_back, outside=tuple(found), is_moved=is_moved)


def _is_moved(target: Connection, known: state.State) -> bool:
    return state.pointer_state(target, known.id) not in (None, "use_next")


def _running(source: Connection, name: str) -> tuple[str, ...]:
    holder = changelog.holder(source, name)
    return () if holder is None else (holder,)


def waiting(source: Connection, name: str) -> tuple[int, int, float] | None:
    """Return entries, keys and age in seconds of what is in the change log, or None if there is no change log."""
    log = log_table(name)
    if one_value(source.execute("SELECT to_regclass(%s)", [log.as_string(source)])) is None:
        return None
    query = sql.SQL(load("trueup.verbs.sync", "round.sql")["waiting"]).format(log=log)
    entries, keys, seconds, _ = one_row(source.execute(query, {"sources": None}))
    return entries, keys, seconds
