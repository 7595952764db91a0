"""A round: the keys that were touched, their rows as they are now, onto the target, and then those entries are gone.

Four round trips, whatever the number of tables: (1) the source's position, then in one consistent view the entries;
(2) the rows; (3) to the target, in one transaction: delete all keys, insert the rows, say how far; (4) to the source:
end the view, delete exactly these entries. Killed anywhere, the entries are still there, and to carry a key over twice
changes nothing. Rows travel as text that the server wrote and the server reads: no value is touched on the way.

A part of the log may not be enough: of two rows that swapped a unique value, one alone does not fit. Then the round is
done again with all that waits, which leaves the target exactly as the source was in that view; that always fits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from trueup.db.connection import one_row, one_value
from trueup.db.statements import load
from trueup.errors import CheckFailed
from trueup.rows.write.copy import check_arrived
from trueup.rows.write.delete import delete_keys
from trueup.rows.write.insert import insert_rows, select_rows
from trueup.rows.write.key_lists import KeyList, key_list
from trueup.verbs.sync import marks
from trueup.verbs.sync.link import Link, shape_query
from trueup.verbs.sync.model import Round, SyncTable

if TYPE_CHECKING:
    from psycopg import sql

# Keys that one transaction takes directly; more are spread over tasks.
SMALL = 60_000
# Bytes of rows, as the tables' averages have it, that the driver may hold.
SMALL_BYTES = 48 * 1024 * 1024
# Bytes of a row of a table that was never analyzed.
UNKNOWN_ROW = 400


@dataclass(frozen=True)
class Changes:
    """What a round found in the change log, in one consistent view that is still open."""

    position: str
    at: datetime
    # The numbers of the entries, as array literals.
    entries: tuple[str, ...]
    keys: dict[int, KeyList]
    reload: tuple[int, ...]
    troubles: tuple[str, ...]
    # Keys that wait beyond those of this round, as often as they were touched; and whether any entry does.
    pending: int
    is_all: bool
    lag: float
    texts: dict[int, list[str]] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        """How many keys the round has."""
        return sum(each.count for each in self.keys.values())


def read_changes(link: Link, most: int | None, *, texts: bool = False) -> Changes:
    """Open one consistent view of the source and read what waits in the log: at most so many keys, or all of them.

    With `texts` the keys come one by one, to be dealt to tasks.
    """
    blocks = load("trueup.verbs.sync", "round.sql")
    apart = [table.number for table in link.tables if texts or len(table.spec.key) > 1]
    taken = sql.SQL(blocks["taken" if most is None else "taken_bounded"]).format(log=link.log)
    entries = sql.SQL(blocks["entries"]).format(taken=taken)
    with link.source.pipeline():
        # In a transaction of its own: all commits before this position are in the view that comes after it.
        link.source.execute("BEGIN")
        position = link.source.execute(blocks["position"])
        link.source.execute("COMMIT")
        link.source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        shape = link.source.execute(*shape_query(link))
        waiting = link.source.execute(sql.SQL(blocks["waiting"]).format(log=link.log))
        found = link.source.execute(entries, {"apart": apart, "most": most})
    if str(one_value(shape)) != link.shape:
        raise CheckFailed(
            ["a synced table, or a trigger of the change log, was changed since the sync began"],
            cure="run again: it names what differs; nothing was carried over",
            node=link.source_node.name,
        )
    rows = found.fetchall()
    changes = _changes(link, one_row(position), one_row(waiting), rows)
    return replace(changes, texts={row[0]: row[4] for row in rows if row[4]}) if texts else changes


def _changes(link: Link, position: Any, waiting: Any, rows: Sequence[tuple[Any, ...]]) -> Changes:
    tables = link.by_number()
    keys: dict[int, KeyList] = {}
    troubles: list[str] = []
    for number, _, count, literal, apart, _, errors, _, _ in rows:
        table = tables.get(number)
        if table is None:
            raise CheckFailed(
                [f"the change log names a table (number {number}) that is not in the sync"],
                cure="trueup sync drop, and start again",
                node=link.source_node.name,
            )
        if count:
            keys[number] = key_list(table.spec, apart) if apart is not None else KeyList(count, (literal,))
        troubles += [f"{table}: {error}" for error in errors]
    return Changes(
        str(position[0]),
        position[1],
        tuple(row[1] for row in rows),
        keys,
        tuple(row[0] for row in rows if row[5]),
        tuple(troubles),
        max(0, int(waiting[1]) - sum(row[8] for row in rows)),
        int(waiting[0]) == sum(row[7] for row in rows),
        float(waiting[2]),
    )


def is_small(link: Link, changes: Changes) -> bool:
    """Whether the driver itself may carry the rows over."""
    tables = link.by_number()
    size = sum(_bytes(tables[number], each.count) for number, each in changes.keys.items())
    return not changes.reload and changes.taken <= (link.direct or SMALL) and size <= SMALL_BYTES


def _bytes(table: SyncTable, rows: int) -> float:
    """About what so many rows of a table take; never more than all of it."""
    return min(table.bytes, rows * (table.bytes / table.rows if table.rows else UNKNOWN_ROW))


def read_rows(link: Link, changes: Changes) -> dict[int, tuple[int, str | None]]:
    """The rows of the keys as they are in the view: how many, and all of them as one array literal."""
    tables = link.by_number()
    with link.source.pipeline():
        asked = {
            number: select_rows(link.source, tables[number].spec, tables[number].row, each)
            for number, each in changes.keys.items()
        }
    return {number: one_row(cursor) for number, cursor in asked.items()}


def apply_rows(link: Link, changes: Changes, rows: dict[int, tuple[int, str | None]], began: float) -> tuple[int, bool]:
    """One transaction of the target: all keys deleted, then all rows inserted. Gives the rows, and whether to stop."""
    tables = link.by_number()
    try:
        with link.target.pipeline():
            link.target.execute("BEGIN")
            link.target.execute(marks.block("still_ours"), {"sync": link.name, "epoch": link.epoch})
            for number, each in changes.keys.items():
                delete_keys(link.target, tables[number].spec, each)
            inserts = [
                (insert_rows(link.target, tables[number].target, literal), count, tables[number])
                for number, (count, literal) in rows.items()
                if literal is not None
            ]
            did = mark(link, changes, began)
            link.target.execute("COMMIT")
    except psycopg.errors.DivisionByZero:
        link.target.execute("ROLLBACK")
        raise marks.taken_over(link.name) from None
    except psycopg.Error:
        link.target.execute("ROLLBACK")
        raise
    for cursor, count, table in inserts:
        # If rows are missing, the entries stay in the change log: the next round carries them again.
        check_arrived(count, cursor.rowcount, node=link.target_node.name, table=str(table))
    return sum(count for count, _ in rows.values()), bool(did.fetchone()[0])


def mark(link: Link, changes: Changes, began: float) -> Any:
    """Say on the target how far it is and what the round did; part of the transaction that did it."""
    link.target.execute(marks.block("mark"), {"sync": link.name, "lsn": changes.position, "at": changes.at})
    seconds = max(time.monotonic() - began, 1e-6)
    facts = {
        "sync": link.name,
        "keys": changes.taken,
        "ms": 1000 * seconds,
        "lag": changes.lag,
        "pending": changes.pending,
        "rate": changes.taken / seconds,
    }
    return link.target.execute(marks.block("did"), facts)


def idle(link: Link, changes: Changes) -> bool:
    """Nothing waited: say on the target how far it is all the same. Gives whether we should stop."""
    try:
        with link.target.pipeline():
            link.target.execute("BEGIN")
            link.target.execute(marks.block("still_ours"), {"sync": link.name, "epoch": link.epoch})
            link.target.execute(marks.block("mark"), {"sync": link.name, "lsn": changes.position, "at": changes.at})
            stop = link.target.execute(marks.block("quiet"), {"sync": link.name})
            link.target.execute("COMMIT")
    except psycopg.errors.DivisionByZero:
        link.target.execute("ROLLBACK")
        raise marks.taken_over(link.name) from None
    return bool(one_value(stop))


def finish(link: Link, changes: Changes) -> None:
    """End the view, and delete exactly the entries whose keys have arrived."""
    if link.check is not None:
        link.check(changes)

    query = sql.SQL(load("trueup.verbs.sync", "round.sql")["delete"]).format(log=link.log)
    with link.source.pipeline():
        link.source.execute("COMMIT")
        for numbers in changes.entries:
            link.source.execute(query, (numbers,))


def small_round(link: Link, changes: Changes, began: float) -> Round:
    """The rows through the driver, in one transaction of the target."""
    try:
        found = read_rows(link, changes)
        if link.ahead is not None:
            link.ahead(changes)
        rows, stop = apply_rows(link, changes, found, began)
    except Exception as error:
        raise link.named(error) from error
    finish(link, changes)
    return replace(done(link, changes, began), rows=rows, stop_asked=stop)


def done(link: Link, changes: Changes, began: float) -> Round:
    """What a round did, before anybody counted the rows."""
    tables = link.by_number()
    return Round(
        keys=changes.taken,
        tables=tuple(str(tables[number]) for number in changes.keys),
        reloaded=tuple(str(tables[number]) for number in changes.reload),
        pending=changes.pending,
        lag=changes.lag,
        milliseconds=1000 * (time.monotonic() - began),
        position=changes.position,
        troubles=changes.troubles,
    )
