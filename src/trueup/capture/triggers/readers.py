"""The rounds of a reader whose results are in another database: detects that one of the two databases went back.

A failover to a standby that was behind, or a restore, takes back commits of one database. The other one keeps what was
read from them, or has forgotten what was deleted here as delivered. Log positions do not show that for certain: they
grow again, and a copy of the files has the same timeline. Therefore each round has a random token:

1. the pods and rows of the round are read;
2. `begin` commits the token here, on disk: a server that has the token has everything that was read;
3. the other database commits the result together with the token;
4. `done` is written in the transaction that deletes the pods: the other database must have step 3 from then on.

So nothing is lost on either side if the token of the other database is the one that began last, or the one that was
done last. Any other token means that one of the two databases went back. A result in several transactions needs two
tokens, one before the first and one in the last transaction; whenever the other database has a token and its pods are
kept (a failed round, a new session), `done` is written before the next round begins.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from psycopg import sql

from trueup.db.connection import Connection, Cursor, one_value
from trueup.db.statements import load


@dataclass(frozen=True)
class Mark:
    """The last round that a database knows: its number, which grows, and its token; no token before the first round."""

    round: int = 0
    token: str = ""


@dataclass(frozen=True)
class Reader:
    """A reader of a tube; `name` distinguishes several readers of one tube."""

    schema: str
    tube: str
    name: str

    def begin(self, connection: Connection, *, after: int = 0) -> Mark:
        """Record that a round was read, and return its mark; commit it before the result is committed elsewhere.

        `after` is a number that the new round exceeds.
        """
        token = secrets.token_hex(8)
        return Mark(int(one_value(self._execute(connection, "begin", token, after=after))), token)

    def done(self, connection: Connection, mark: Mark) -> None:
        """Record that the other database has the mark; if pods are deleted, in the same transaction."""
        self._execute(connection, "done", mark.token)

    def forget(self, connection: Connection) -> None:
        """Remove the rounds of the reader, before its first round."""
        self._execute(connection, "forget")

    def went_back(self, connection: Connection, other: Mark) -> str:
        """Return which side went back: "here", "there" (the database with `other`), "either", or "" (none)."""
        number, begun, done = self._execute(connection, "read").fetchone() or (0, "", "")
        if other.token in (begun, done):
            return ""
        if number == other.round:
            return "either"
        return "here" if number < other.round else "there"

    def _execute(self, connection: Connection, name: str, token: str = "", *, after: int = 0) -> Cursor:
        statement = load("trueup.capture.triggers", "readers.sql")[name]
        query = sql.SQL(statement).format(readers=sql.Identifier(self.schema, "readers"))
        return connection.execute(query, {"tube": self.tube, "reader": self.name, "token": token, "after": after})
