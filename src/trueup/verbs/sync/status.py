"""How far a sync is, as both ends know it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from psycopg import sql

from trueup.db.connection import Connection, one_row, one_value
from trueup.db.statements import load
from trueup.verbs.sync import changelog, history, state
from trueup.verbs.sync.link import log_table, open_ends
from trueup.verbs.sync.request import SyncRequest


@dataclass(frozen=True)
class SyncStatus:
    """A sync as both ends know it now."""

    known: state.State
    # What is in the change log: entries, keys, age of the oldest entry in seconds; None: there is no change log.
    waiting: tuple[int, int, float] | None
    # The sessions that hold the sync lock.
    running: tuple[str, ...]
    # Which database went back by a failover or a restore; "" if none did.
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the status as plain values."""
        known = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asdict(self.known).items()
        }
        entries, keys, seconds = self.waiting or (None, None, None)
        return {
            **known,
            "tables": list(self.known.tables),
            "waiting_entries": entries,
            "waiting_keys": keys,
            "oldest_seconds": seconds,
            "running": list(self.running),
            "problem": self.problem,
        }


def status(request: SyncRequest) -> SyncStatus:
    """Return how far a sync is; write nothing."""
    with open_ends(request.source, request.target, request.name, read_only=(True, True)) as (source, target):
        known = state.expect(target, request.name, state.identity(source), request.target.name)
        holder = changelog.holder(source, request.name)
        running = () if holder is None else (holder,)
        went_back = history.problem(source, known, request.node_names)
        return SyncStatus(known, waiting(source, request.name), running, went_back)


def waiting(source: Connection, name: str) -> tuple[int, int, float] | None:
    """Return entries, keys and age in seconds of what is in the change log, or None if there is no change log."""
    log = log_table(name)
    if one_value(source.execute("SELECT to_regclass(%s)", [log.as_string(source)])) is None:
        return None
    query = sql.SQL(load("trueup.verbs.sync", "round.sql")["waiting"]).format(log=log)
    entries, keys, seconds = one_row(source.execute(query))
    return entries, keys, seconds
