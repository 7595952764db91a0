"""The rounds of a switchover: until few keys are left, with a check of each round's keys, and the final one.

`--proof keys` is a proof by induction. The digests of all tables are compared once: those of the source in the snapshot
of a round, those of the target after the round was applied. Each later round compares its keys. So
inside of the pause only the keys of the final round are compared, and no other row can differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace

from psycopg import sql

from trueup.config.wording import counted
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_keys import ForeignKey, TableName
from trueup.errors import TrueupError
from trueup.rows.digest import Digest
from trueup.rows.spec import new_seed
from trueup.rows.write.key_lists import KeyList, in_key_list
from trueup.verbs.switchover import gate
from trueup.verbs.switchover.proof import Prover, cure_without_key, difference
from trueup.verbs.sync.link import Link
from trueup.verbs.sync.model import Round, SyncTable
from trueup.verbs.sync.round import NO_CHECKS, Changes, Checks, rewritten
from trueup.verbs.sync.runner import Runner

# Maximum keys of a final round without tasks: tasks would open sessions first.
FINAL_KEYS = 200_000


class Rounds:
    """Runs rounds and the checks of their keys; a context manager."""

    def __init__(self, link: Link, runner: Runner, prover: Prover) -> None:
        self.link = link
        self.count = 0
        self._runner = runner
        self._prover = prover
        # What differed, of rounds that did not raise.
        self.unequal: list[str] = []
        # What every further round checks.
        self._checks = NO_CHECKS
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="trueup-proof")
        # The source's digests that are being computed: for which changes, and with which seed.
        self._ahead: tuple[Changes, int, Future[dict[str, Digest]]] | None = None

    def __enter__(self) -> Rounds:
        return self

    def __exit__(self, *exc: object) -> None:
        self._threads.shutdown(wait=True)

    def catch_up(self, keys: int, timeout: float) -> None:
        """Run rounds until one had at most `keys` keys; raise after `timeout` seconds."""
        until = time.monotonic() + timeout
        while True:
            last = self.round()
            if not last.pending and last.keys <= keys and not (last.reloaded and last.large):
                return
            if time.monotonic() > until:
                raise TrueupError(
                    f"changes arrive faster than rounds apply them: {counted(last.keys + last.pending, 'key')}"
                    f" in the last round after {timeout:g} s",
                    cure="try again when there is less load, or allow more: --close-keys, --timeout",
                )

    def round(self) -> Round:
        """Run one round over all entries."""
        return self._round(self._checks)

    def final(self, *, held: bool) -> Round:
        """Run the round inside of the pause, without tasks; with `held` the session has locked all tables."""
        self.count += 1
        with self._ending_digests():
            return self._runner.final_round(FINAL_KEYS, checks=self._checks, held=held)

    def prove_all(self) -> list[str]:
        """Compare all tables and all foreign keys in the snapshot of a round; later rounds compare their keys.

        A table that was rewritten after the snapshot (TRUNCATE, ALTER TABLE) is compared in a round of its own, which
        locks it before its snapshot.
        """
        stale: list[SyncTable] = []

        def join(changes: Changes) -> None:
            snapshot = one_value(self.link.source.execute("SELECT pg_export_snapshot()"))
            self._prover.source.join(str(snapshot))

        try:
            self._round(Checks(applied=join))
            # Only the sync writes to the target: it stays as the round left it.
            self._prover.target.join(None)
            unequal = self._prover.unequal(self._prover.tables)
            rows = rewritten(self._prover.source.connections[0], self.link.tables).fetchall()
            stale = [table for table in self.link.tables if table.oid in {oid for oid, _ in rows}]
            broken = gate.broken_foreign_keys(self._prover.target.connections[0], self.link.plan.foreign_keys)
        finally:
            self._prover.source.leave()
            self._prover.target.leave()
        self._checks = Checks(rows_read=self._start_digests, applied=self._compare)
        problems = [text for name, text in unequal.items() if name not in map(str, stale)]
        return [*problems, *(text for table in stale for text in self._compare_whole(table)), *broken]

    def _compare_whole(self, table: SyncTable) -> list[str]:
        """Compare a table in a round that locks it."""
        problems: list[str] = []
        nodes = (self.link.source_node.name, self.link.target_node.name)

        def compare(changes: Changes) -> None:
            self._checks.applied(changes)
            seed = new_seed()
            on_source, on_target = (
                self._prover.whole_digest(connection, table, seed)
                for connection in (self.link.source, self.link.target)
            )
            if on_source != on_target:
                problems.append(difference(table, nodes, on_source, on_target))

        self._round(replace(self._checks, applied=compare), locked=[table.number])
        return problems

    def check_references(self) -> list[str]:
        """Check all foreign keys after a round; later rounds check those of their rows.

        A validation proves the rows, and names those that differ. Later rounds compare their keys all the same, and
        keep what differs in `unequal`: a proof by keys, if a table cannot be read by the validation any more.
        """
        self._round(NO_CHECKS)
        problems = gate.broken_foreign_keys(self.link.target, self.link.plan.foreign_keys)
        self._checks = Checks(rows_read=self._start_digests, applied=self._keep_unequal)
        return problems

    def _round(self, checks: Checks, *, locked: Sequence[int] = ()) -> Round:
        self.count += 1
        with self._ending_digests():
            return self._runner.round(everything=True, checks=checks, locked=locked)

    @contextmanager
    def _ending_digests(self) -> Iterator[None]:
        """Wait for digests of the source that are still computed when a round has failed."""
        try:
            yield
        finally:
            if self._ahead is not None:
                wait([self._ahead[2]])
                self._ahead = None

    def _start_digests(self, changes: Changes) -> None:
        """Start to compute the source's digests while the target writes."""
        seed = new_seed()
        ahead = self._threads.submit(self._digests, self.link.source, *self._parts(changes), seed)
        self._ahead = (changes, seed, ahead)

    def _parts(self, changes: Changes) -> tuple[list[tuple[SyncTable, KeyList]], list[SyncTable]]:
        """Return the keys of a round by table, and the tables that it copied as a whole."""
        tables = self.link.by_number()
        listed = [(tables[number], keys) for number, keys in changes.keys.items() if number not in changes.reload]
        return listed, [tables[number] for number in changes.reload]

    def _compare(self, changes: Changes) -> None:
        """Compare the rows of a round on both sides; raise if they differ, so that the entries stay in the log."""
        unequal, broken = self._differences(changes)
        gate.refuse([gate.condition(gate.ROWS, unequal), gate.condition(gate.REFERENCES, broken)])

    def _keep_unequal(self, changes: Changes) -> None:
        """Compare the rows of a round, and raise if foreign keys are wrong."""
        unequal, broken = self._differences(changes)
        self.unequal += unequal
        gate.refuse([gate.condition(gate.REFERENCES, broken)])

    def _differences(self, changes: Changes) -> tuple[list[str], list[str]]:
        """Return how the rows of a round differ, and the foreign keys that they break."""
        listed, reloaded = self._parts(changes)
        if self._ahead is None or self._ahead[0] is not changes:
            self._start_digests(changes)
        assert self._ahead is not None
        try:
            on_target = self._digests(self.link.target, listed, reloaded, self._ahead[1])
            deleted = {table.name for table, keys in listed if on_target[str(table)].count < keys.count}
            broken = self._broken_by(changes, deleted)
        finally:
            # The session with the source must not be used before this has ended.
            on_source, self._ahead = self._ahead[2].result(), None
        nodes = (self.link.source_node.name, self.link.target_node.name)
        unequal = [
            f"{name}: rows of the last round differ ({counted(on_source[name].count, 'row')} on the source,"
            f" {on_target[name].count:,} on the target){cure_without_key(table, nodes)}"
            for table in (*(table for table, _ in listed), *reloaded)
            if on_source[name := str(table)] != on_target[name]
        ]
        return unequal, broken

    def _digests(
        self, connection: Connection, listed: list[tuple[SyncTable, KeyList]], reloaded: list[SyncTable], seed: int
    ) -> dict[str, Digest]:
        digests = {str(table): self._prover.keys_digest(connection, table, keys, seed) for table, keys in listed}
        return digests | {str(table): self._prover.whole_digest(connection, table, seed) for table in reloaded}

    def _broken_by(self, changes: Changes, deleted: set[TableName]) -> list[str]:
        """Return the foreign keys that rows of this round break: as children, or as deleted parents."""
        by_number = self.link.by_number()
        tables = {table.name: table for table in self.link.tables}
        reloaded = {by_number[number].name for number in changes.reload}
        keys_of = {by_number[number].name: keys for number, keys in changes.keys.items()}
        target = self.link.target
        broken: list[str] = []
        for key in self.link.plan.foreign_keys:
            # The child may be outside of the sync.
            child, parent = tables.get(key.child_root), tables[key.parent_root]
            # A row that leaves a partition with references to it is not among the deleted rows.
            by_key = key.parent == parent.name and not key.period
            by_key = by_key and sorted(key.parent_columns) == sorted(parent.spec.key_names)
            is_whole = key.child_root in reloaded or parent.name in reloaded
            if is_whole or (parent.name in keys_of and not by_key):
                broken += gate.broken_foreign_keys(target, [key])
                continue
            if child is not None and child.name in keys_of:
                broken += gate.broken_foreign_keys(target, [key], in_key_list(child.spec, keys_of[child.name]))
            if parent.name in deleted:
                broken += gate.broken_foreign_keys(target, [key], _refers_to(key, parent, keys_of[parent.name]))
        return broken


def _refers_to(key: ForeignKey, parent: SyncTable, keys: KeyList) -> sql.Composable:
    """Return the condition that a row `t` of the child refers to one of these keys of the parent."""
    child_column = dict(zip(key.parent_columns, key.child_columns, strict=True))
    renamed = tuple(
        replace(part, column=replace(part.column, name=child_column[part.column.name])) for part in parent.spec.key
    )
    return in_key_list(replace(parent.spec, key=renamed), keys)
