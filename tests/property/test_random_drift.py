"""Random rows and random drift: exactly the differing rows are reported, for any blocks, keys and nodes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import trueup
from trueup.rows.align import align, align_copies, differing_keys, differing_pairs, kind_of, pairs_of, rows_in
from trueup.rows.fetch import Row
from trueup.rows.keys import Block, KeyValues, chain
from trueup.testing.postgres import Database, Server

# Values as the server prints them. Some values of each column are similar enough to be confused by a weak hash.
_NUMBERS = ["1", "4294967296", "4294967298", "8589934593", "9007199254740993", None]
_WORDS = ["", "a", "a ", "A", "é", "e\u0301", "a,b", '"', '""', "\\", "NULL", "{}", "a\nb", "👍", None]
_DECIMALS = ["0", "1", "1.0", "1.00", "10", "0.1", "0.10", "-1", "NaN", "Infinity", None]
_FLOATS = ["0", "-0", "0.1", "0.10000000000000002", "NaN", "Infinity", None]
Values = tuple["str | None", "str | None", "str | None", "str | None"]
COLUMNS = ("a", "b", "c", "d")

values = st.tuples(*(st.sampled_from(choices) for choices in (_NUMBERS, _WORDS, _DECIMALS, _FLOATS)))
# Few values, so that duplicates are common.
plain_values = st.tuples(
    st.sampled_from(_NUMBERS[:2]), st.sampled_from(["a", "", None]), st.sampled_from(_DECIMALS[1:4]), st.just("-0")
)
_integers = st.one_of(
    st.integers(-20, 20), st.integers(2**53 - 3, 2**53 + 3), st.sampled_from([-(2**63), 2**63 - 1, 2**32, 2**33])
)
_texts = st.text(st.sampled_from("aAbBzé \"'\\,%{}👍\u0301\n"), max_size=4)
KEYS: dict[str, st.SearchStrategy[KeyValues]] = {
    "int": _integers.map(lambda number: (str(number),)),
    "text": _texts.map(lambda text: (text,)),
    "composite": st.tuples(_texts, _integers.map(str)),
}
TABLES = {
    "int": "k0 int8, PRIMARY KEY (k0)",
    "text": "k0 text, PRIMARY KEY (k0)",
    "composite": "k0 text, k1 int8, PRIMARY KEY (k1, k0)",
}
# The same examples on every run: what fails here fails everywhere.
repeatable = settings(
    derandomize=True, deadline=None, database=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
few = settings(repeatable, max_examples=8)
pure = settings(derandomize=True, deadline=None, database=None, max_examples=200)


class Nodes:
    """Three databases with a table per kind of key, and a session per database to fill them."""

    def __init__(self, databases: Sequence[Database]) -> None:
        self.databases = databases
        self.sessions = [psycopg.connect(database.uri, autocommit=True) for database in databases]
        for session in self.sessions:
            for kind, key in TABLES.items():
                session.execute(f"CREATE TABLE by_{kind} (a int8, b text, c numeric, d float8, {key})".encode())
            session.execute("CREATE TABLE by_nothing (a int8, b text, c numeric, d float8)")

    def fill(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[tuple[str | None, ...]]]) -> None:
        """Replace the rows of each node."""
        for session, node_rows in zip(self.sessions, rows, strict=False):
            session.execute(f"TRUNCATE {table}".encode())
            with session.cursor().copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN".encode()) as copy:
                for row in node_rows:
                    copy.write_row(row)

    def compare(self, table: str, count: int, *, keep: bool = False, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Return the result of a diff of the first `count` nodes, and its report, whose file is removed unless kept."""
        options = {"engine": "local", "recheck": 1, "recheck_wait": 0, "override_block_size": True, **options}
        result = trueup.diff(table, nodes=self.addresses(count), **options)
        report: dict[str, Any] = json.loads(Path(result.report).read_text(encoding="utf-8"))
        if not keep:
            Path(result.report).unlink()
        return result, report

    def rerun(self, report: str, count: int) -> Any:
        """Return the result of a rerun of a report, and remove both reports."""
        result = trueup.rerun(report, nodes=self.addresses(count), engine="local", recheck=1, recheck_wait=0)
        for path in (report, result.report):
            Path(path).unlink()
        return result

    def addresses(self, count: int) -> dict[str, str]:
        """Return the first `count` nodes."""
        return {f"n{number}": database.uri for number, database in enumerate(self.databases[:count], 1)}


@pytest.fixture(scope="module")
def nodes(server: Server) -> Iterator[Nodes]:
    """The databases that all examples share."""
    databases = [server.create_database(f"drift_{os.getpid()}_{number}") for number in (1, 2, 3)]
    made = Nodes(databases)
    yield made
    for session in made.sessions:
        session.close()
    for database in databases:
        database.drop()


def _by_value(row: Sequence[str | None]) -> tuple[str | None, ...]:
    """Return the row in a canonical form, without trailing zeros of numbers."""
    a, b, c, d = row
    return a, b, c.rstrip("0").rstrip(".") if c and "." in c else c, d


def _settings(data: st.DataObject) -> dict[str, Any]:
    return {
        "block_size": data.draw(st.integers(1, 20), "block_size"),
        "compare_unit_size": data.draw(st.sampled_from([1, 2, 3, 7, 100]), "compare_unit_size"),
        "digest": data.draw(st.sampled_from(["native", "portable"]), "digest"),
    }


@pytest.mark.parametrize("kind", list(KEYS))
@repeatable
@given(data=st.data())
def test_random_drift_is_found_exactly(nodes: Nodes, kind: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 3), "nodes")
    base: dict[KeyValues, Values] = data.draw(st.dictionaries(KEYS[kind], values, max_size=30), "rows")
    known = st.sampled_from(sorted(base)) if base else KEYS[kind]
    change = st.tuples(
        st.integers(0, count - 1),
        st.one_of(known, KEYS[kind]),
        st.sampled_from(["delete", "write", "a", "a", "b", "c", "d"]),
        values,
    )
    drift = data.draw(st.lists(change, max_size=12), "drift")
    tables = [dict(base) for _ in range(count)]
    for node, key, what, row in drift:
        before = tables[node].get(key)
        if what == "delete":
            tables[node].pop(key, None)
        elif what in COLUMNS and before is not None:
            at = COLUMNS.index(what)
            tables[node][key] = (*before[:at], row[at], *before[at + 1 :])
        else:
            tables[node][key] = row
    key_names = tuple(f"k{number}" for number in range(2 if kind == "composite" else 1))
    nodes.fill(f"by_{kind}", (*key_names, *COLUMNS), [[(*key, *row) for key, row in table.items()] for table in tables])

    result, report = nodes.compare(f"by_{kind}", count, **_settings(data))
    note(f"{result.verdict} {result.incomplete}")

    for left, right in combinations(range(count), 2):
        pair = f"n{left + 1}/n{right + 1}"
        listed = report["diffs"][pair]["differences"]
        found = {
            tuple(each["key"][name] for name in key_names): (each["kind"], tuple(each["columns"])) for each in listed
        }
        assert len(found) == len(listed)
        assert found == _expected(tables[left], tables[right])
        kinds = Counter(kind for kind, _ in found.values())
        counts = result.pairs[pair]
        assert (counts.missing, counts.extra, counts.changed) == (kinds["missing"], kinds["extra"], kinds["changed"])
        assert counts.in_flight == 0
    differs = any(_expected(one, other) for one, other in combinations(tables, 2))
    assert result.verdict == ("DIFFER" if differs else "MATCH")
    assert result.rows == {f"n{number}": len(rows) for number, rows in enumerate(tables, 1)}


def _expected(
    left: dict[KeyValues, Values], right: dict[KeyValues, Values]
) -> dict[KeyValues, tuple[str, tuple[str, ...]]]:
    """Compute the expected differences in Python."""
    expected: dict[KeyValues, tuple[str, tuple[str, ...]]] = {}
    for key in {**left, **right}:
        if key not in right:
            expected[key] = ("missing", ())
        elif key not in left:
            expected[key] = ("extra", ())
        else:
            both = zip(COLUMNS, _by_value(left[key]), _by_value(right[key]), strict=True)
            changed = tuple(name for name, left_value, right_value in both if left_value != right_value)
            if changed:
                expected[key] = ("changed", changed)
    return expected


@repeatable
@given(data=st.data())
def test_random_drift_of_a_keyless_table_is_found_exactly(nodes: Nodes, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 3), "nodes")
    rows = st.one_of(plain_values, values)
    base: list[Values] = data.draw(st.lists(rows, max_size=30), "rows")
    tables: list[list[Values]] = []
    for number in range(count):
        gone = data.draw(st.sets(st.integers(0, max(len(base) - 1, 0)), max_size=3), f"gone from n{number + 1}")
        more = data.draw(st.lists(rows, max_size=3), f"more on n{number + 1}")
        tables.append([row for at, row in enumerate(base) if at not in gone] + more)
    nodes.fill("by_nothing", COLUMNS, tables)

    result, report = nodes.compare("by_nothing", count, **_settings(data))

    held = [Counter(_by_value(row) for row in table) for table in tables]
    for left, right in combinations(range(count), 2):
        pair = f"n{left + 1}/n{right + 1}"
        expected = {
            row: (held[left][row], held[right][row])
            for row in held[left] | held[right]
            if held[left][row] != held[right][row]
        }
        found: dict[Any, Any] = {}
        for difference in report["diffs"][pair]["differences"]:
            found[_row_of(difference)] = tuple(difference["copies"].values())
        assert found == expected
        counts = result.pairs[pair]
        assert counts.missing == (held[left] - held[right]).total()
        assert counts.extra == (held[right] - held[left]).total()
        assert counts.changed == 0
    assert result.verdict == ("MATCH" if all(each == held[0] for each in held) else "DIFFER")


@few
@given(data=st.data())
def test_a_rerun_of_a_keyless_table_is_exact(nodes: Nodes, data: st.DataObject) -> None:
    """Many copies, few rows: more rows differ than the report lists, and a limit may cut the report."""
    count = data.draw(st.integers(2, 3), "nodes")
    copies = st.dictionaries(plain_values, st.sampled_from([1, 2, 3, 40]), max_size=4)
    before = [Counter(data.draw(copies, f"n{number + 1}")) for number in range(count)]
    limit = data.draw(st.sampled_from([None, 1, 50]), "limit")
    nodes.fill("by_nothing", COLUMNS, [list(table.elements()) for table in before])
    result, report = nodes.compare("by_nothing", count, keep=True, max_diff_rows=limit)
    listed = {
        pair: {_row_of(difference) for difference in counts["differences"]} for pair, counts in report["diffs"].items()
    }
    if not limit:
        first, second = _held(before[:2])
        assert listed["n1/n2"] == {row for row in first | second if first[row] != second[row]}

    after = [Counter(table) for table in before]
    change = st.tuples(st.integers(0, count - 1), plain_values, st.sampled_from([0, 1, 2, 60]))
    for node, row, number in data.draw(st.lists(change, max_size=3), "changes"):
        after[node][row] = number
    nodes.fill("by_nothing", COLUMNS, [list(table.elements()) for table in after])
    again = nodes.rerun(result.report, count)

    held = _held(after)
    known = set().union(*listed.values())
    for left, right in combinations(range(count), 2):
        pair = f"n{left + 1}/n{right + 1}"
        surplus = {row: held[left][row] - held[right][row] for row in known}
        differing = {row for row, number in surplus.items() if number}
        counts = again.pairs[pair]
        assert counts.missing == sum(number for number in surplus.values() if number > 0)
        assert counts.extra == -sum(number for number in surplus.values() if number < 0)
        assert not counts.limit_reached
        assert again.since[pair] == {
            "resolved": len(listed[pair] - differing),
            "remains": len(listed[pair] & differing),
            "new": len(differing - listed[pair]),
        }
    same = all(held[0][row] == other[row] for row in known for other in held)
    if any(counts.limit_reached for counts in result.pairs.values()):
        # Other differences are not in the report.
        assert (again.verdict, len(again.incomplete)) == ("INCOMPLETE", 1)
    else:
        assert (again.verdict, again.incomplete) == ("RESOLVED" if same else "DIFFER", ())


def _held(tables: Sequence[Counter[Any]]) -> list[Counter[tuple[str | None, ...]]]:
    """Return the copies of each row per node."""
    return [Counter(_by_value(row) for row in table.elements()) for table in tables]


def _row_of(difference: dict[str, Any]) -> tuple[str | None, ...]:
    row = next(row for row in difference["rows"].values() if row is not None)
    return _by_value([row[name] for name in COLUMNS])


words = st.text(st.sampled_from("abc"), max_size=3)
keys = st.tuples(words, words)


def _contains(block: Block, key: KeyValues) -> bool:
    return (block.start is None or key >= block.start) and (block.end is None or key < block.end)


@pure
@given(st.lists(keys, max_size=12), keys)
def test_a_chain_of_any_boundaries_covers_every_key(boundaries: list[KeyValues], key: KeyValues) -> None:
    assert any(_contains(block, key) for block in chain(boundaries))
    assert len(chain(boundaries)) == len(boundaries) + 1
    assert sum(_contains(block, key) for block in chain(sorted(boundaries))) == 1


@pure
@given(st.lists(keys, max_size=12), keys, st.one_of(st.none(), keys), st.one_of(st.none(), keys))
def test_a_chain_within_a_block_covers_the_block(
    boundaries: list[KeyValues], key: KeyValues, start: KeyValues | None, end: KeyValues | None
) -> None:
    within = Block(start, end)
    blocks = chain(boundaries, within=within)
    assert (blocks[0].start, blocks[-1].end) == (start, end)
    if _contains(within, key):
        assert any(_contains(block, key) for block in blocks)
    inside = sorted(boundary for boundary in boundaries if _contains(within, boundary))
    assert sum(_contains(block, key) for block in chain(inside, within=within)) == _contains(within, key)


sides_of_rows = st.lists(
    st.dictionaries(words.map(lambda word: (word,)), st.integers(-2, 2).map(Row), max_size=6), min_size=2, max_size=5
).map(lambda sides: {f"n{number}": side for number, side in enumerate(sides, 1)})


@pure
@given(sides_of_rows)
def test_align_groups_the_nodes_of_every_key(sides: dict[str, dict[KeyValues, Row]]) -> None:
    every = {key for side in sides.values() for key in side}
    wrong = {key for key in every if len({side.get(key) for side in sides.values()}) > 1}
    listed = differing_keys(sides)
    assert (set(listed), len(listed)) == (wrong, len(wrong))
    found = {difference.key: difference for difference in align(sorted(every), sides)}
    assert set(found) == wrong
    for key, difference in found.items():
        assert sorted(node for group in difference.groups for node in group.nodes) == sorted(sides)
        for left, right in pairs_of(list(sides)):
            left_value, right_value = sides[left].get(key), sides[right].get(key)
            expected = (
                None
                if left_value == right_value
                else "extra"
                if left_value is None
                else "missing"
                if right_value is None
                else "changed"
            )
            assert kind_of(difference, (left, right)) == expected
            backwards = {"missing": "extra", "extra": "missing", "changed": "changed", None: None}[expected]
            assert kind_of(difference, (right, left)) == backwards
            assert ((left, right) in differing_pairs(difference)) == (expected is not None)


@pure
@given(
    st.lists(st.dictionaries(st.integers(-2, 2), st.integers(1, 3), max_size=4), min_size=2, max_size=4).map(
        lambda sides: {f"n{number}": side for number, side in enumerate(sides, 1)}
    )
)
def test_align_copies_counts_every_surplus(counts: dict[str, dict[int, int]]) -> None:
    marks = sorted({mark for side in counts.values() for mark in side})
    found = list(align_copies(counts, marks, {}))
    for left, right in pairs_of(list(counts)):
        left_value, right_value = Counter(counts[left]), Counter(counts[right])
        surplus = {
            "missing": (left_value - right_value).total(),
            "extra": (right_value - left_value).total(),
            "changed": 0,
        }
        seen: Counter[str] = Counter()
        for difference in found:
            kind = kind_of(difference, (left, right))
            if kind is not None:
                seen[kind] += rows_in(difference, (left, right))
        assert {kind: seen[kind] for kind in surplus} == surplus
