"""The fingerprint of a difference: the same for a run and its report, another one for any other value."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trueup.rows.align import Difference, Group
from trueup.rows.encode import LongValue
from trueup.rows.spec import ColumnSpec, KeySpec, TableSpec
from trueup.task.accepted import fingerprint_of, listed_fingerprint, scope_of, why_not
from trueup.task.compare.lines import Lines

NAMES = ("id", "a", 'b"}')
LONG = st.builds(lambda size: LongValue(size, f"{size:064x}"), st.integers(0, 3))
VALUES = st.one_of(st.none(), st.text(max_size=4), LONG)
ROWS = st.one_of(st.none(), st.tuples(VALUES, VALUES, VALUES))
PAIR = ("n1", "n2")


def _spec(*, keyless: bool = False) -> TableSpec:
    columns = tuple(ColumnSpec(name, "pg_catalog.text", "text") for name in NAMES)
    return TableSpec("public", "t", () if keyless else (KeySpec(columns[0]),), columns)


def _difference(key: str, rows: tuple[Any, Any], copies: tuple[int, int] = (1, 1)) -> Difference:
    groups = tuple(
        Group((node,), None if row is None else number, row, count)
        for number, (node, row, count) in enumerate(zip(PAIR, rows, copies, strict=True))
    )
    return Difference((key,), PAIR, groups)


@given(st.text(max_size=3), st.tuples(ROWS, ROWS))
def test_a_report_has_the_fingerprint_of_the_run(key: str, rows: tuple[Any, Any]) -> None:
    if rows == (None, None):
        return
    difference = _difference(key, rows)
    (line,) = Lines(_spec(), PAIR).of(iter([difference]))
    fingerprint = fingerprint_of(_spec(), difference, PAIR)
    assert listed_fingerprint(json.loads(line), is_keyless=False) == fingerprint
    # In either order of the nodes.
    assert fingerprint_of(_spec(), difference, ("n2", "n1")) == fingerprint
    (accepted,) = Lines(_spec(), PAIR).of(iter([difference]), None, {0: "id"}, only_accepted=True)
    assert json.loads(accepted) == {"accepted": "id", **json.loads(line)}
    assert list(Lines(_spec(), PAIR).of(iter([difference]), None, {0: "id"})) == []


@given(st.lists(st.tuples(st.text(max_size=2), st.tuples(ROWS, ROWS)), max_size=20, unique=True))
def test_other_keys_and_values_have_other_fingerprints(all_rows: list[tuple[str, tuple[Any, Any]]]) -> None:
    fingerprints = [fingerprint_of(_spec(), _difference(key, rows), PAIR) for key, rows in all_rows]
    assert len(set(fingerprints)) == len(all_rows)
    assert None not in fingerprints


@given(st.tuples(VALUES, VALUES, VALUES), st.integers(1, 5), st.integers(1, 5))
def test_without_a_key_the_copies_count(row: tuple[Any, ...], one: int, other: int) -> None:
    spec, seen = _spec(keyless=True), set()
    for copies in ((one, other), (one, other + 1)):
        # The key of a row without a key is its hash, which is another one in each run.
        prints = {fingerprint_of(spec, _difference(key, (row, row), copies), PAIR) for key in ("1", "2")}
        assert len(prints) == 1
        seen |= prints
    assert len(seen) == 2


def test_a_row_whose_values_are_not_known_has_no_fingerprint() -> None:
    groups = (Group(("n1",), 7, None), Group(("n2",), None))
    assert fingerprint_of(_spec(), Difference(("1",), PAIR, groups), PAIR) is None


def test_a_scope_that_survives_json_applies_to_itself() -> None:
    tables = {node: {"system": "1/2", "table": 3} for node in PAIR}
    scope = scope_of(_spec(), tables)
    assert why_not(json.loads(json.dumps(scope)), scope, PAIR) == ""
    assert why_not(scope, scope, ("n1", "n3")) == "it has no differences of node n3"
