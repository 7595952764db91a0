"""Dense drift: rows are marked in one pass instead of being hashed, split and read again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fixtures import Compare, Databases, OnAll
from trueup.engine.work import Room
from trueup.rows.keys import Block
from trueup.task.compare.model import Answer
from trueup.task.job import Job
from trueup.testing.postgres import Database
from trueup.verbs.diff import hash as hashing
from trueup.verbs.diff.work import HashBlock

ROWS = 6000
SETTINGS = {"block_size": 500, "override_block_size": True, "compare_unit_size": 50, "recheck": 0}
KEYS = {
    "bigint": ("id bigint PRIMARY KEY", "i::bigint * 3000000000"),
    "smallint": ("id smallint PRIMARY KEY", "i"),
    "text": ("id text PRIMARY KEY", "'k' || i"),
    "uuid": ("id uuid PRIMARY KEY", "md5(i::text)::uuid"),
    "numeric": ("id numeric PRIMARY KEY", "i / 7.0"),
    "two columns": ("a int, id text, PRIMARY KEY (a, id)", "i % 10, 'k' || i"),
    "domain": ("id positive PRIMARY KEY", "i"),
}


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """The blocks whose rows were marked in one pass."""
    seen: list[Block] = []
    original = hashing.mark_block

    def mark(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
        seen.append(task.block)
        return original(job, task, room)

    monkeypatch.setattr(hashing, "mark_block", mark)
    return seen


def _fill(nodes: list[Database], on_all: OnAll, columns: str, values: str) -> None:
    on_all(
        nodes,
        "CREATE DOMAIN positive AS int CHECK (value > 0);"
        f"CREATE TABLE t (n int, v text, {columns});"
        f"INSERT INTO t SELECT i, 'v' || i, {values} FROM generate_series(1, {ROWS}) i; ANALYZE t",
    )


@pytest.mark.parametrize(("kind", "count"), [(kind, 3 if kind in ("bigint", "text") else 2) for kind in KEYS])
def test_every_difference_is_found(
    databases: Databases, on_all: OnAll, compare: Compare, dense: list[Block], kind: str, count: int
) -> None:
    nodes = databases(count)
    _fill(nodes, on_all, *KEYS[kind])
    nodes[1].execute("UPDATE t SET v = 'x' WHERE n % 9 = 0; DELETE FROM t WHERE n % 20 = 1")
    result = compare(nodes, "t", **SETTINGS)
    counts = result.pairs["n1/n2"]
    assert (counts.changed, counts.missing, counts.extra) == (
        sum(1 for n in range(1, ROWS + 1) if n % 9 == 0 and n % 20 != 1),
        sum(1 for n in range(1, ROWS + 1) if n % 20 == 1),
        0,
    )
    assert result.rows == {**dict.fromkeys(result.nodes, ROWS), "n2": ROWS - counts.missing}
    assert result.blocks >= 10
    assert len(dense) >= 5
    if count == 3:
        assert result.pairs["n1/n3"].total == 0
        assert result.alone["n2"] == counts.total


def test_a_key_that_is_not_unique_is_refused(databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE t (id int NOT NULL, v int)")
    on_all(nodes, f"INSERT INTO t SELECT i / 2, i FROM generate_series(1, {ROWS}) i")
    nodes[1].execute("UPDATE t SET v = -v")
    result = compare(nodes, "t", key=["id"], **SETTINGS)
    assert result.verdict == "INCOMPLETE"
    assert "is not unique" in result.incomplete[0]


def test_blocks_after_the_drift_are_hashed(
    databases: Databases, on_all: OnAll, compare: Compare, dense: list[Block]
) -> None:
    nodes = databases(2)
    _fill(nodes, on_all, *KEYS["smallint"])
    nodes[1].execute("UPDATE t SET v = 'x' WHERE n % 3 = 0 AND n <= 1500")
    result = compare(nodes, "t", **SETTINGS)
    assert result.pairs["n1/n2"].changed == 500
    assert 0 < len(dense) < result.blocks * 2 / 3


def test_a_check_never_reads_rows(databases: Databases, on_all: OnAll, compare: Compare, dense: list[Block]) -> None:
    nodes = databases(2)
    _fill(nodes, on_all, *KEYS["smallint"])
    nodes[1].execute("UPDATE t SET v = 'x' WHERE n % 3 = 0")
    result = compare(nodes, "t", quick=True, **SETTINGS)
    assert (result.verdict, dense) == ("DIFFER", [])
    assert result.mismatched_blocks >= 11


def test_rows_that_change_after_hashing_are_not_a_match(
    databases: Databases, on_all: OnAll, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = databases(2)
    _fill(nodes, on_all, *KEYS["smallint"])
    nodes[1].execute("UPDATE t SET v = 'x' WHERE n = 77")
    monkeypatch.setattr("trueup.task.compare.keys.rows_by_key", lambda *_, **__: {})
    result = compare(nodes, "t", **SETTINGS)
    assert result.verdict == "INCOMPLETE"
    assert "the row hashes differ, but the rows are equal" in result.incomplete[0]


def test_keys_at_both_ends_of_their_type(databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE t (id smallint PRIMARY KEY, v int)")
    on_all(nodes, "INSERT INTO t SELECT i, i FROM generate_series(-32768, 32767, 13) i; ANALYZE t")
    nodes[1].execute("UPDATE t SET v = -1 WHERE id IN (-32768, 32767 - (32767 + 32768) % 13)")
    result = compare(nodes, "t", **SETTINGS)
    assert (result.verdict, result.pairs["n1/n2"].changed) == ("DIFFER", 2)
