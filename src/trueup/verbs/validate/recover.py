"""What a validation does after an error: plan a table again, wait and reopen the sessions, or store a gap."""

from __future__ import annotations

import time
from collections import Counter

from psycopg.pq import TransactionStatus

from trueup.capture.log.publications import ensure_identities
from trueup.capture.log.slot import SlotLost, lsn_text
from trueup.capture.log.syncer import SubscriptionDropped
from trueup.config.model import Node
from trueup.db.durable import warn_unsafe
from trueup.db.node import is_lost
from trueup.db.storable import as_json, storable
from trueup.engine.failures import uninterrupted
from trueup.errors import CheckFailed, NodeError, TrueupError
from trueup.proof import store
from trueup.verbs.validate.checks import may_pass
from trueup.verbs.validate.look import CatalogChanged
from trueup.verbs.validate.meta import Meta
from trueup.verbs.validate.validator import Validator

_MAX_WAIT = 30.0
_MAX_REPLANS = 3
# The previous session may hold the lock until the server notices that it is gone.
_LOCK_ATTEMPTS = 8


class Recovery:
    """Handles the errors of a round; counts those that follow each other."""

    def __init__(self, validator: Validator, meta_node: Node) -> None:
        self._validator = validator
        self._meta_node = meta_node
        self._attempts = 0
        self._replans: Counter[str] = Counter()

    def reset(self) -> None:
        """Start counting again, after a round without errors."""
        self._attempts = 0
        self._replans.clear()

    def replan_or_stop(self, error: TrueupError) -> None:
        """Plan an altered table again, or stop it; the other tables go on. Raise errors that are not about a table."""
        uninterrupted(error)
        tables, name = self._validator.tables, error.table or ""
        if name not in tables.routes:
            raise error
        self._replans[name] += 1
        self._validator.checker.count()
        if self._validator.capture is not None:
            self._validator.capture.forget()
        tables.save_stopped()
        if isinstance(error, CheckFailed) or self._replans[name] > _MAX_REPLANS:
            tables.stop(name, error.message)
        else:
            tables.replan(name)

    def wait_and_reopen(self, error: TrueupError) -> None:
        """Wait and open all sessions again, until that succeeds or the user requests to stop.

        No round runs while a part of the sessions or tables is not open. Raises an error that does not pass by waiting.
        """
        failure: TrueupError | None = error
        while failure is not None and not self._is_stop_requested():
            is_locked = isinstance(failure, CheckFailed) and self._attempts < _LOCK_ATTEMPTS
            if isinstance(failure, SubscriptionDropped) or (not _is_transient(failure) and not is_locked):
                raise failure
            self._attempts += 1
            failure = self._reopen(failure)

    def _is_stop_requested(self) -> bool:
        try:
            return self._validator.sessions.reload().wanted == "stop"
        except TrueupError:
            return False

    def _reopen(self, error: TrueupError) -> TrueupError | None:
        """Wait and open all sessions again; return the error if that fails."""
        validator, sessions = self._validator, self._validator.sessions
        if isinstance(error, CatalogChanged):
            sessions.log(f"{error}: planning the tables again")
        else:
            seconds = min(_MAX_WAIT, 0.25 * 2**self._attempts)
            sessions.log(f"waiting {seconds:.1f} s after an error: {error}")
            time.sleep(seconds)
        validator.close()
        try:
            # A session in the middle of a query or a transaction would fail at every statement.
            if sessions.meta.connection.info.transaction_status != TransactionStatus.IDLE:
                sessions.meta.close()
                sessions.meta = lock_meta(sessions.name, self._meta_node)
            validator.open()
            sessions.meta.rows("state", name=sessions.name, state="running", reason="")
        except TrueupError as failure:
            return failure
        return None


def _is_transient(error: TrueupError) -> bool:
    """Return whether an error may pass by waiting."""
    if isinstance(error, SlotLost):
        return False
    return isinstance(error, (NodeError, CatalogChanged)) or is_lost(error) or may_pass(error)


def lock_meta(name: str, node: Node, *, is_start: bool = False) -> Meta:
    """Open the meta database and take the lock of the validation; a start clears the requests from before it."""
    meta = Meta(node, application=f"trueup validate {name} meta")
    try:
        with meta.transaction():
            if is_start:
                # In the transaction of the lock, and before it: see `request_stop`.
                meta.rows("want", name=name, wanted="")
            meta.take_lock(name)
            # A publication that is created later must not stop updates and deletes.
            ensure_identities(meta.connection, "trueup")
            if is_start:
                warn_unsafe(meta.connection, node.name)
    except BaseException:
        meta.close()
        raise
    return meta


def store_gap(validator: Validator, error: SlotLost) -> str:
    """Store that changes were lost: no fence is validated until all rows have been compared. Return the reason.

    A gap that is still open is extended: scrubs before this moment do not count.
    """
    sessions = validator.sessions
    stored = sessions.meta.need(sessions.name)
    start = stored.gap["from"] if stored.gap else lsn_text(stored.position or 0)
    # Scrubs have the time of the meta database, too.
    why = storable(sessions.meta.connection, error.message)
    gap = {"from": start, "why": why, "at": sessions.meta.value("clock").isoformat()}
    with sessions.meta.transaction():
        sessions.meta.rows("gap", name=sessions.name, gap=as_json(gap))
        store.void(sessions.meta.connection, sessions.name, why)
        sessions.meta.rows("restart_pass", name=sessions.name, source=None)
    return f"{error.message}; changes after {start} were not seen: a full check is needed"
