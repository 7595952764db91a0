"""A sink for tests: documents in an SQLite file, which other processes can read, and faults on demand."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from trueup.sinks.base import Document, Mark, Shards, SinkDown, SinkRejected, SourceTable


class SqliteSink:
    """Keeps documents by table, shard and key. Files beside the database make it fail: down, poison, kill, slow."""

    driver_only: ClassVar[bool] = False

    def __init__(self, path: str) -> None:
        self.path = path
        self._db: sqlite3.Connection | None = None

    def setup(self, tables: Sequence[SourceTable]) -> None:
        with self.db:
            self.db.execute(
                "CREATE TABLE IF NOT EXISTS kept (tab TEXT, shard INT, key TEXT, op TEXT, row TEXT, seq INT, at TEXT,"
                " PRIMARY KEY (tab, key, shard))"
            )
            self.db.execute("CREATE TABLE IF NOT EXISTS log (documents INT, at REAL)")
            self.db.execute("CREATE TABLE IF NOT EXISTS tables (tab TEXT PRIMARY KEY, columns TEXT)")
            for table in tables:
                values = (table.table, json.dumps([table.columns, table.key]))
                self.db.execute("INSERT OR REPLACE INTO tables VALUES (?, ?)", values)

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        if self.has("down"):
            raise SinkDown("out of order")
        while self.has("slow"):
            self.fault("busy")
            time.sleep(0.01)
        if kind := self.has("poison"):
            how, *keys = kind.split()
            bad = [each for each in batch if each.key[0] in keys or "all" in keys]
            if bad and how == "named":
                raise SinkRejected("poison", reasons={each.identity: "cannot be digested" for each in bad})
            if bad:
                raise ValueError("cannot be digested")
        if self.has("kill") == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        with self.db:
            for document in batch:
                name = (document.table, json.dumps(document.key), document.shard)
                if document.row is None:
                    self.db.execute("DELETE FROM kept WHERE tab = ? AND key = ? AND shard = ?", name)
                else:
                    values = (*name, document.op, json.dumps(document.row), mark.seq, mark.at.isoformat())
                    self.db.execute(
                        "INSERT OR REPLACE INTO kept (tab, key, shard, op, row, seq, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
                        values,
                    )
            self.db.execute("INSERT INTO log VALUES (?, ?)", (len(batch), time.time()))
        if self.has("kill") == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        rows = self.db.execute(
            "SELECT shard, key FROM kept WHERE tab = ? AND seq < ? AND key > ? ORDER BY key, shard",
            (table, start_seq, "" if after is None else json.dumps(after)),
        ).fetchall()
        found = [(shard, tuple(json.loads(key))) for shard, key in rows if shards == "all" or shard in shards]
        end = limit
        while 0 < end < len(found) and found[end][1] == found[end - 1][1]:
            end += 1
        return found[:end]

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @property
    def db(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = OFF")
        return self._db

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_db": None}

    # For tests.

    def fault(self, name: str, text: str | None = "yes") -> None:
        """Set a fault; None removes it."""
        place = Path(f"{self.path}.{name}")
        if text is None:
            place.unlink(missing_ok=True)
        else:
            place.write_text(text, encoding="utf-8")

    def has(self, name: str) -> str:
        """Return the text of a fault, or an empty text."""
        try:
            return Path(f"{self.path}.{name}").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def rows(self, table: str) -> dict[tuple[int, tuple[str, ...]], dict[str, Any]]:
        """Return all documents of a table, by shard and key."""
        found = self.db.execute("SELECT shard, key, row FROM kept WHERE tab = ?", (table,)).fetchall()
        return {(shard, tuple(json.loads(key))): json.loads(row) for shard, key, row in found}

    @property
    def count(self) -> int:
        """The number of writes."""
        return int(self.db.execute("SELECT count(*) FROM log").fetchone()[0])

    @property
    def writes(self) -> int:
        """The number of documents written."""
        return int(self.db.execute("SELECT coalesce(sum(documents), 0) FROM log").fetchone()[0])
