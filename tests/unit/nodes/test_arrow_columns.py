"""Canonical bytes with Arrow are those of the reference, for all values of the supported types."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.errors import CheckFailed, NodeError
from trueup.nodes.arrow_columns import block_numbers, class_of, is_possible, md5_hashes, rows, short_hashes
from trueup.nodes.base import Blocks, HashBlocks, KeyBlocks, Plan
from trueup.nodes.block_digests import BlockDigests, differing
from trueup.nodes.columnar import ColumnarNode
from trueup.nodes.columnar_workers import digests_of
from trueup.nodes.files import PathSource
from trueup.nodes.parquet_parts import NotColumnar, Part, Work, read_files
from trueup.nodes.plan import Request, plan_columns
from trueup.nodes.probe import expected
from trueup.rows import lookup3
from trueup.rows.canonical import decode_row, encode, encode_row, hash_row
from trueup.rows.spec import ValueClass

SEED = bytes(range(16))
MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=9)
# The type, the class, what it is compared as, and values.
COLUMNS: list[tuple[pa.DataType, ValueClass, ValueClass, st.SearchStrategy[Any]]] = [
    (pa.bool_(), "bool", "bool", st.booleans()),
    (pa.bool_(), "bool", "int", st.booleans()),
    (pa.bool_(), "bool", "decimal", st.booleans()),
    (pa.int32(), "int", "int", st.integers(-(2**31), 2**31 - 1)),
    (pa.uint32(), "int", "int", st.integers(0, 2**32 - 1)),
    (pa.int64(), "int", "int", st.integers(-(2**63), 2**63 - 1)),
    (pa.int64(), "int", "decimal", st.integers(-(2**63), 2**63 - 1)),
    (pa.decimal128(38, 9), "decimal", "decimal", DECIMALS),
    (pa.decimal128(20, 0), "decimal", "decimal", st.integers(-(10**19), 10**19).map(Decimal)),
    (pa.float64(), "float", "float", st.floats()),
    (pa.float32(), "float", "float", st.floats(width=32)),
    (pa.string(), "text", "text", st.text(st.characters(codec="utf-8"), max_size=200)),
    (pa.large_string(), "text", "char", st.text(st.characters(codec="utf-8"), max_size=5).map(lambda it: it + "  ")),
    (pa.string(), "text", "json", st.text(st.characters(codec="utf-8"), max_size=5)),
    (pa.binary(), "bytes", "bytes", st.binary(max_size=80)),
    (pa.date32(), "date", "date", st.dates()),
    (pa.timestamp("us"), "timestamp", "timestamp", MOMENTS),
    (pa.timestamp("ms"), "timestamp", "timestamp", MOMENTS.map(lambda it: it.replace(microsecond=1000))),
    (pa.timestamp("us", "UTC"), "instant", "instant", MOMENTS.map(lambda it: it.replace(tzinfo=timezone.utc))),
    (pa.timestamp("us", "Asia/Tokyo"), "instant", "instant", MOMENTS.map(lambda it: it.replace(tzinfo=timezone.utc))),
]


@given(data=st.data())
def test_rows_are_those_of_the_reference(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=6))
    size = data.draw(st.integers(1, 6))
    values = [
        data.draw(st.lists(st.none() | column[3], min_size=size, max_size=size), label=str(column[0]))
        for column in chosen
    ]
    seed = data.draw(st.none() | st.just(SEED))
    arrays = [pa.array(line, column[0]) for line, column in zip(values, chosen, strict=True)]
    for (kind, native, target, _), _values in zip(chosen, values, strict=True):
        assert class_of(kind) == native
        assert is_possible(native, target)
    kinds = [column[2] for column in chosen]
    # As a part of larger arrays: arrays of a batch may start anywhere.
    sliced = [pa.concat_arrays([one, one]).slice(size) for one in arrays]
    computed = rows(kinds, sliced, size, seed)
    lines = [
        encode_row(kinds, [_encoded(kind, line[number]) for kind, line in zip(kinds, values, strict=True)], seed)
        for number in range(size)
    ]
    assert computed.to_pylist() == lines
    high, low = md5_hashes(computed)
    assert list(zip(high.tolist(), low.tolist(), strict=True)) == [hash_row(line) for line in lines]
    high, low = short_hashes(kinds, sliced, size, SEED)
    assert list(zip(high.tolist(), low.tolist(), strict=True)) == [
        lookup3.hash_row(kinds, [_encoded(kind, line[number]) for kind, line in zip(kinds, values, strict=True)], SEED)
        for number in range(size)
    ]


def test_hashes_of_short_and_long_values() -> None:
    # More rows than are hashed at a time, of all lengths, in any order.
    values = [b"\xfe" * (number * 7919 % (400 if number % 9 else 2100)) for number in range(17_000)]
    assert max(map(len, values)) > lookup3.LONGEST
    high, low = short_hashes(["bytes"], [pa.array(values, pa.binary())], len(values), SEED)
    near = (number for number, value in enumerate(values) if abs(len(value) - lookup3.LONGEST) < 3)
    for number in (*range(0, 17_000, 97), *near):
        assert (int(high[number]), int(low[number])) == lookup3.hash_row(["bytes"], [values[number]], SEED)


def test_nulls_of_many_columns() -> None:
    count = lookup3.NULLS + 3
    columns = [pa.array([1, None if number % 2 else 1, None], pa.int64()) for number in range(count)]
    high, low = short_hashes(["int"] * count, columns, 3, SEED)
    lines = zip(*(column.to_pylist() for column in columns), strict=True)
    for number, line in enumerate(lines):
        encoded = [_encoded("int", value) for value in line]
        assert (int(high[number]), int(low[number])) == lookup3.hash_row(["int"] * count, encoded, SEED)


def test_rows_that_look_alike_have_other_hashes() -> None:
    kinds: list[ValueClass] = ["int", "int", "text", "text", "bool"]
    zero, one = encode("int", 0), encode("int", 1)
    like: list[list[bytes | None]] = [
        [one, zero, b"", b"", b"\0"],
        [zero, one, b"", b"", b"\0"],
        [one, one, b"", b"", b"\0"],
        [zero, zero, b"", b"", b"\0"],
        [zero, None, b"", b"", b"\0"],
        [zero, zero, None, b"", b"\0"],
        [zero, zero, b"", None, b"\0"],
        [zero, zero, b"", b"", None],
        [zero, zero, b"", b"", b"\1"],
        [zero, zero, b"ab", b"", b"\0"],
        [zero, zero, b"a", b"b", b"\0"],
        [zero, zero, b"", b"ab", b"\0"],
        [zero, zero, b"\0", b"", b"\0"],
        [zero, encode("int", 2**32), b"", b"", b"\0"],
    ]
    for place in (0, 1):
        assert len({lookup3.hash_row(kinds, values, SEED)[place] for values in like}) == len(like)
    assert lookup3.hash_row(kinds, like[0], SEED) != lookup3.hash_row(kinds, like[0], SEED[::-1])


def _encoded(kind: ValueClass, value: Any) -> bytes | None:
    if value is None:
        return None
    return encode(kind, int(value) if kind in ("int", "decimal") and isinstance(value, bool) else value)


def test_numbers_as_texts_and_bytes_that_are_no_text() -> None:
    computed = rows(["text", "text"], [pa.array([-5, None]), pa.array([True, False])], 2)
    assert computed.to_pylist()[0] == encode_row(["text", "text"], [b"-5", b"true"])
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff "]).buffers())
    assert rows(["text"], [broken], 1).to_pylist() == [encode_row(["text"], [b"\xff "])]
    assert rows(["char"], [broken], 1).to_pylist() == [encode_row(["char"], [b"\xff"])]


def test_all_nan_are_the_same() -> None:
    odd = pa.array(np.array([0xFFF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64))
    assert rows(["float"], [odd], 2).to_pylist() == [encode_row(["float"], [encode("float", float("nan"))])] * 2


@pytest.mark.parametrize(
    "column",
    [pa.array([-(2**31)], pa.int32()).cast(pa.date32()), pa.array([-(2**63)], pa.int64()).cast(pa.timestamp("us"))],
)
def test_times_that_would_wrap_are_refused(column: pa.Array) -> None:
    kind = class_of(column.type)
    assert kind
    with pytest.raises(CheckFailed, match="out of the range"):
        rows([kind], [column], 1)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**60))
def test_blocks_of_keys(keys: list[int], low: int, width: int) -> None:
    blocks = KeyBlocks("id", low, width, 3)
    for key, number in zip(keys, block_numbers(blocks, pa.array(keys, pa.int64()), None).tolist(), strict=True):
        start, end = blocks.range_of(number)
        assert start is None or start <= key
        assert end is None or key < end


def test_decimals_whose_integer_has_more_digits() -> None:
    keys = pa.array([Decimal("-999.99"), Decimal("-1.00"), Decimal("999.99")], pa.decimal128(5, 2))
    assert block_numbers(KeyBlocks("id", -1000, 500, 4, "decimal"), keys, None).tolist() == [1, 2, 4]


LINES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(), st.integers()), max_size=30)


@given(LINES, LINES, st.integers(0, 30))
def test_digests_of_blocks_add_up(one: list[Any], other: list[Any], cut: int) -> None:
    whole, parts = BlockDigests.of(one), BlockDigests.merged([BlockDigests.of(one[:cut]), BlockDigests.of(one[cut:])])
    sums: dict[int, list[int]] = {}
    for number, *values in one:
        sums[number] = [old + new for old, new in zip(sums.get(number, [0, 0, 0]), values, strict=True)]
    expected_sums = {number: (rows, high % 2**64, low % 2**64) for number, (rows, high, low) in sums.items()}
    for digests in (whole, parts):
        columns = (digests.counts.tolist(), digests.high.tolist(), digests.low.tolist())
        assert dict(zip(digests.numbers.tolist(), zip(*columns, strict=True), strict=True)) == expected_sums
    found = {number for number, _ in differing([whole, parts, BlockDigests.of(other)])}
    others = {number: line for number, line in _sums(other).items() if line != (0, 0, 0)}
    known = {number: line for number, line in expected_sums.items() if line != (0, 0, 0)}
    assert found == {number for number in {*known, *others} if known.get(number) != others.get(number)}


@pytest.mark.parametrize("other", [(1, 3, 5, 7), (1, 2, 6, 7), (1, 2, 5, 8)])
def test_blocks_differ_by_each_part_of_a_digest(other: tuple[int, int, int, int]) -> None:
    assert list(differing([BlockDigests.of([(1, 2, 5, 7)]), BlockDigests.of([other])])) == [(1, 2 + other[1])]


def _sums(lines: Sequence[Any]) -> dict[int, tuple[int, int, int]]:
    digests = BlockDigests.of(lines)
    return {
        int(number): (int(rows), int(high), int(low))
        for number, rows, high, low in zip(digests.numbers, digests.counts, digests.high, digests.low, strict=True)
    }


def _node(folder: Path) -> tuple[ColumnarNode, Plan]:
    node = ColumnarNode("lake", "parquet", PathSource("parquet", str(folder)))
    return node, plan_columns({"lake": node.describe()}, Request(key=("id",)))


def _table(rows: int) -> pa.Table:
    return pa.table(
        {"id": np.arange(rows), "name": [None if number % 7 == 0 else f"n {number}" for number in range(rows)]}
    )


@pytest.mark.parametrize("is_short", [True, False])
def test_digests_in_threads_and_processes_are_the_same(tmp_path: Path, is_short: bool) -> None:
    pq.write_table(_table(1000), tmp_path / "a.parquet", row_group_size=100)
    _, plan = _node(tmp_path)
    work = Work.of(replace(plan, is_short=is_short), "lake")
    parts = read_files([str(tmp_path / "a.parquet")]).parts
    assert len(parts) == 10
    here, there = (
        BlockDigests.merged([digests for digests, _ in digests_of(work, parts, threading.Event(), workers=workers)])
        for workers in (1, 2)
    )
    assert here.rows == there.rows == 1000
    assert list(differing([here, there])) == []
    with pytest.raises(NodeError, match=r"gone\.parquet cannot be read"):
        list(digests_of(work, [*parts, Part(str(tmp_path / "gone.parquet"), 0, 1, 1)], threading.Event(), workers=2))


def test_a_long_value_of_all_rows_needs_little_memory(tmp_path: Path) -> None:
    """The file has the value once, the rows have 200 MB."""
    table = pa.table({"id": np.arange(10_000), "name": ["x" * 20_000] * 10_000})
    pq.write_table(table, tmp_path / "a.parquet")
    del table
    node, plan = _node(tmp_path)
    before, counted = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(counted)
    try:
        assert node.digests(plan).rows == 10_000
    finally:
        pa.set_memory_pool(before)
    assert 0 < counted.max_memory() < 150_000_000


def test_rows_of_blocks_and_of_keys(tmp_path: Path) -> None:
    pq.write_table(_table(1000), tmp_path / "a.parquet", row_group_size=100)
    node, plan = _node(tmp_path)
    kinds: list[Blocks] = [KeyBlocks("id", 0, 10, 100), HashBlocks(4)]
    for blocks, is_short in product(kinds, (False, True)):
        plan = Plan(plan.columns, plan.key, plan.seed, blocks, is_short)
        digests = node.digests(plan)
        wanted = digests.numbers.tolist()[1::3]
        read = [row for _, rows in node.local_rows(plan, wanted) for row in rows.to_pylist()]
        high = low = 0
        for row in read:
            # Without the seed, which is the first field.
            values = decode_row(row)[1:]
            one, other = lookup3.hash_row(plan.kinds, values, plan.seed) if is_short else hash_row(row)
            high, low = (high + one) % 2**64, (low + other) % 2**64
        chosen = np.isin(digests.numbers, wanted)
        assert len(read) == digests.counts[chosen].sum()
        assert (high, low) == (int(digests.high[chosen].sum()), int(digests.low[chosen].sum()))
    keys = [encode_row(["int"], [encode("int", number)]) for number in (5, 999, 2000)]
    found = [key for batch in node.local_rows_of(plan, keys) for key in batch[0].to_pylist()]
    assert found == keys[:2]
    # The first column of a key selects the rows to look at, all columns those that are returned.
    pairs = [encode_row(["int", "text"], [encode("int", 5), encode("text", text)]) for text in ("n 5", "n 6")]
    both = node.local_rows_of(replace(plan, key=2), pairs)
    assert [key for batch in both for key in batch[0].to_pylist()] == pairs[:1]
    assert [key for batch in node.local_rows_of(replace(plan, key=2), pairs[1:]) for key in batch[0].to_pylist()] == []


def test_row_groups_at_the_edge_of_a_block_are_read(tmp_path: Path) -> None:
    """Each group has the rows of two blocks: one at each end of its range."""
    pq.write_table(_table(40), tmp_path / "a.parquet", row_group_size=10)
    node, plan = _node(tmp_path)
    plan = replace(plan, blocks=KeyBlocks("id", 0, 5, 8))
    for number in range(10):
        keys = [key for batch in node.local_rows(plan, [number]) for key in batch[0].to_pylist()]
        wanted = range(number * 5 - 5, number * 5) if 0 < number < 9 else ()
        assert keys == [encode_row(["int"], [encode("int", key)]) for key in wanted]


def test_the_probe(tmp_path: Path) -> None:
    pq.write_table(_table(2), tmp_path / "a.parquet")
    kinds: tuple[ValueClass, ...] = (
        *("bool", "int", "decimal", "float", "text", "char", "bytes", "date", "timestamp", "instant", "uuid", "json"),
    )
    assert _node(tmp_path)[0].probe(kinds, SEED) == {kind: expected(kind, SEED) for kind in kinds}


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pa.table({"id": [1], "x": [[1]]}), "nested"),
        (pa.table({"id": [1], "x": [timedelta(1)]}), "duration"),
        (pa.table({"id": [1], "x": pa.array(["a"]).dictionary_encode()}), "dictionary"),
        (pa.table({"id": [1], "x": pa.array([1], pa.uint64())}), "uint64"),
        (pa.table({"id": [1], "ID": [2]}), "differ in case"),
        (pa.table({"id": [1], "a.b": [2]}), "nested"),
        (
            pa.table({"id": [1]}).replace_schema_metadata({"org.apache.spark.version": "2.4.8"}),
            "another calendar",
        ),
    ],
)
def test_files_that_are_left_to_spark(tmp_path: Path, table: pa.Table, reason: str) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(NotColumnar, match=reason):
        _node(tmp_path)


def test_columns_of_files_that_differ_are_left_to_spark(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "b.parquet")
    with pytest.raises(NotColumnar, match="columns of the files differ"):
        _node(tmp_path)
