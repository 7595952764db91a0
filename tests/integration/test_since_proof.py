"""Blocks that a certificate proves are not read; everything else is, and the result says which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import trueup
from support.fixtures import Databases, OnAll
from trueup.api import since_proof
from trueup.report.text import summary
from trueup.rows.keys import Block
from trueup.rows.proven import ProvenTable
from trueup.rows.spec import TableSpec
from trueup.testing.postgres import Database

TABLE = """
    CREATE TABLE items (id int PRIMARY KEY, name text);
    INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 1000) i;
    ANALYZE items;
"""


@dataclass
class Known:
    """A prover whose answer is given; it keeps what it was asked."""

    answer: ProvenTable
    asked: list[Mapping[str, tuple[str, int]]] = field(default_factory=list)

    def proven(self, spec: TableSpec, tables: Mapping[str, tuple[str, int]]) -> ProvenTable:
        """Return the answer."""
        self.asked.append(tables)
        return self.answer


@pytest.fixture
def pair(databases: Databases, on_all: OnAll) -> list[Database]:
    """Two nodes with one difference, in a block that changes touched."""
    nodes: list[Database] = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute("UPDATE items SET name = 'x' WHERE id = 150")
    return nodes


def _compare(
    pair: list[Database], prover: Known, monkeypatch: pytest.MonkeyPatch, *, quick: bool = False, table: str = "items"
) -> trueup.DiffResult:
    monkeypatch.setattr(since_proof, "ValidationProver", lambda config, name: prover)
    nodes = {"n1": pair[0].uri, "n2": pair[1].uri}
    options: dict[str, Any] = {"recheck": 0, "engine": "local", "since_proof": "shop"}
    return (trueup.check if quick else trueup.diff)(table, nodes=nodes, **options)


def _touched(*blocks: Block, rows: int = 100) -> ProvenTable:
    return ProvenTable("shop", blocks, rows, 9, 1000 - rows, "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z")


@pytest.mark.parametrize("quick", [False, True])
def test_only_touched_blocks_are_read(pair: list[Database], monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    prover = Known(_touched(Block(("100",), ("200",))))
    found = _compare(pair, prover, monkeypatch, quick=quick)
    assert (found.verdict, found.rows_checked, found.blocks, found.mismatched_blocks) == ("DIFFER", 100, 1, 1)
    assert found.since_proof["proven_rows"] == 900
    assert "9 blocks (900 rows) proven at 2026-01-01 00:00:00 UTC" in summary(found)
    ((one, other),) = [tuple(asked.values()) for asked in prover.asked]
    assert one[0] != other[0]
    # A difference in a block that is not read is not seen: what the prover says counts.
    again = _compare(pair, Known(_touched(Block(("200",), ("300",)))), monkeypatch, quick=quick)
    assert (again.verdict, again.rows_checked) == ("MATCH", 100)
    nothing = _compare(pair, Known(_touched(rows=0)), monkeypatch, quick=quick)
    assert (nothing.verdict, nothing.rows_checked, nothing.blocks) == ("MATCH", 0, 0)


def test_all_rows_are_read_if_most_are_touched_or_nothing_is_proven(
    pair: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = Known(_touched(Block(None, ("10",)), rows=600))
    found = _compare(pair, most, monkeypatch)
    assert (found.verdict, found.rows_checked) == ("DIFFER", 1000)
    assert found.since_proof["reason"] == "blocks with 60% of the rows were touched"
    assert found.since_proof["proven_blocks"] == 0
    found = _compare(pair, Known(ProvenTable("shop", reason="the certificate is void: slot lost")), monkeypatch)
    assert (found.verdict, found.rows_checked) == ("DIFFER", 1000)
    assert "all rows were read, none taken from the certificate: the certificate is void" in summary(found)


def test_a_table_without_a_key(pair: list[Database], on_all: OnAll, monkeypatch: pytest.MonkeyPatch) -> None:
    on_all(pair, "CREATE TABLE notes (a int); INSERT INTO notes VALUES (1)")
    found = _compare(pair, Known(_touched(rows=0)), monkeypatch, table="notes")
    assert (found.verdict, found.rows_checked, found.since_proof["reason"]) == ("MATCH", 1, "the table has no key")


def test_a_certificate_of_the_task_says_what_was_not_read(
    pair: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _compare(pair, Known(_touched(Block(("200",), ("300",)))), monkeypatch)
    issued = trueup.certify(tasks=[found.task_id])
    (table,) = issued.document["statement"]["tables"]
    assert (issued.verdict, table["since_proof"]["proven_rows"]) == ("PROVEN", 900)
    assert "9 blocks with 900 rows were not read" in Path(issued.page).read_text()
