"""The bytes of a COPY TO STDOUT in large pieces: libpq hands over single rows, and a call for each costs more."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg

from trueup.db.connection import Connection

if TYPE_CHECKING:
    from psycopg import sql

# Measured: pieces that stay in the cache cost a third less than pieces of a megabyte.
PIECE = 32 * 1024


class CopyOut:
    """What a server sends, rows put together to pieces; an error in the middle is raised, never an early end.

    The connection is the caller's, in autocommit or a transaction of its own. After an error in the middle, or when the
    reader stops before the end, it can only be closed.
    """

    def __init__(self, connection: Connection, query: sql.Composable, *, piece: int = PIECE) -> None:
        self._connection = connection
        self._query = query
        self._piece = piece
        # How many rows the server says that it gave; known at the end.
        self.rows = -1

    def __iter__(self) -> Iterator[bytes]:
        pgconn = self._connection.pgconn
        ready = select.poll()
        ready.register(pgconn.socket, select.POLLIN)
        pgconn.send_query(self._query.as_bytes(self._connection))
        _flush(pgconn)
        result = _answer(pgconn, ready)
        if result is None or result.status != psycopg.pq.ExecStatus.COPY_OUT:
            raise _error(result, pgconn)
        yield from self._pieces(pgconn, ready)
        # The end is an end only if the server says so: it may have met an error after many rows.
        while (result := _answer(pgconn, ready)) is not None:
            if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
                raise _error(result, pgconn)
            self.rows = result.command_tuples or 0

    def _pieces(self, pgconn: Any, ready: select.poll) -> Iterator[bytes]:
        rows: list[memoryview] = []
        size = 0
        get = pgconn.get_copy_data
        while True:
            length, data = get(1)
            if length > 0:
                rows.append(data)
                size += length
                if size >= self._piece:
                    yield b"".join(rows)
                    rows, size = [], 0
            elif length == 0:
                ready.poll()
                pgconn.consume_input()
            else:
                break
        if rows:
            yield b"".join(rows)


def _flush(pgconn: Any) -> None:
    writable = select.poll()
    writable.register(pgconn.socket, select.POLLOUT)
    while pgconn.flush():
        writable.poll()


def _answer(pgconn: Any, ready: select.poll) -> Any:
    while pgconn.is_busy():
        ready.poll()
        pgconn.consume_input()
    return pgconn.get_result()


def _error(result: Any, pgconn: Any) -> Exception:
    if result is None:
        return psycopg.OperationalError("the server ended the COPY without an answer")
    error = psycopg.errors.error_from_result(result)
    # What else was said must be read before the session can be used again.
    while pgconn.get_result() is not None:
        pass
    return error
