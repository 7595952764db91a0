"""Fixtures for syncs: two databases with the same tables, and short ways to start, to run rounds and to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from trueup.config.model import Node, SparkSettings
from trueup.demo.postgres import Database
from trueup.engine.progress import Silent
from trueup.switchover import sync
from trueup.switchover.model import Plan
from trueup.switchover.plan import Wanted
from trueup.switchover.start import SyncRequest


@dataclass
class Pair:
    """A source, a target, and the sync between them."""

    source: Database
    target: Database
    request: SyncRequest
    messages: list[dict[str, Any]] = field(default_factory=list)

    def both(self, statements: str) -> None:
        for database in (self.source, self.target):
            database.execute(statements)

    def wanting(self, **wanted: Any) -> Pair:
        self.request = replace(self.request, wanted=replace(self.request.wanted, **wanted))
        return self

    def plan(self) -> Plan:
        return sync.plan(self.request)

    def start(self) -> Plan:
        return sync.start(self.request, Silent())

    def run(self, **until: Any) -> sync.Totals:
        return sync.run(self.request, sync.Until(**until), Silent(), self.messages.append)

    def rows(self, query: str) -> tuple[list[Any], list[Any]]:
        return self.source.execute(query), self.target.execute(query)

    def check_equal(self, tables: Sequence[str]) -> None:
        """Every row of both sides as text, in full: nothing of trueup is asked."""
        for table in tables:
            mine, theirs = self.rows(f'SELECT t::text COLLATE "C" FROM {table} t ORDER BY 1')
            assert mine == theirs, f"{table}: {len(mine)} rows and {len(theirs)}"


@pytest.fixture
def pair(databases: Callable[[int], list[Database]]) -> Pair:
    """Two fresh databases, and the request of a sync from the first to the second."""
    return make_pair(*databases(2))


def make_pair(source: Database, target: Database, **uris: str) -> Pair:
    request = SyncRequest(
        Node("n1", uris.get("source", source.uri)),
        Node("n2", uris.get("target", target.uri)),
        Wanted("main"),
        SparkSettings(engine="local"),
    )
    return Pair(source, target, request)
