"""Sessions for the short statements of tests, kept until the end of a test: a new one costs more than most statements.

`Database.execute` opens a session for each call, as users of the demo expect. The tests call it thousands of times.
"""

from __future__ import annotations

import os
import select
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from trueup.testing.postgres import Database, Statement, last_rows

Session: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

_idle: dict[str, list[Session]] = defaultdict(list)
_lock = threading.Lock()


def keep_sessions() -> None:
    """Let `Database.execute` use sessions again."""
    Database.execute = _execute  # type: ignore[method-assign]


def close_sessions() -> None:
    """Close all sessions that are not used at the moment."""
    with _lock:
        closing = [session for sessions in _idle.values() for session in sessions]
        _idle.clear()
    for session in closing:
        session.close()


def _execute(
    self: Database, statement: Statement, params: Sequence[Any] | Mapping[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    if _needs_others_closed(statement):
        close_sessions()
    with _session(self.uri) as session:
        return last_rows(session.execute(statement, params))


def _needs_others_closed(statement: Statement) -> bool:
    """Return whether a statement fails while sessions are open (of databases), or says what is valid in new ones."""
    text = statement if isinstance(statement, str) else statement.as_string()
    return any(word in text.upper() for word in ("DATABASE ", "ROLE ", "USER ", "SYSTEM "))


@contextmanager
def _session(uri: str) -> Iterator[Session]:
    # No statement is prepared: DISCARD would drop it, and psycopg would not notice.
    session = _take(uri) or psycopg.connect(uri, autocommit=True, prepare_threshold=None)
    try:
        yield session
        session.execute("DISCARD ALL")
    except BaseException:
        session.close()
        raise
    with _lock:
        _idle[uri].append(session)


def _take(uri: str) -> Session | None:
    """Return a session that is still open."""
    while True:
        with _lock:
            if not _idle[uri]:
                return None
            session = _idle[uri].pop()
        if session.info.transaction_status == TransactionStatus.IDLE and not _has_message(session):
            return session
        session.close()


def _has_message(session: Session) -> bool:
    """Return whether the server sent something without a question: its end."""
    poll = select.poll()
    poll.register(session, select.POLLIN)
    return bool(poll.poll(0))


# Sessions belong to the process that opened them.
os.register_at_fork(after_in_child=_idle.clear)
