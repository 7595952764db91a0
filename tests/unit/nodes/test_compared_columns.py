"""Which columns a comparison across kinds has, and how rows of one key are aligned."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trueup.errors import CheckFailed
from trueup.nodes.base import NodeColumn, NodeTable
from trueup.nodes.plan import Request, plan_columns
from trueup.nodes.rows import CompareRows
from trueup.rows.canonical import encode_row
from trueup.rows.rules import NO_RULE, Rule
from trueup.rows.spec import ValueClass

SEED = b"0" * 16


def table(*columns: tuple[str, ValueClass], key: Sequence[str] = ("id",)) -> NodeTable:
    return NodeTable("t", tuple(NodeColumn(name, kind, kind) for name, kind in columns), (tuple(key),) * bool(key))


def test_names_that_differ_only_by_case_are_different_columns() -> None:
    tables = {node: table(("id", "int"), ("a", "int"), ("A", "int")) for node in ("one", "two")}
    compared = plan_columns(tables, Request(exclude_columns=("a",)))
    assert [column.name for column in compared.columns] == ["id", "A"]
    assert plan_columns(tables, Request(key=("a",))).key_names == ("a",)
    # Without such a pair, the case of an option does not matter.
    tables = {"one": table(("id", "int"), ("a", "int")), "two": table(("ID", "int"), ("A", "int"), key=())}
    assert [column.name for column in plan_columns(tables, Request(exclude_columns=("A",))).columns] == ["id"]


def test_rules_need_a_key() -> None:
    tables = {node: table(("a", "text"), key=()) for node in ("one", "two")}
    with pytest.raises(CheckFailed, match=r"rules\.a: rows without a key are matched by all their values"):
        plan_columns(tables, Request(rules={"a": Rule(trim=True)}))


def test_texts_of_char_are_parsed_as_the_other_class() -> None:
    tables = {"one": table(("id", "uuid")), "two": table(("id", "char"))}
    (column,) = plan_columns(tables, Request()).columns
    assert (column.kind, column.parsed) == ("text", "uuid")


def rows_of(*documents: str) -> list[bytes]:
    return [encode_row(("int", "json"), (b"\0" * 8, text.encode()), SEED) for text in documents]


def test_equal_rows_of_a_key_that_is_not_unique_are_found_in_any_order() -> None:
    compare = CompareRows(("one", "two"), ("int", "json"), (None, None), (NO_RULE, NO_RULE), 1, 1000)
    one, two = rows_of('{"a": 1}', '{"a": 2}'), rows_of('{"a":2}', '{"a":1}')
    lines = [(row, (1, 0)) for row in one] + [(row, (0, 1)) for row in two]
    assert list(compare.differences(lines)) == []
    more = [*lines, (rows_of('{"a":3}')[0], (0, 2))]
    (difference,) = compare.differences(more)
    assert [(group.nodes, group.copies) for group in difference.groups if group.values] == [(("two",), 2)]
