"""Nodes with a table that differs, for tests of repairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import trueup
from trueup.engine.progress import Silent
from trueup.report.model import DiffResult
from trueup.report.repair import RepairResult
from trueup.testing.postgres import Database

Rows: TypeAlias = "list[tuple[Any, ...]]"
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric)"


class AtStage(Silent):
    """Calls a function when a stage begins."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self._name, self._act = name, act

    def stage(self, name: str, total: int) -> None:
        """Call the function if it is this stage."""
        if name == self._name:
            self._act()


class Nodes:
    """Databases n1, n2, … that have the same table."""

    def __init__(self, databases: Sequence[Database], table: str) -> None:
        self.databases = list(databases)
        self.table = table
        self.addresses = {f"n{number}": node.uri for number, node in enumerate(databases, 1)}

    def __getitem__(self, number: int) -> Database:
        return self.databases[number - 1]

    def rows(self) -> list[Rows]:
        """Return all rows of each node."""
        return [node.execute(f"SELECT * FROM {self.table} ORDER BY 1") for node in self.databases]

    def diff(self, **options: Any) -> DiffResult:
        """Compare the table on all nodes."""
        options = {"recheck": 0, "engine": "local", **options}
        return trueup.diff(self.table, nodes=self.addresses, **options)

    def rerun(self, report: DiffResult | str, **options: Any) -> DiffResult:
        """Compare the keys of a report again."""
        options = {"recheck": 0, "engine": "local", **options}
        return trueup.rerun(report if isinstance(report, str) else report.report, nodes=self.addresses, **options)

    def repair(self, report: DiffResult | str, **options: Any) -> RepairResult:
        """Repair the keys of a report."""
        options = {"recheck": 0, "engine": "local", **options}
        return trueup.repair(report if isinstance(report, str) else report.report, nodes=self.addresses, **options)

    def undo(self, result: RepairResult | str, **options: Any) -> RepairResult:
        """Undo a repair."""
        return trueup.undo(result if isinstance(result, str) else result.undo, nodes=self.addresses, **options)


# `nodes_with("CREATE TABLE …", "rows of n1", "rows of n2", …, name="items")`
NodesWith: TypeAlias = Callable[..., Nodes]
