"""Two servers whose tables are replicated to each other, for tests of repairs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from support.repair import Nodes
from support.waiting import Pause
from trueup.testing.postgres import Database, Server


class Cluster(Nodes):
    """The nodes n1 and n2, on servers of their own, with subscriptions `from_n1` and `from_n2`."""

    def __init__(self, servers: list[Server], name: str, table: str = "items") -> None:
        for server in servers:
            server.database("postgres").execute(f"CREATE DATABASE {name}")
        super().__init__([server.database(name) for server in servers], table)
        self._subscriptions: list[tuple[Database, str]] = []

    @property
    def has_origins(self) -> bool:
        """Return whether a subscription can have `origin = none`."""
        return bool(self[1].execute("SELECT current_setting('server_version_num')::int >= 160000")[0][0])

    def publish(self, statements: str, publication: str = "FOR TABLE items") -> None:
        """Run statements on both nodes, and create a publication."""
        for node in self.databases:
            node.execute(statements)
            node.execute(f"CREATE PUBLICATION p {publication}")

    def subscribe(self, subscriber: int, publisher: int, *, origin: str = "") -> None:
        """Create a subscription without an initial copy, and wait until it follows its publisher."""
        name = f"from_n{publisher}"
        options = f", origin = {origin}" if origin else ""
        self[subscriber].execute(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{self[publisher].uri}' PUBLICATION p"
            f" WITH (copy_data = false, slot_name = '{self.slot(publisher)}'{options})"
        )
        self._subscriptions.append((self[subscriber], name))

    def slot(self, publisher: int) -> str:
        """Return the slot of the subscription of the other node."""
        return f"{self[publisher].name}_from_n{publisher}"

    def apart(self, node: int, statements: str) -> None:
        """Write on one node only; subscriptions with `origin = none` do not get it."""
        self[node].execute(
            "SELECT pg_replication_origin_create('drift');"
            " SELECT pg_replication_origin_session_setup('drift');"
            f" {statements};"
            " SELECT pg_replication_origin_session_reset(); SELECT pg_replication_origin_drop('drift')"
        )

    def flow(self, marks: dict[int, int]) -> None:
        """Insert a row on each of these nodes, and wait until both nodes have all of them and equal tables."""
        for node, mark in marks.items():
            self[node].execute(f"INSERT INTO {self.table} VALUES ({mark})")
        self.until(lambda: self.rows()[0] == self.rows()[1] and self.has(*marks.values()))

    def has(self, *keys: int) -> bool:
        """Return whether node n2 has these keys."""
        return {key for (key, *_) in self.rows()[1]} >= {*keys}

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until the condition holds; fail if a subscription cannot apply a change."""
        wait = self.deadline()
        while not condition():
            assert not self.errors(), self.rows()
            wait()

    def deadline(self) -> Callable[[], None]:
        """Return a function that waits for a moment, and fails after a minute."""
        give_up = time.monotonic() + 60
        pause = Pause()

        def wait() -> None:
            assert time.monotonic() < give_up, self.rows()
            pause()

        return wait

    def origins(self) -> list[str]:
        """Return the replication origins of repairs on both nodes."""
        query = "SELECT roname FROM pg_replication_origin WHERE starts_with(roname, 'trueup')"
        return [name for node in self.databases for (name,) in node.execute(query)]

    def sessions(self, node: int) -> int:
        """Return the number of other sessions of clients with the database of a node."""
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return int(self[node].execute(query)[0][0])

    def errors(self) -> int:
        """Return the number of changes that the subscriptions failed to apply."""
        query = (
            "SELECT coalesce(sum(apply_error_count), 0) FROM pg_stat_subscription_stats t JOIN pg_subscription s"
            " ON s.oid = t.subid JOIN pg_database d ON d.oid = s.subdbid WHERE d.datname = current_database()"
        )
        return sum(int(node.execute(query)[0][0]) for node in self.databases)

    def remove(self) -> None:
        """Drop the subscriptions and the databases."""
        for node, name in self._subscriptions:
            node.execute(f"ALTER SUBSCRIPTION {name} DISABLE")
            node.execute(f"DROP SUBSCRIPTION {name}")
        for node in self.databases:
            node.drop()
