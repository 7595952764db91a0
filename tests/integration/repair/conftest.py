"""Fixtures for tests of repairs: nodes with a table that drifts, and the verbs that act on its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import trueup
from support.fixtures import Databases
from trueup.testing.postgres import Database

Rows = list[tuple[Any, ...]]
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric)"


class Nodes:
    """Databases n1, n2, … with a table; what they hold, and what can be done with them."""

    def __init__(self, databases: Sequence[Database], table: str) -> None:
        self.databases = list(databases)
        self.table = table
        self.addresses = {f"n{number}": node.uri for number, node in enumerate(databases, 1)}

    def __getitem__(self, number: int) -> Database:
        return self.databases[number - 1]

    def rows(self) -> list[Rows]:
        """All rows of each node."""
        return [node.execute(f"SELECT * FROM {self.table} ORDER BY 1") for node in self.databases]

    def diff(self, **options: Any) -> Any:
        """Compare the table on all of them."""
        options = {"recheck": 0, "engine": "local", **options}
        return trueup.diff(self.table, nodes=self.addresses, **options)

    def rerun(self, report: Any, **options: Any) -> Any:
        """Look at the keys of a diff again."""
        options = {"recheck": 0, "engine": "local", **options}
        return trueup.rerun(getattr(report, "report", report), nodes=self.addresses, **options)

    def repair(self, report: Any, **options: Any) -> Any:
        """Mend by the report of a diff."""
        options = {"recheck": 0, "engine": "local", **options}
        return trueup.repair(getattr(report, "report", report), nodes=self.addresses, **options)

    def undo(self, result: Any, **options: Any) -> Any:
        """Take a repair back."""
        return trueup.undo(getattr(result, "undo", result), nodes=self.addresses, **options)


Make = Callable[..., Nodes]


@pytest.fixture
def nodes_with(databases: Databases) -> Make:
    """`nodes_with("CREATE TABLE …", "rows of n1", "rows of n2", …)`: fresh nodes, all with the table."""

    def make(table: str, *fills: str, name: str = "items") -> Nodes:
        made = databases(len(fills))
        for node, fill in zip(made, fills, strict=True):
            node.execute(table)
            if fill:
                node.execute(fill)
        return Nodes(made, name)

    return make
