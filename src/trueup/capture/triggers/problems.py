"""The problem check of attached tables: whether their changes are captured, and whether their rows can be read.

It runs when a job starts, each minute, and before a job ends: catalogs change after `attach`. A table whose rows cannot
be delivered is set aside: its pods wait, and the other tables of the tube go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from trueup.capture.triggers.enrich import rows_query
from trueup.capture.triggers.expressions import STORED_CURE, refused
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.shape import Shape, Shapes
from trueup.db.connection import one_value
from trueup.db.node import error_from_server
from trueup.errors import QueryError

# Seconds between two checks of a job.
CHECK_SECONDS = 60.0


@dataclass(frozen=True)
class Problem:
    """A problem of an attached table: the reason and the cure."""

    source: int
    tube: str
    table: str
    text: str
    # Whether rows of the table cannot be delivered.
    stops: bool
    # Why touches of the table are lost at present.
    loses: str = ""

    def __str__(self) -> str:
        return f"{self.table}: {self.text}"


def find_problems(
    session: Session, tube: str | None = None, *, source: int | None = None, shapes: Shapes | None = None
) -> dict[int, Problem]:
    """Return the problems of the attached tables of a tube, of all tubes, or of one source; `shapes` saves time."""
    query = sql.SQL(
        'SELECT s.source, s.tube, s."table"::text AS "table", p."table" AS shown, p.problem, p.stops, p.loses FROM {} s'
        " LEFT JOIN {}(%(tube)s, %(source)s) p USING (source) WHERE s.detached_at IS NULL"
        " AND s.tube = coalesce(%(tube)s, s.tube) AND s.source = coalesce(%(source)s, s.source) ORDER BY s.source"
    ).format(session.name("sources"), session.name("tube_problems"))
    with _short_locks(session):
        rows = session.records(query, {"tube": tube, "source": source})
        return _find(session, rows, refused(session, tube, source=source), shapes)


def check_tables(session: Session, tube: str, *, shapes: Shapes | None = None) -> dict[int, Problem]:
    """Return the problems of the attached tables of a tube, for its worker.

    What no touch will bring to the copy is noted, so that it stays a problem until a backfill when its cause is gone.
    """
    session.call("tube_storage_follow", tube)
    problems = find_problems(session, tube, shapes=shapes)
    for problem in problems.values():
        if problem.loses:
            session.call("tube_incomplete", problem.source, problem.loses)
    return problems


def _find(
    session: Session, rows: Sequence[Mapping[str, Any]], unusable: Mapping[int, str], shapes: Shapes | None
) -> dict[int, Problem]:
    problems: dict[int, Problem] = {}
    read: dict[int, Shape] = {}
    for name in {row["tube"] for row in rows}:
        sources = [row["source"] for row in rows if row["tube"] == name and row["source"] not in unusable]
        read.update((shapes or Shapes(session, name)).get(sources))
    for row in rows:
        source, table, text, stops = row["source"], row["shown"] or row["table"], row["problem"], bool(row["stops"])
        if not stops and (reason := unusable.get(source) or _unreadable(session, read.get(source))):
            text, stops = f"{reason}: {STORED_CURE}" if source in unusable else reason, True
        if text:
            problems[source] = Problem(source, row["tube"], table, text, stops, row["loses"] or "")
    return problems


def unreadable(session: Session, shape: Shape) -> str:
    """Return why the rows of a table cannot be read; an empty text if they can. Reads no row."""
    if shape.problem or shape.relation is None:
        return shape.problem or "the table or its key does not exist any more"
    try:
        session.connection.execute(rows_query(shape, set()))
    except psycopg.Error as error:
        rejected = error_from_server(error, session.node)
        # A conflict or a lack of resources is no property of the table.
        if not isinstance(rejected, QueryError) or rejected.sqlstate[:2] in ("25", "40", "53", "57", "58"):
            raise rejected from None
        # Neither is a lock: a job that has keys of the table waits for it.
        if rejected.sqlstate[:2] == "55":
            return ""
        return f"its rows cannot be read: {rejected.message}"
    return ""


@contextmanager
def _short_locks(session: Session) -> Iterator[None]:
    """Do not wait long for tables that are locked: the other ones are checked too."""
    with session.errors():
        before = one_value(session.connection.execute("SELECT current_setting('lock_timeout')"))
        session.connection.execute("SELECT set_config('lock_timeout', '1s', false)")
    try:
        yield
    finally:
        if session.is_open and session.connection.info.transaction_status != TransactionStatus.INERROR:
            session.connection.execute("SELECT set_config('lock_timeout', %s, false)", [before])


def _unreadable(session: Session, shape: Shape | None) -> str:
    return unreadable(session, shape) if shape is not None else ""
