"""The rows of each node after a repair in every mode; a dry run plans the same and writes nothing."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import trueup
from support.repair import ITEMS, NodesWith, Rows
from trueup.errors import CheckFailed, ConfigError
from trueup.task.compare.rerun import rerun_keys
from trueup.verbs.repair import run, verify
from trueup.verbs.repair.settle import STALE, UNSAID
from trueup.verbs.repair.write import write_nodes

A = "INSERT INTO items VALUES (1, 'one', 1), (2, 'two', NULL), (3, 'three', 3), (5, 'five', 5)"
B = "INSERT INTO items VALUES (1, 'one', 1), (2, NULL, 2), (3, 'THREE', 3), (4, 'four', 4)"
ONE, THREE, FIVE = (1, "one", Decimal(1)), (3, "three", Decimal(3)), (5, "five", Decimal(5))
TWO, OTHER_TWO = (2, "two", None), (2, None, Decimal(2))
OTHER_THREE, FOUR = (3, "THREE", Decimal(3)), (4, "four", Decimal(4))
FIRST, SECOND = [ONE, TWO, THREE, FIVE], [ONE, OTHER_TWO, OTHER_THREE, FOUR]
FILLED = (2, "two", Decimal(2))
Numbers = Mapping[str, tuple[int, int, int]]

MODES: list[tuple[dict[str, Any], Any, Any, Numbers, str]] = [
    ({"source_of_truth": "n1"}, FIRST, FIRST, {"n2": (1, 2, 1)}, "REPAIRED"),
    ({"source_of_truth": "n2"}, SECOND, SECOND, {"n1": (1, 2, 1)}, "REPAIRED"),
    (
        {"source_of_truth": "n1", "insert_only": True},
        FIRST,
        [ONE, OTHER_TWO, OTHER_THREE, FOUR, FIVE],
        {"n2": (1, 0, 0)},
        "REMAINS",
    ),
    (
        {"source_of_truth": "n1", "upsert_only": True},
        FIRST,
        [ONE, TWO, THREE, FOUR, FIVE],
        {"n2": (1, 2, 0)},
        "REMAINS",
    ),
    (
        {"bidirectional": True},
        [ONE, TWO, THREE, FOUR, FIVE],
        [ONE, OTHER_TWO, OTHER_THREE, FOUR, FIVE],
        {"n1": (1, 0, 0), "n2": (1, 0, 0)},
        "REMAINS",
    ),
    (
        {"fix_nulls": True},
        [ONE, FILLED, THREE, FIVE],
        [ONE, FILLED, OTHER_THREE, FOUR],
        {"n1": (0, 1, 0), "n2": (0, 1, 0)},
        "REMAINS",
    ),
]


def numbers(counts: Mapping[str, Mapping[str, int]]) -> Numbers:
    """Return the counts per node, without nodes that get nothing."""
    found = {node: (per_kind["insert"], per_kind["update"], per_kind["delete"]) for node, per_kind in counts.items()}
    return {node: per_kind for node, per_kind in found.items() if any(per_kind)}


@pytest.mark.parametrize(("options", "first", "second", "written", "verdict"), MODES, ids=lambda each: str(each)[:40])
def test_each_mode(
    nodes_with: NodesWith, options: dict[str, Any], first: Rows, second: Rows, written: Numbers, verdict: str
) -> None:
    nodes = nodes_with(ITEMS, A, B)
    report = nodes.diff()
    dry = nodes.repair(report, **options)
    assert (dry.verdict, dry.exit_code, dry.undo) == ("DRY RUN", 1, "")
    assert nodes.rows() == [FIRST, SECOND]
    assert not list(Path().glob("*undo*"))
    done = nodes.repair(report, execute=True, **options)
    assert numbers(dry.planned) == numbers(done.planned) == numbers(done.written) == written
    assert dry.left_counts == done.left_counts
    assert {(example.node, example.act) for example in dry.examples} == {
        (example.node, example.act) for example in done.examples
    }
    assert nodes.rows() == [first, second]
    assert (done.verdict, done.exit_code) == (verdict, 0 if verdict == "REPAIRED" else 1)
    assert (nodes.diff().verdict == "MATCH") == (verdict == "REPAIRED")
    assert stat.S_IMODE(Path(done.undo).stat().st_mode) == 0o600
    # An undo restores every row.
    assert nodes.undo(done, execute=True).verdict == "UNDONE"
    assert nodes.rows() == [FIRST, SECOND]


def test_majority_of_three_nodes(nodes_with: NodesWith) -> None:
    """All nodes get the row, or the absence, that most nodes have; without a majority the key is left."""
    third = "INSERT INTO items VALUES (1, 'one', 1), (2, 'two', NULL), (3, 'drei', 3), (4, 'four', 4)"
    nodes = nodes_with(ITEMS, A, B, third)
    report = nodes.diff()
    done = nodes.repair(report, majority=True, execute=True)
    assert numbers(done.written) == {"n1": (1, 0, 1), "n2": (0, 1, 0)}
    assert nodes.rows() == [
        [ONE, TWO, THREE, FOUR],
        [ONE, TWO, OTHER_THREE, FOUR],
        [ONE, TWO, (3, "drei", Decimal(3)), FOUR],
    ]
    assert (done.verdict, done.remaining) == ("REMAINS", 1)
    assert [(each.key, each.reason[:11]) for each in done.left] == [({"id": "3"}, "no majority")]
    # One source of truth for all nodes; a row that only the two others have is deleted there.
    again = nodes.repair(report, source_of_truth="n2", stale="apply", execute=True)
    assert again.verdict == "REPAIRED"
    assert nodes.rows()[0] == nodes.rows()[1] == nodes.rows()[2] == [ONE, TWO, OTHER_THREE, FOUR]


def test_a_warning_of_the_engine_while_rows_are_compared_again(
    nodes_with: NodesWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a Spark that was lost: it is part of the result, once."""

    def rerun(*arguments: Any, **options: Any) -> Any:
        rerun, result = rerun_keys(*arguments, **options)
        monkeypatch.setattr(rerun.run.engine, "remarks", ["Spark was lost"], raising=False)
        return rerun, result

    monkeypatch.setattr(verify, "rerun_keys", rerun)
    nodes = nodes_with(ITEMS, A, B)
    result = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True)
    assert [remark for remark in result.remarks if "Spark" in remark] == ["Spark was lost"]


def test_a_stale_row_is_left_unless_stale_is_apply(nodes_with: NodesWith) -> None:
    nodes = nodes_with(ITEMS, A, B)
    report = nodes.diff()
    # The row was changed on the target by another session, or has another value on the source now.
    nodes[2].execute("UPDATE items SET name = 'mine' WHERE id = 3; INSERT INTO items VALUES (5, 'mine', 5)")
    nodes[1].execute("UPDATE items SET name = 'newer' WHERE id = 2")
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    assert (done.verdict, done.exit_code) == ("REMAINS", 1)
    assert [(each.key["id"], each.nodes, each.reason) for each in done.left] == [
        ("3", ("n2",), STALE),
        ("5", ("n2",), STALE),
    ]
    assert nodes.rows()[1] == [ONE, (2, "newer", None), (3, "mine", Decimal(3)), (5, "mine", Decimal(5))]
    listed = json.loads(Path(done.report).read_text(encoding="utf-8"))["left"]
    assert [each["key"] for each in listed] == [{"id": "3"}, {"id": "5"}]
    assert nodes.repair(report, source_of_truth="n1", stale="apply", execute=True).verdict == "REPAIRED"
    assert nodes.rows()[0] == nodes.rows()[1]


@pytest.mark.parametrize("fire", [False, True])
def test_a_row_that_changes_while_the_repair_runs_is_left(
    nodes_with: NodesWith, monkeypatch: pytest.MonkeyPatch, fire: bool
) -> None:
    """An update, a delete and an insert of another session between reading and writing are not overwritten."""
    nodes = nodes_with(ITEMS, A, B)
    report = nodes.diff()

    def later(*arguments: Any, **options: Any) -> None:
        nodes[2].execute(
            "UPDATE items SET price = 3.00 WHERE id = 3; DELETE FROM items WHERE id = 4; INSERT INTO items VALUES (5)"
        )
        write_nodes(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(run, "write_nodes", later)
        done = nodes.repair(report, source_of_truth="n1", execute=True, fire_triggers=fire)
    # Also a row with another representation: 3.00 is not 3.
    assert nodes.rows()[1] == [ONE, TWO, OTHER_THREE, (5, None, None)]
    assert numbers(done.written) == {"n2": (0, 1, 0)}
    assert sorted(each.key["id"] for each in done.left) == ["3", "4", "5"]
    assert (done.verdict, done.remaining) == ("REMAINS", 2)
    # The undo writes only rows that the repair wrote.
    back = nodes.undo(done, execute=True)
    assert nodes.rows()[1] == [ONE, OTHER_TWO, OTHER_THREE, (5, None, None)]
    assert nodes[2].execute("SELECT price::text FROM items WHERE id = 3") == [("3.00",)]
    assert (back.verdict, len(back.left)) == ("REMAINS", 3)


def test_rows_outside_the_filter_are_written_and_not_deleted(nodes_with: NodesWith) -> None:
    """The filter limits which rows are compared; a listed row is written even if it does not match any more."""
    nodes = nodes_with(
        ITEMS,
        "INSERT INTO items VALUES (1, 'in', 1), (2, 'out', 2), (3, 'in', 3)",
        "INSERT INTO items VALUES (1, 'out', 1), (2, 'in', 2), (3, 'in', 4)",
    )
    report = nodes.diff(filter="name = 'in' -- only these")
    assert report.pairs["n1/n2"].total == 3
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    # In the report n1 has no row 2, but it has one that does not match the filter.
    assert (done.verdict, numbers(done.written)) == ("REPAIRED", {"n2": (0, 3, 0)})
    assert nodes.rows()[0] == nodes.rows()[1]
    assert len(nodes.rows()[1]) == 3


def test_columns_that_are_not_compared_stay_as_they_are(nodes_with: NodesWith) -> None:
    nodes = nodes_with("CREATE TABLE items (id int PRIMARY KEY, a text, b text)", "", "")
    nodes[1].execute("ALTER TABLE items ADD only_first text; INSERT INTO items VALUES (1, 'x', 'b1'), (2, 'y', 'b2')")
    nodes[2].execute(
        "ALTER TABLE items ADD own text NOT NULL DEFAULT 'd'; INSERT INTO items VALUES (1, 'z', 'mine', 'o')"
    )
    report = nodes.diff(exclude_columns=["b", "own", "only_first"])
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    assert done.verdict == "REPAIRED"
    assert nodes.rows()[1] == [(1, "x", "mine", "o"), (2, "y", "b2", "d")]
    assert nodes.undo(done, execute=True).verdict == "UNDONE"
    assert nodes.rows()[1] == [(1, "z", "mine", "o")]


def test_unusable_options_and_tables_raise_before_writing(nodes_with: NodesWith, tmp_path: Path) -> None:
    nodes = nodes_with("CREATE TABLE items (name text)", "INSERT INTO items VALUES ('a')", "")
    report = nodes.diff()
    with pytest.raises(CheckFailed, match="no key") as refused:
        nodes.repair(report, source_of_truth="n1", execute=True)
    assert "primary key" in refused.value.cure
    keyed = nodes_with(ITEMS, A, B)
    report = keyed.diff()
    refusals: list[tuple[dict[str, Any], str]] = [
        ({}, "no repair mode"),
        ({"majority": True}, "three nodes"),
        ({"majority": True, "fix_nulls": True}, "exclude each other"),
        ({"source_of_truth": "n9"}, "not a node of the report"),
        ({"insert_only": True, "fix_nulls": True}, "need --source-of-truth"),
        ({"source_of_truth": "n1", "insert_only": True, "upsert_only": True}, "exclude each other"),
    ]
    for options, message in refusals:
        with pytest.raises(ConfigError, match=message):
            keyed.repair(report, **options)
    with pytest.raises(TypeError, match="nonsense"):
        keyed.repair(report, source_of_truth="n1", nonsense=1)
    assert keyed.rows() == [FIRST, SECOND]
    taken = tmp_path / "taken.gz"
    taken.write_text("x")
    with pytest.raises(trueup.StoreError, match="exists, and an undo file"):
        keyed.repair(report, source_of_truth="n1", execute=True, undo=str(taken))
    assert (keyed.rows(), taken.read_text()) == ([FIRST, SECOND], "x")


def test_an_incomplete_report_and_a_report_without_hashes(nodes_with: NodesWith) -> None:
    """Only the listed keys are repaired, which is INCOMPLETE; without hashes every row counts as stale."""
    nodes = nodes_with(ITEMS, A, B)
    report = nodes.diff(max_diff_rows=2)
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    assert done.keys == 2
    assert (done.verdict, "those beyond the limit are not listed" in done.unlisted) == ("INCOMPLETE", True)
    rest = nodes.diff()
    assert rest.pairs["n1/n2"].total == 2
    report_without_hashes = json.loads(Path(rest.report).read_text(encoding="utf-8"))
    for difference in report_without_hashes["diffs"]["n1/n2"]["differences"]:
        del difference["hashes"]
    Path("other.json").write_text(json.dumps(report_without_hashes, indent=2), encoding="utf-8")
    assert nodes.repair("other.json", source_of_truth="n1").left_counts == {UNSAID: 2}
    assert nodes.repair("other.json", source_of_truth="n1", stale="apply", execute=True).verdict == "REPAIRED"
    assert nodes.diff().verdict == "MATCH"
