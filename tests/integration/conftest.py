"""Fixtures for tests that compare tables: one call from databases to a result."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import trueup
from trueup.demo.postgres import Database
from trueup.report.model import DiffResult

Compare = Callable[..., DiffResult]


@pytest.fixture
def compare() -> Compare:
    """`compare(databases, table, **options)`: a diff (or, `quick=True`, a check) of nodes n1, n2, …, with no waiting."""

    def run(nodes: Sequence[Database], table: str, *, quick: bool = False, **options: Any) -> DiffResult:
        options = {"recheck": 1, "recheck_wait": 0, "engine": "local", **options}
        addresses = {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}
        verb = trueup.check if quick else trueup.diff
        return verb(table, nodes=addresses, **options)

    return run


@pytest.fixture
def on_all() -> Callable[..., None]:
    """`on_all(databases, sql)`: the same statements on every database."""

    def run(nodes: Sequence[Database], statements: str) -> None:
        for node in nodes:
            node.execute(statements)

    return run


@pytest.fixture
def report_of() -> Callable[[DiffResult], dict[str, Any]]:
    """The JSON report of a result, read back."""

    def read(result: DiffResult) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(Path(result.report).read_text(encoding="utf-8"))
        return report

    return read
