"""The demo of the switchover: an application that keeps writing is moved to another database, and back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.db.statements import load
from trueup.engine.progress import Progress
from trueup.store import TaskStore
from trueup.testing.postgres import Database, Server
from trueup.verbs.switchover import ending
from trueup.verbs.switchover import run as switchover
from trueup.verbs.switchover.connect import connect
from trueup.verbs.switchover.outcome import Outcome
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import EXECUTE, ROLLBACK, SwitchoverRequest
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.totals import Until

_WRITERS = 3
# Transactions that each writer makes before something happens, and a writer's pause between two.
_ENOUGH = 200
_THINKS = 0.002


@dataclass(frozen=True)
class Moved:
    """What the demo has to show: the moves, and what the application saw of them."""

    moves: tuple[Outcome, ...]
    orders: int
    lost: int
    errors: tuple[str, ...]
    longest_ms: float
    left: int

    @property
    def is_good(self) -> bool:
        """Whether all was as it should be."""
        return not (self.lost or self.errors or self.left)


class Shop:
    """Writers that order all the time, through the pointer; they remember what was confirmed to them."""

    def __init__(self, address: str) -> None:
        self.confirmed: list[list[str]] = [[] for _ in range(_WRITERS)]
        self.errors: list[str] = []
        self.longest = 0.0
        self._address = address
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._order, args=(number,)) for number in range(_WRITERS)]

    @contextmanager
    def open(self) -> Iterator[Shop]:
        """Open for the time of the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    @property
    def orders(self) -> int:
        """How many orders were confirmed."""
        return sum(map(len, self.confirmed))

    def go_on(self) -> None:
        """Wait until every writer has made some more orders."""
        wanted = [len(each) + _ENOUGH for each in self.confirmed]
        while not self.errors and any(len(each) < goal for each, goal in zip(self.confirmed, wanted, strict=True)):
            time.sleep(0.02)

    def _order(self, number: int) -> None:
        try:
            with connect(self._address, application_name=f"shop {number}") as db:
                while not self._stop.wait(_THINKS):
                    mark = f"{number}-{len(self.confirmed[number])}"
                    began = time.perf_counter()
                    with db.transaction() as connection:
                        connection.execute(load("trueup.demo", "switchover.sql")["order"], {"mark": mark})
                    self.longest = max(self.longest, time.perf_counter() - began)
                    self.confirmed[number].append(mark)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")


def run(*, rows: int, progress: Progress) -> Moved:
    """Two servers, a shop on the first; copy, rounds, there, back; then every confirmed order is looked for."""
    with (
        TemporaryDirectory(prefix="trueup-demo-") as folder,
        Server.start(name="old") as one,
        Server.start(name="new") as other,
        TaskStore(Path(folder) / "tasks.db") as store,
    ):
        old, new = one.create_database("shop"), other.create_database("shop")
        _fill(old, new, rows)
        first, second = Node("old", old.uri), Node("new", new.uri)
        request = SwitchoverRequest("main", first, second, budget=10.0, proof="keys", close_keys=3000)
        sync_request = SyncRequest(first, second, Scope("main"), SparkSettings(engine="local"))
        shop = Shop(old.uri)
        sync.start(sync_request, progress)
        prepare_only(request)
        with shop.open():
            shop.go_on()
            sync.run(sync_request, Until(), progress, lambda facts: None)
            there = switchover.move(request, EXECUTE, store=store, progress=progress)
            shop.go_on()
            back = switchover.move(request, ROLLBACK, store=store, progress=progress)
            shop.go_on()
        confirmed = {mark for each in shop.confirmed for mark in each}
        there_now = {row[0] for row in old.execute("SELECT mark FROM orders WHERE mark IS NOT NULL")}
        ending.finish(request)
        left = sum(each.execute(load("trueup.demo", "switchover.sql")["left"])[0][0] for each in (old, new))
        lost = len(confirmed - there_now)
        return Moved((there, back), shop.orders, lost, tuple(shop.errors), shop.longest * 1000, left)


def _fill(old: Database, new: Database, rows: int) -> None:
    statements = load("trueup.demo", "switchover.sql")
    for database in (old, new):
        database.execute(statements["create"])
    old.execute(statements["load"].replace("%(rows)s", str(int(rows))))


def moved_text(moved: Moved) -> str:
    """What was seen, for people."""
    lines = []
    for move in moved.moves:
        phases = ", ".join(f"{name} {move.milliseconds[name]:.1f}" for name in move.milliseconds if name not in _LONG)
        lines.append(
            f"moved from {move.source} to {move.target}: the pause was {move.pause_ms:.0f} ms ({phases}), with"
            f" {move.keys:,} keys in the last round; all {len(move.conditions)} conditions of the gate held"
        )
    lines.append(
        f"{moved.orders:,} orders were confirmed to the shop; lost: {moved.lost}; errors it saw:"
        f" {len(moved.errors)}; the longest it waited: {moved.longest_ms:.0f} ms"
    )
    lines += [f"  {error}" for error in moved.errors[:3]]
    lines.append(f"what trueup left behind in both databases: {moved.left or 'nothing'}")
    return "\n".join(lines)


_LONG = ("prepare", "after")
