"""The lines of a report: any keys, names and values are read back unchanged."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.engine.memory import many_objects
from trueup.errors import StoreError
from trueup.report.json_file import PairReport, write_report
from trueup.report.json_reader import open_report
from trueup.rows.align import Difference, Group
from trueup.rows.encode import LongValue
from trueup.rows.spec import ColumnSpec, KeySpec, TableSpec
from trueup.task.compare.lines import Lines

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
NAMES = st.lists(TEXTS.filter(bool), min_size=2, max_size=3, unique=True)
HASHES = st.integers(-(2**63), 2**63 - 1)


def _spec(names: list[str], keys: int) -> TableSpec:
    columns = tuple(ColumnSpec(name, '"pg_catalog"."text"', "text") for name in names)
    return TableSpec("public", "t", tuple(KeySpec(column) for column in columns[:keys]), columns)


def _difference(
    key: tuple[str, ...], nodes: tuple[str, ...], hashes: Sequence[int | None], values: tuple[Any, ...]
) -> Difference:
    groups = tuple(
        Group((node,), mark, None if mark is None else values) for node, mark in zip(nodes, hashes, strict=True)
    )
    return Difference(key, nodes, groups)


@given(st.data())
def test_differences_are_read_back_unchanged(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    names = data.draw(NAMES)
    width = data.draw(st.integers(1, len(names) - 1))
    nodes = tuple(data.draw(st.lists(TEXTS.filter(bool), min_size=2, max_size=2, unique=True)))
    value = st.one_of(TEXTS, st.none(), st.just(LongValue(10**6, "ab" * 32)))
    rows = data.draw(st.lists(st.tuples(*([TEXTS] * width)), min_size=1, max_size=5, unique=True))
    found = [
        _difference(
            key,
            nodes,
            data.draw(st.tuples(HASHES, HASHES.filter(bool) | st.none()).filter(lambda pair: pair[0] != pair[1])),
            tuple(data.draw(st.tuples(*([value] * len(names))))),
        )
        for key in rows
    ]
    lines = list(Lines(_spec(names, width), (nodes[0], nodes[1])).of(iter(found), 100))
    read = [json.loads(line) for line in lines]
    assert [tuple(each["key"].values()) for each in read] == [each.key for each in found]
    for each, difference in zip(read, found, strict=True):
        marks = {group.nodes[0]: group.hash for group in difference.groups}
        assert each["hashes"] == {node: None if mark is None else str(mark) for node, mark in marks.items()}
        assert each["kind"] == ("missing" if marks[nodes[1]] is None else "changed")
        for group in difference.groups:
            shown = each["rows"][group.nodes[0]]
            assert (shown is None) == (group.values is None)
            for name, value_of_column in zip(names, group.values or (), strict=False):
                plain = (
                    {"length": value_of_column.length, "sha256": value_of_column.sha256}
                    if isinstance(value_of_column, LongValue)
                    else value_of_column
                )
                assert shown[name] == plain
    path = tmp_path_factory.mktemp("report") / "r.json"
    head = {"summary": {"nodes": list(nodes), "primary_key": names[:width]}, "proof": {}, "incomplete": []}
    write_report(path, head, [PairReport("/".join(nodes), {"total": len(lines)}, lines)])
    keyed = list(open_report(path).keys())
    assert [(key, hashes) for _, key, hashes in keyed] == [
        (each.key, tuple(None if group.hash is None else str(group.hash) for group in each.groups)) for each in found
    ]
    (section,) = open_report(path).sections
    assert list(open_report(path).differences(section)) == read
    assert "".join(open_report(path).lines()) == path.read_text()
    # A reformatted report has other blanks and the same content.
    path.write_text(json.dumps(json.loads(path.read_text()), indent=data.draw(st.sampled_from([None, 0, 1, 2, 3]))))
    assert list(open_report(path).keys()) == keyed
    assert list(open_report(path).differences(section)) == read


@pytest.fixture(scope="module")
def report_of_a_rerun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with two pairs, differences and resolved keys."""
    path = tmp_path_factory.mktemp("report") / "whole.json"
    head = {"summary": {"nodes": ["a", "b", "c"], "primary_key": ["id"]}, "proof": {}, "incomplete": []}
    found = [_difference((str(number),), ("a", "b", "c"), [1, 2, None], ("x", "y")) for number in range(3)]
    lines = [list(Lines(_spec(["id", "n"], 1), pair).of(iter(found))) for pair in (("a", "b"), ("a", "c"))]
    pairs = [
        PairReport("a/b", {"changed": 3}, lines[0], ['["7"]', '["8"]']),
        PairReport("a/c", {"missing": 3}, lines[1], []),
    ]
    write_report(path, head, pairs)
    return path


def test_a_truncated_report_is_an_error_with_its_position(report_of_a_rerun: Path, tmp_path: Path) -> None:
    whole = report_of_a_rerun.read_bytes()
    report = open_report(report_of_a_rerun)
    assert json.loads("".join(report.lines())) == json.loads(whole)
    assert [dict(section.listed) for section in report.sections] == [{"changed": 3}, {"missing": 3}]
    path = tmp_path / "cut.json"
    # Without its last line feed, it is complete.
    for size in range(len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"cannot read the report .*/cut\.json: .*(line \d+|byte \d+)"):
            list(open_report(path).keys())


def test_a_report_without_one_of_its_lines_is_an_error(report_of_a_rerun: Path) -> None:
    lines = report_of_a_rerun.read_bytes().splitlines(keepends=True)
    path = report_of_a_rerun.with_name("changed.json")
    for number in range(lines.index(b' "diffs": {\n') + 1, len(lines)):
        path.write_bytes(b"".join([*lines[:number], *lines[number + 1 :]]))
        if (lines[number].startswith(b"   ") and lines[number].endswith(b",\n")) or b"resolved_keys" in lines[number]:
            # Still a report, which lists less.
            continue
        with pytest.raises(StoreError, match="cannot read the report"):
            list(open_report(path).keys())
        with pytest.raises(StoreError, match="cannot read the report"):
            next(open_report(path).lines())


def test_no_more_than_the_limit() -> None:
    spec = _spec(["id", "n"], 1)
    found = [_difference((str(number),), ("a", "b"), [1, 2], ("x", "y")) for number in range(10)]
    assert len(list(Lines(spec, ("a", "b")).of(iter(found), 4))) == 4


def test_a_rerun_lists_new_differences() -> None:
    lines = Lines(_spec(["id", "n"], 1), ("a", "b"), {("1",): True})
    found = [_difference((number,), ("a", "b"), [1, 2], ("x", "y")) for number in ("1", "2")]
    assert [json.loads(line)["since"] for line in lines.of(iter(found), 9)] == ["remains", "new"]


def test_garbage_collection_is_restored_after_the_work(tmp_path: Path) -> None:
    before = gc.get_threshold()
    with many_objects():
        inside = gc.get_threshold()
        with many_objects():
            assert gc.get_threshold() == inside
        assert gc.get_threshold() == inside
    assert inside[0] > before[0]
    assert gc.get_threshold() == before
    gc.set_threshold(0)
    try:
        with many_objects():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
