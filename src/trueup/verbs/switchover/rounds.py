"""The rounds of a switchover: those that come close, those that are proven key by key, and the last one in the pause.

`--proof keys` goes by induction. Once, the digests of all tables are compared: the source's in the very view that a
round was read in, the target's after it was applied. From then on, every round compares the keys it carried. So what
is left for the pause is the keys of the last round, and nothing else can differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from psycopg import sql

from trueup.db.connection import Connection
from trueup.errors import TrueupError
from trueup.rows.digest import Digest
from trueup.rows.write.key_lists import KeyList, in_key_list
from trueup.verbs.switchover import gate
from trueup.verbs.switchover.proof import Prover, keys_digest, keys_there, whole_digest

if TYPE_CHECKING:
    from psycopg import sql

    from trueup.db.foreign_keys import ForeignKey, TableName
    from trueup.verbs.switchover.phases import Budget
    from trueup.verbs.sync.link import Link
    from trueup.verbs.sync.model import Round, SyncTable
    from trueup.verbs.sync.round import Changes
    from trueup.verbs.sync.run import Runner

# Keys of a last round that one transaction takes directly.
DIRECT = 200_000


class Rounds:
    """Carries rounds over and keeps what the gate wants to know of them."""

    def __init__(self, link: Link, runner: Runner, prover: Prover) -> None:
        self.link = link
        self.count = 0
        self._runner = runner
        self._prover = prover
        # What the last round that was looked at found: rows that differ, and foreign keys that are broken.
        self.unequal: list[str] = []
        self.broken: list[str] = []
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="trueup-proof")
        # The digests of the source that are on their way, and of which round.
        self._begun: tuple[Changes, Future[dict[str, Digest]]] | None = None

    def come_close(self, keys: int, patience: float) -> None:
        """Rounds until at most so many keys wait; an error when that does not come about in time."""
        until = time.monotonic() + patience
        while True:
            done = self._round()
            if not done.pending and done.keys <= keys and not done.reloaded:
                return
            if time.monotonic() > until:
                raise TrueupError(
                    f"changes come faster than rounds carry them over: {done.keys + done.pending:,} keys in the last"
                    f" round after {patience:g} s",
                    cure="try when less is written, or allow more: --close-keys, --patience",
                )

    def prove(self) -> list[str]:
        """Compare all tables and all foreign keys, in the view of a round; later rounds compare what they carry."""
        link = self.link

        def join(changes: Changes) -> None:
            row: Any = link.source.execute("SELECT pg_export_snapshot()").fetchone()
            self._prover.source.join(str(row[0]))

        self._check(join)
        try:
            self._round()
            # Nobody but us writes to the target: it stays as the round left it.
            self._prover.target.join(None)
            wrong = self._prover.unequal(self._prover.tables)
            wrong += gate.broken(self._prover.target.connections[0], link.plan.foreign_keys)
        finally:
            self._prover.source.leave()
            self._prover.target.leave()
        link.ahead = self._look_ahead
        self._check(self._compare)
        return wrong

    def carry(self) -> Round:
        """One round."""
        return self._round()

    def watch_references(self) -> list[str]:
        """Look at all foreign keys once, after a round; later rounds look at those of the rows that they carry."""
        self._round()
        wrong = gate.broken(self.link.target, self.link.plan.foreign_keys)
        self._check(self._still_refer)
        return wrong

    def last(self, budget: Budget) -> Round:
        """The round inside of the pause: all that waits, directly, for tasks would open sessions first."""
        self.link.direct = DIRECT
        return self._round()

    def is_proven_by_keys(self) -> bool:
        """Whether rounds compare what they carry."""
        return self.link.check is not None

    def close(self) -> None:
        """Wait for what is under way."""
        self._threads.shutdown(wait=True)

    def _round(self) -> Round:
        self.count += 1
        try:
            return self._runner.round(everything=True)
        finally:
            # A round that failed while the source was being read ahead.
            if self._begun is not None:
                wait([self._begun[1]])
                self._begun = None

    def _check(self, check: Callable[[Changes], None] | None) -> None:
        self.link.check = check

    def _look_ahead(self, changes: Changes) -> None:
        """Begin with the source's digests while the target still writes."""
        self._begun = (changes, self._threads.submit(self._digests, self.link.source, *self._parts(changes)))

    def _parts(self, changes: Changes) -> tuple[list[tuple[SyncTable, KeyList]], list[SyncTable]]:
        """The keys of a round table by table, and the tables that it read anew as a whole."""
        tables = self.link.by_number()
        listed = [(tables[number], keys) for number, keys in changes.keys.items() if number not in changes.reload]
        return listed, [tables[number] for number in changes.reload]

    def _compare(self, changes: Changes) -> None:
        """The rows of a round on both sides, by digest, while its view of the source is still open."""
        listed, whole = self._parts(changes)
        if self._begun is None or self._begun[0] is not changes:
            self._look_ahead(changes)
        assert self._begun is not None
        try:
            found, self.broken = self._on_the_target(changes, listed, whole)
        finally:
            # Whatever happens: nobody else may use the session with the source before this has ended.
            mine, self._begun = self._begun[1].result(), None
        self.unequal = [
            f"{table}: a round carried it over, and {mine[str(table)].count:,} rows became {found[str(table)].count:,}"
            if mine[str(table)].count != found[str(table)].count
            else f"{table}: a round carried rows over, and they are not the same"
            for table in (*(table for table, _ in listed), *whole)
            if mine[str(table)] != found[str(table)]
        ]
        if self.unequal or self.broken:
            # The entries stay in the log: nothing of this round is called done.
            gate.refuse(
                [gate.condition(gate.ROWS, self.unequal), gate.condition(gate.REFERENCES, self.broken)],
            )

    def _still_refer(self, changes: Changes) -> None:
        """The foreign keys of a round's rows; that the rows are the same, somebody else proves."""
        listed, _ = self._parts(changes)
        gone = {table.name for table, keys in listed if keys_there(self.link.target, table, keys) < keys.count}
        self.broken = self._references(changes, gone)
        gate.refuse([gate.condition(gate.REFERENCES, self.broken)])

    def _on_the_target(
        self, changes: Changes, listed: list[tuple[SyncTable, KeyList]], whole: list[SyncTable]
    ) -> tuple[dict[str, Digest], list[str]]:
        found = self._digests(self.link.target, listed, whole)
        gone = {table.name for table, keys in listed if found[str(table)].count < keys.count}
        return found, self._references(changes, gone)

    def _digests(
        self, connection: Connection, listed: list[tuple[SyncTable, KeyList]], whole: list[SyncTable]
    ) -> dict[str, Digest]:
        found = {str(table): keys_digest(connection, self._prover.key_query(table), keys) for table, keys in listed}
        found |= {str(table): whole_digest(connection, self._prover.specs[table.name]) for table in whole}
        return found

    def _references(self, changes: Changes, gone: set[TableName]) -> list[str]:
        """Foreign keys that rows of this round break: as children, or as parents that are gone."""
        by_number = self.link.by_number()
        tables = {table.name: table for table in self.link.tables}
        reloaded = {by_number[number].name for number in changes.reload}
        keys = {by_number[number].name: each for number, each in changes.keys.items()}
        found: list[str] = []
        for key in self.link.plan.foreign_keys:
            by_key = sorted(key.parent_columns) == sorted(tables[key.parent].spec.key_names)
            if key.child in reloaded or key.parent in reloaded or (key.parent in keys and not by_key):
                found += gate.broken(self.link.target, [key])
                continue
            if key.child in keys:
                found += gate.broken(self.link.target, [key], in_key_list(tables[key.child].spec, keys[key.child]))
            if key.parent in gone:
                found += gate.broken(self.link.target, [key], _refers_to(key, tables[key.parent], keys[key.parent]))
        return found


def _refers_to(key: ForeignKey, parent: SyncTable, keys: KeyList) -> sql.Composable:
    """The condition that a row `t` of the child refers to one of these rows of the parent, by its key."""
    own = dict(zip(key.parent_columns, key.child_columns, strict=True))
    types = {part.column.name: part.column.type for part in parent.spec.key}
    names = parent.spec.key_names
    mine = sql.SQL(", ").join(sql.Identifier("t", own[name]) for name in names)
    if len(names) == 1:
        return sql.SQL("{} = ANY({}::{}[])").format(mine, sql.Literal(keys.literals[0]), sql.SQL(types[names[0]]))
    lists = sql.SQL(", ").join(
        sql.SQL("{}::{}[]").format(sql.Literal(text), sql.SQL(types[name]))
        for name, text in zip(names, keys.literals, strict=True)
    )
    return sql.SQL("({}) IN (SELECT * FROM unnest({}))").format(mine, lists)
