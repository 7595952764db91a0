"""A sync that follows makes room for a rehearsal of a switchover, and continues afterwards."""

from __future__ import annotations

import time

from trueup.db.connection import Connection, one_value
from trueup.engine.progress import Progress
from trueup.errors import NodeError, TrueupError
from trueup.verbs.sync import changelog, state
from trueup.verbs.sync.link import Link, open_ends
from trueup.verbs.sync.request import SyncRequest
from trueup.verbs.sync.totals import Totals

_SECONDS = 0.1


def is_short_stop(link: Link) -> bool:
    """Return whether the sync was asked to stop for a short time only; call this while the sync lock is held."""
    return _is_asked(link.target, link.name)


def wait_for_turn(request: SyncRequest, progress: Progress) -> None:
    """Wait until the session that asked has taken the sync lock and released it, also by its death."""
    progress.say("waiting for the end of a rehearsal")
    with open_ends(request.source, request.target, request.name, read_only=(True, True)) as (source, target):
        # The one that takes the lock clears the request. If it never does, the request expires.
        while changelog.holder(source, request.name) is not None or _is_asked(target, request.name):
            time.sleep(_SECONDS)


def is_passing(error: TrueupError | None, totals: Totals) -> bool:
    """Return whether a sync that follows continues after this error: a lost server, or one more rehearsal."""
    return isinstance(error, NodeError) or (isinstance(error, changelog.AlreadyRunning) and totals.rounds > 0)


def _is_asked(target: Connection, name: str) -> bool:
    return bool(one_value(target.execute(state.statement("is_short_stop"), {"sync": name})))
