"""The scrub: hashes the tables block by block on both nodes, oldest block first, and remembers what it found.

So rows that never change are checked too, and what no log shows (a bit flipped on a disk, triggers switched off) is
found. The differing keys of a block become pending and are checked like changed keys: a row in flight is not an error
here either. When all blocks of a table were hashed after a moment, that is its certificate. A truncated table is
compared in the same way, because the log does not say which rows were removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from trueup.errors import TrueupError
from trueup.proof import store
from trueup.proof.model import CertificateBlock
from trueup.proof.touched import Cuts
from trueup.rows.keys import Block, KeyValues
from trueup.verbs.validate import pending, row_errors
from trueup.verbs.validate.checks import Checker, with_table
from trueup.verbs.validate.pending import SCRUB, Entry, Touch
from trueup.verbs.validate.proving.certify import Marks, certificate_of, merged
from trueup.verbs.validate.proving.scrub_block import BlockReader, Hashed
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.tables import Tables

# The share of the time for a table that was added or restarted, if the validation has no --scrub-share.
_REQUESTED_SHARE = 0.2
# Time that was not used is kept for this long, and one round works for this long at most.
_SAVED_SECONDS = 2.0
_ROUND_SECONDS = 0.2
# If no block is due, how long to wait.
_IDLE_SECONDS = 1.0
_WHOLE = CertificateBlock(Block(None, None))


@dataclass(frozen=True)
class Due:
    """A block to hash now."""

    table: str
    block: CertificateBlock


class Scrubber:
    """Scrubs one block after the other, for a share of the time."""

    def __init__(self, sessions: Sessions, tables: Tables, checker: Checker) -> None:
        self._sessions = sessions
        self._tables = tables
        self._checker = checker
        # Seconds that may be used now; less than 0 after a block that took longer.
        self._credit = 0.0
        self._counted_at = time.monotonic()
        self._idle_until = 0.0
        self._cuts: dict[str, Cuts] = {}
        # The last watch of the validation: see `record`.
        self._watch = 0
        # Changes with the blocks: numbers of blocks from before it may not exist any more.
        self.generation = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="trueup-scrub")

    def close(self) -> None:
        """Wait for the block in progress."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    # ---- which blocks captured changes touch

    def touch(self, keys: Mapping[str, Iterable[KeyValues]]) -> None:
        """Record that changes concern the blocks of these keys; in the transaction that moves the position."""
        numbers: set[int] = set()
        for table, of_table in keys.items():
            cuts = self.cuts_of(table)
            if cuts is not None:
                numbers |= cuts.touched_by(of_table)
        self.touch_blocks(numbers)

    def touch_tables(self, tables: Iterable[str]) -> None:
        """Record that changes concern all blocks of these tables."""
        for table in tables:
            cuts = self.cuts_of(table)
            if cuts is not None:
                self.touch_blocks(cuts.touch_all())

    def touch_blocks(self, numbers: Iterable[int]) -> None:
        """Record that changes concern these blocks."""
        touched = set(numbers)
        for cuts in self._cuts.values():
            cuts.untouched -= touched
        with self._sessions.meta.errors():
            store.touch(self._sessions.meta.connection, touched, self._watch)

    def cuts_of(self, table: str) -> Cuts | None:
        """Return the blocks of a table that is validated; None if none of them is untouched."""
        pair = self._tables.pairs.get(table)
        if pair is None:
            return None
        if table not in self._cuts:
            with self._sessions.meta.errors():
                blocks = store.blocks(self._sessions.meta.connection, self._sessions.name, table)
            self._cuts[table] = Cuts(pair.source.key, blocks, self._watch)
        cuts = self._cuts[table]
        return cuts if cuts.untouched else None

    def untouched_cuts(self) -> dict[str, Cuts]:
        """Return the blocks of all tables that have untouched ones."""
        found = {name: self.cuts_of(name) for name in self._tables.pairs}
        return {name: cuts for name, cuts in found.items() if cuts is not None}

    def follow_watch(self) -> None:
        """Record from now on which blocks are touched in the last watch; called between two rounds."""
        sessions = self._sessions
        watch = sessions.stored.watch
        if watch != self._watch:
            self._watch = watch
            self.forget()
        if watch != sessions.stored.watch_known:
            sessions.meta.rows("watch_known", name=sessions.name, watch=watch)

    def forget(self) -> None:
        """Read the blocks again before they are used: a transaction was rolled back, or tables were planned again."""
        self._cuts.clear()
        self.generation += 1
        self._idle_until = 0.0

    # ---- scrubbing

    def scrub(self, marks: Marks) -> None:
        """Scrub the blocks that are due, as far as the share of the time allows it."""
        share = self._sessions.settings.scrub_share
        start = time.monotonic()
        credit = self._credit + (share or _REQUESTED_SHARE) * (start - self._counted_at)
        self._credit, self._counted_at = min(credit, _SAVED_SECONDS), start
        if start < self._idle_until:
            return
        while self._credit > 0 and time.monotonic() < start + _ROUND_SECONDS:
            began = time.monotonic()
            names = self._tables.pairs if share > 0 else self._tables.to_scrub & self._tables.pairs.keys()
            due = self._next(list(names)) if names else None
            if due is None:
                # Time in which nothing was due is not made up for later.
                self._credit = 0.0
                self._idle_until = time.monotonic() + _IDLE_SECONDS
                return
            self._scrub(due, marks)
            self._credit -= time.monotonic() - began

    def scrub_truncated(self, entry: Entry, marks: Marks) -> None:
        """Hash a whole table: its differing keys become pending, and the change without keys is decided.

        Runs in the transaction of the caller. It does not count as a pass: what voids a certificate stays.
        """
        touch, name = entry.as_touch("delete"), entry.source
        began_at: datetime | None = None
        while name in self._tables.pairs:
            row = self._candidates([name])[0]
            began_at = began_at or row["now"]
            due = Due(name, _block_of(row))
            if due.block.hashed_at is not None and due.block.hashed_at >= began_at:
                break
            hashed_at = self._clock()
            self._store(due, self._hash(due), hashed_at, marks, touch)
        pending.drop(self._sessions.meta, self._sessions.name, [entry.place])

    def _next(self, tables: list[str]) -> Due | None:
        """Return the oldest block that is due."""
        half = timedelta(seconds=self._sessions.settings.scrub_period / 2)
        due: list[Due] = []
        for row in self._candidates(tables):
            block, began_at = _block_of(row), row["scrub_began_at"]
            is_new = block.hashed_at is None or block.hashed_at <= row["now"] - half
            if is_new or (row["is_needed"] and (began_at is None or block.hashed_at < began_at)):
                due.append(Due(row["source"], block))
        never = datetime.min.replace(tzinfo=timezone.utc)
        return min(due, key=lambda each: each.block.hashed_at or never, default=None)

    def _candidates(self, tables: list[str]) -> list[dict[str, Any]]:
        return self._sessions.meta.rows("scrub_candidates", name=self._sessions.name, sources=tables)

    def _scrub(self, due: Due, marks: Marks) -> None:
        """Hash a block, and store what was found in one transaction."""
        meta, validation = self._sessions.meta, self._sessions.name
        # The time of a block is from before it is read: rows of it may change as soon as it is read.
        hashed_at = self._clock()
        hashed = self._hash(due)
        with meta.transaction():
            # No settings are changed meanwhile: a block that was compared with weaker ones does not count.
            meta.rows("lock_row", name=validation)
            if meta.need(validation).settings.is_stricter(self._sessions.settings):
                return
            self._store(due, hashed, hashed_at, marks, Touch(SCRUB, marks.source, marks.source, 0, None))
            self._count(due.table, hashed.digest.count, hashed_at)

    def _store(self, due: Due, hashed: Hashed, hashed_at: datetime, marks: Marks, touch: Touch) -> None:
        """Store a block and the keys that differ, in the transaction of the caller."""
        meta, validation, name = self._sessions.meta, self._sessions.name, due.table
        self._checker.pending += self.suspect(name, hashed.differing, touch)
        block = CertificateBlock(
            hashed.block, hashed.digest, hashed_at, marks.source, marks.target, is_touched=not hashed.is_equal,
            seed=hashed.seed,
        )  # fmt: skip
        after = [block] if hashed.rest is None else [block, CertificateBlock(hashed.rest)]
        if due.block.id:
            after = store.replace_block(meta.connection, validation, name, due.block, after)
        else:
            after = store.replace_all(meta.connection, validation, name, after)
        self.generation += 1
        cuts = self._cuts.get(name)
        if cuts is not None and len(after) == 1 and after[0].id == due.block.id:
            cuts.set_touched(due.block.id, is_touched=after[0].is_touched)
        else:
            self._cuts.pop(name, None)

    def _count(self, name: str, rows: int, hashed_at: datetime) -> None:
        """Count a block that was stored; if it is the last one of a pass, store the certificate."""
        meta, validation = self._sessions.meta, self._sessions.name
        row = self._candidates([name])[0]
        oldest_at = _block_of(row).hashed_at
        began_at: datetime = row["scrub_began_at"] or hashed_at
        is_complete = oldest_at is not None and oldest_at >= began_at
        meta.rows("scrub", name=validation, source=name, rows=rows, passes=int(is_complete), now=began_at)
        if is_complete:
            self._complete(name, began_at)
            self._cuts.pop(name, None)
            self._tables.to_scrub.discard(name)

    def _clock(self) -> datetime:
        now: datetime = self._sessions.meta.value("clock")
        return now

    def _complete(self, name: str, began_at: datetime) -> None:
        """Store the certificate of a table: all its blocks were hashed since `began_at`."""
        meta, validation, settings = self._sessions.meta, self._sessions.name, self._sessions.settings
        blocks = store.blocks(meta.connection, validation, name)
        fewer = merged(blocks, settings.scrub_rows)
        if len(fewer) < len(blocks):
            store.replace_all(meta.connection, validation, name, fewer)
        store.put(meta.connection, certificate_of(self._sessions, self._tables.pairs[name], blocks, began_at))
        meta.rows("gap_closed", name=validation)
        # Open errors are checked in every round, ignored ones once per pass.
        self._checker.check_ignored(name)

    def _hash(self, due: Due) -> Hashed:
        settings = self._sessions.settings
        reader = BlockReader(
            self._tables.pairs[due.table], self._sessions.servers, self._sessions.application, settings.timeout,
            self._executor,
        )  # fmt: skip
        known = due.block.digest.count if due.block.hashed_at is not None else None
        try:
            return reader.hash(due.block.block, rows=settings.scrub_rows, known=known)
        except TrueupError as error:
            raise with_table(error, due.table) from None

    def suspect(self, name: str, keys: tuple[KeyValues, ...], touch: Touch) -> int:
        """Make differing keys pending, unless they are pending or errors; return the number of new ones.

        A row that is listed as an error is decided: it would hold back fences and a cut-over on each pass. A row that
        is pending because of later changes holds back the position of `touch` from now on.
        """
        if not keys:
            return 0
        meta, validation = self._sessions.meta, self._sessions.name
        entries = pending.known(meta, validation, [(name, key) for key in keys])
        known = {key for _, key in entries} | row_errors.known(meta, validation, name, keys)
        suspected = [Entry.of(name, key, touch) for key in keys if key not in known]
        self._checker.postpone(suspected, 0)
        later = [entry for entry in entries.values() if entry.first_lsn > touch.first_lsn]
        self._checker.postpone([replace(entry, first_lsn=touch.first_lsn) for entry in later], 0)
        return len(suspected)


def _block_of(row: dict[str, Any]) -> CertificateBlock:
    return _WHOLE if row["id"] is None else store.block_of(row)
