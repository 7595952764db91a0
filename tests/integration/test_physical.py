"""Keys in random order on disk: each node is scanned once by pages, and the result is the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import trueup
from support.fixtures import Compare, Databases, OnAll
from trueup.db import catalog
from trueup.engine.progress import Silent
from trueup.engine.work import Room
from trueup.errors import Interrupted
from trueup.rows.digest import Digest
from trueup.rows.keys import Block, KeyValues, chain
from trueup.store import TaskStore
from trueup.task.job import Job
from trueup.testing.postgres import Database
from trueup.verbs.diff import physical

ROWS = 6000
SETTINGS: dict[str, Any] = {"block_size": 1000, "compare_unit_size": 100, "recheck": 0}

# The node, the first page and the end.
Scan = tuple[str, int, "int | None"]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Scan]:
    """Treat tables of a few pages as large, and record every scan by pages."""
    monkeypatch.setattr(physical, "FEWEST_PAGES", 1)
    monkeypatch.setattr(physical, "PAGES_PER_PART", 7)
    seen: list[Scan] = []
    original = physical.scan_pages

    def scan(job: Job, task: physical.ScanPages, room: Room) -> Iterator[physical.PagesScanned]:
        seen.append((task.node, task.first, task.end))
        return original(job, task, room)

    monkeypatch.setattr(physical, "scan_pages", scan)
    return seen


def _fill(nodes: list[Database], on_all: OnAll, kind: str, value: str) -> None:
    on_all(
        nodes,
        f"CREATE TABLE t (id {kind} PRIMARY KEY, n int, v text);"
        f"INSERT INTO t SELECT {value}, i, 'v' || i FROM generate_series(1, {ROWS}) i; ANALYZE t",
    )


DRIFT = "UPDATE t SET v = 'x' WHERE n % 500 = 0; DELETE FROM t WHERE n IN (7, 77); INSERT INTO t SELECT {}, i FROM generate_series(7000, 7002) i"  # noqa: E501


@pytest.mark.parametrize(
    ("kind", "value"),
    [("uuid", "md5(i::text)::uuid"), ("text", "md5(i::text)"), ("bigint", "hashint8extended(i, 0)")],
)
def test_every_difference_is_found(
    databases: Databases, on_all: OnAll, compare: Compare, scans: list[Scan], kind: str, value: str
) -> None:
    nodes = databases(2)
    _fill(nodes, on_all, kind, value)
    nodes[1].execute(DRIFT.format(value))
    result = compare(nodes, "t", **SETTINGS)
    counts = result.pairs["n1/n2"]
    assert (counts.changed, counts.missing, counts.extra) == (12, 2, 3)
    assert result.rows == {"n1": ROWS, "n2": ROWS + 1}
    assert {node for node, _, _ in scans} == {"n1", "n2"}
    assert len(scans) > 4


def test_equal_tables_in_another_order_on_disk(
    databases: Databases, on_all: OnAll, compare: Compare, scans: list[Scan]
) -> None:
    nodes = databases(3)
    on_all(nodes, "CREATE TABLE t (id uuid PRIMARY KEY, n int)")
    for node, order in zip(nodes, ("i", "-i", "i % 100"), strict=True):
        node.execute(f"INSERT INTO t SELECT md5(i::text)::uuid, i FROM generate_series(1, {ROWS}) i ORDER BY {order}")
        node.execute("ANALYZE t")
    assert compare(nodes, "t", **SETTINGS).verdict == "MATCH"
    assert compare(nodes, "t", quick=True, **SETTINGS).verdict == "MATCH"
    nodes[2].execute("UPDATE t SET n = 0 WHERE n = 1234")
    check = compare(nodes, "t", quick=True, **SETTINGS)
    assert (check.verdict, check.mismatched_blocks) == ("DIFFER", 1)
    assert {node for node, _, _ in scans} == {"n1", "n2", "n3"}


def test_no_page_scan_for_ordered_or_changing_tables(
    databases: Databases, on_all: OnAll, compare: Compare, scans: list[Scan]
) -> None:
    nodes = databases(2)
    _fill(nodes, on_all, "bigint", "i")
    assert compare(nodes, "t", **SETTINGS).verdict == "MATCH"
    on_all(nodes, "DROP TABLE t")
    _fill(nodes, on_all, "uuid", "md5(i::text)::uuid")
    assert compare(nodes, "t", snapshot=False, **SETTINGS).verdict == "MATCH"
    assert compare(nodes, "t", gentle=True, **SETTINGS).verdict == "MATCH"
    assert scans == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "correlation", lambda *_: None)
        assert compare(nodes, "t", **SETTINGS).verdict == "MATCH"
    assert scans == []


def test_a_differing_unit_without_a_differing_row_is_not_a_match(
    databases: Databases, on_all: OnAll, compare: Compare, scans: list[Scan], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = databases(2)
    _fill(nodes, on_all, "uuid", "md5(i::text)::uuid")
    nodes[1].execute("UPDATE t SET v = 'x' WHERE n = 500")
    original = physical.differing_units

    def elsewhere(
        sums: Mapping[str, Mapping[int, Digest]], cuts: Sequence[KeyValues]
    ) -> list[tuple[Block, dict[str, int]]]:
        found = original(sums, cuts)
        other = next(block for block in chain(cuts)[5:] if block != found[0][0])
        return [(other, found[0][1])]

    monkeypatch.setattr(physical, "differing_units", elsewhere)
    result = compare(nodes, "t", **SETTINGS)
    assert result.verdict == "INCOMPLETE"
    assert "but no differing row" in result.incomplete[0]


def test_a_resumed_page_scan_starts_over(databases: Databases, on_all: OnAll, scans: list[Scan]) -> None:
    class Stop(Silent):
        def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
            if steps:
                raise KeyboardInterrupt

    nodes = databases(2)
    _fill(nodes, on_all, "uuid", "md5(i::text)::uuid")
    nodes[1].execute("DELETE FROM t WHERE n = 500")
    addresses = {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}
    with pytest.raises(Interrupted):
        trueup.diff("t", nodes=addresses, engine="local", progress=Stop(), **SETTINGS)
    with TaskStore() as store:
        task = store.list(limit=1)[0].task_id
    assert trueup.resume(task, nodes=addresses).pairs["n1/n2"].missing == 1


def test_a_failed_scan_is_reported(
    databases: Databases, on_all: OnAll, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(physical, "FEWEST_PAGES", 1)
    nodes = databases(2)
    _fill(nodes, on_all, "uuid", "md5(i::text)::uuid")

    def broken(job: Job, task: physical.ScanPages, room: Room) -> Iterator[physical.PagesScanned]:
        raise trueup.QueryError("no", node=task.node)

    monkeypatch.setattr(physical, "scan_pages", broken)
    result = compare(nodes, "t", **SETTINGS)
    assert (result.verdict, result.exit_code) == ("INCOMPLETE", 2)


@pytest.mark.parametrize("most", [1, 5, 11])
@pytest.mark.parametrize("keyless", [False, True])
def test_differences_above_the_limit_make_the_result_incomplete(
    databases: Databases, on_all: OnAll, compare: Compare, scans: list[Scan], most: int, keyless: bool
) -> None:
    nodes = databases(2)
    _fill(nodes, on_all, "uuid", "md5(i::text)::uuid")
    if keyless:
        on_all(nodes, "ALTER TABLE t DROP CONSTRAINT t_pkey")
    nodes[1].execute("DELETE FROM t WHERE n % 500 = 0")
    result = compare(nodes, "t", max_diff_rows=most, **SETTINGS)
    assert (result.verdict, result.exit_code) == ("INCOMPLETE", 2)
    original = compare(nodes, "t", max_diff_rows=13, **SETTINGS)
    assert (original.verdict, original.pairs["n1/n2"].missing) == ("DIFFER", 12)


def test_the_limit_within_the_last_unit(
    databases: Databases, on_all: OnAll, compare: Compare, scans: list[Scan]
) -> None:
    """The first batch has sixteen rows: it reaches the limit, and the last unit has more rows."""
    nodes = databases(2)
    _fill(nodes, on_all, "uuid", "md5(i::text)::uuid")
    nodes[1].execute("DELETE FROM t WHERE n % 150 = 0")
    one = {**SETTINGS, "block_size": 10_000, "compare_unit_size": 10_000}
    assert compare(nodes, "t", max_diff_rows=16, **one).verdict == "INCOMPLETE"
    assert scans
    assert compare(nodes, "t", max_diff_rows=41, **one).verdict == "DIFFER"
