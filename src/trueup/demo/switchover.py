"""The demo of the switchover: move an application that keeps writing to another database, and back."""

from __future__ import annotations

import secrets
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
from trueup.demo.background import DURABLE
from trueup.engine.progress import Progress
from trueup.store import TaskStore
from trueup.testing.postgres import Database, Server
from trueup.verbs.switchover import run as switchover
from trueup.verbs.switchover.connect import connect
from trueup.verbs.switchover.finish import Finish, finish
from trueup.verbs.switchover.outcome import Outcome
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import EXECUTE, ROLLBACK, SwitchoverRequest
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.totals import Until

_WRITERS = 3
# Transactions per writer between two steps of the demo, and seconds between two transactions of a writer.
TRANSACTIONS = 200
DELAY = 0.002


@dataclass(frozen=True)
class Moved:
    """The result of the demo: the switchovers, and what the application saw of them."""

    moves: tuple[Outcome, ...]
    orders: int
    lost: int
    errors: tuple[str, ...]
    longest_ms: float
    left: int

    @property
    def is_good(self) -> bool:
        """Whether no order was lost, no error occurred, and nothing was left behind."""
        return not (self.lost or self.errors or self.left)


class Shop:
    """Writers that insert orders through the pointer and remember the committed ones."""

    def __init__(self, address: str, password: str) -> None:
        self.confirmed: list[list[str]] = [[] for _ in range(_WRITERS)]
        self.errors: list[str] = []
        self.longest = 0.0
        self._address = address
        # The pointer has none.
        self._password = password
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._order, args=(number,)) for number in range(_WRITERS)]

    @contextmanager
    def open(self) -> Iterator[Shop]:
        """Run the writers during the block."""
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
        """The number of committed orders."""
        return sum(map(len, self.confirmed))

    def wait_for_orders(self) -> None:
        """Wait until every writer has committed more orders."""
        goals = [len(marks) + TRANSACTIONS for marks in self.confirmed]
        while not self.errors and any(len(marks) < goal for marks, goal in zip(self.confirmed, goals, strict=True)):
            time.sleep(0.02)

    def _order(self, number: int) -> None:
        try:
            with connect(self._address, password=self._password, application_name=f"shop {number}") as db:
                while not self._stop.wait(DELAY):
                    mark = f"{number}-{len(self.confirmed[number])}"
                    began = time.perf_counter()
                    with db.transaction() as connection:
                        connection.execute(load("trueup.demo", "switchover.sql")["order"], {"mark": mark})
                    self.longest = max(self.longest, time.perf_counter() - began)
                    self.confirmed[number].append(mark)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")


def run(*, rows: int, progress: Progress) -> Moved:
    """Sync two servers, move a shop to the second and back while it writes, then search for every committed order."""
    password = secrets.token_urlsafe(24)
    with (
        TemporaryDirectory(prefix="trueup-demo-") as folder,
        Server.start(name="old", settings=DURABLE, password=password) as one,
        Server.start(name="new", settings=DURABLE, password=password) as other,
        TaskStore(Path(folder) / "tasks.db") as store,
    ):
        old, new = one.create_database("shop"), other.create_database("shop")
        _fill(old, new, rows)
        first, second = Node("old", old.uri), Node("new", new.uri)
        request = SwitchoverRequest("main", first, second, budget=10.0, proof="keys", close_keys=3000)
        sync_request = SyncRequest(first, second, Scope("main"), SparkSettings(engine="local"))
        shop = Shop(old.uri, password)
        sync.start(sync_request, progress)
        prepare_only(request)
        with shop.open():
            shop.wait_for_orders()
            sync.run(sync_request, Until(), progress, lambda facts: None)
            moved = switchover.move(request, EXECUTE, store=store, progress=progress)
            shop.wait_for_orders()
            back = switchover.move(request, ROLLBACK, store=store, progress=progress)
            shop.wait_for_orders()
        confirmed = {mark for marks in shop.confirmed for mark in marks}
        stored = {row[0] for row in old.execute("SELECT mark FROM orders WHERE mark IS NOT NULL")}
        finish(request, Finish(reopen_old=True))
        left = sum(database.execute(load("trueup.demo", "switchover.sql")["left"])[0][0] for database in (old, new))
        lost = len(confirmed - stored)
        return Moved((moved, back), shop.orders, lost, tuple(shop.errors), shop.longest * 1000, left)


def _fill(old: Database, new: Database, rows: int) -> None:
    statements = load("trueup.demo", "switchover.sql")
    for database in (old, new):
        database.execute(statements["create"])
    old.execute(statements["load"].replace("%(rows)s", str(int(rows))))


def moved_text(moved: Moved) -> str:
    """Return the result as text."""
    lines = []
    for move in moved.moves:
        phases = ", ".join(f"{name} {move.milliseconds[name]:.1f}" for name in move.milliseconds if name not in _LONG)
        lines.append(
            f"moved from {move.source} to {move.target}: the pause was {move.pause_ms:.0f} ms ({phases}), with"
            f" {move.keys:,} keys in the final round; all {len(move.conditions)} conditions of the gate held"
        )
    lines.append(
        f"{moved.orders:,} orders were committed; lost: {moved.lost}; errors of the application:"
        f" {len(moved.errors)}; longest wait: {moved.longest_ms:.0f} ms"
    )
    lines += [f"  {error}" for error in moved.errors[:3]]
    lines.append(f"objects of trueup left in both databases: {moved.left or 'none'}")
    return "\n".join(lines)


_LONG = ("prepare", "after")
