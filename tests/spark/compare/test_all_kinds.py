"""Every pair of kinds: equal rows match, one changed value is one difference."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import trueup
from support.kinds import COLUMNS, NAMES, AllKinds, quantized
from trueup.report.model import DiffResult

KINDS = ("pg", "maria", "ch", "parquet", "delta", "frame")
# Values that all kinds can store. MariaDB has no -0.0.
DOUBLES = st.floats(allow_nan=False, allow_infinity=False).filter(lambda it: it != 0 or math.copysign(1, it) > 0)
# MariaDB prints a real with six digits, and so do its clients.
REALS = st.integers(-(2**20), 2**20).map(lambda it: struct.unpack("f", struct.pack("f", it / 8))[0])
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
MOMENTS = st.datetimes(datetime(1971, 1, 1), datetime(2037, 1, 1))
VALUES = (
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.decimals(-(10**15), 10**15, places=4).map(quantized),
    DOUBLES,
    REALS,
    TEXTS,
    st.binary(max_size=20),
    st.dates(date(1900, 1, 1), date(2299, 12, 31)),
    MOMENTS,
    MOMENTS.map(lambda it: it.replace(tzinfo=timezone.utc)),
)
ROWS = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), *(st.none() | value for value in VALUES)),
    min_size=1,
    max_size=12,
    unique_by=lambda row: row[0],
)
FEW = settings(
    max_examples=1,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def diff(kinds: AllKinds, rows: dict[str, Sequence[Any]], **options: Any) -> DiffResult:
    return trueup.diff("things", nodes=kinds.nodes(rows), key=["id"], recheck=0, **options)


@FEW
@given(rows=ROWS, data=st.data())
def test_all_pairs_agree_and_find_one_changed_value(kinds: AllKinds, rows: list[Any], data: st.DataObject) -> None:
    # One value of one node: all pairs without it have equal rows.
    kind = data.draw(st.sampled_from(KINDS), label="kind")
    line = data.draw(st.integers(0, len(rows) - 1), label="line")
    column = data.draw(st.integers(1, len(COLUMNS) - 1), label="column")
    old = rows[line][column]
    new = data.draw((st.none() | VALUES[column - 1]).filter(lambda it: it != old), label="new")
    changed = [*rows[:line], (*rows[line][:column], new, *rows[line][column + 1 :]), *rows[line + 1 :]]
    result = diff(kinds, {**dict.fromkeys(KINDS, rows), kind: changed})
    assert (result.verdict, result.incomplete) == ("DIFFER", ())
    assert result.rows == dict.fromkeys(KINDS, len(rows))
    for pair, counts in result.pairs.items():
        assert (counts.changed, counts.total) == ((1, 1) if kind in pair.split("/") else (0, 0))
    for difference in result.to_arrow().to_pylist():
        assert difference["columns"] == [NAMES[column]]
        assert difference["key"] == [("id", str(rows[line][0]))]
    assert result.alone == {**dict.fromkeys(KINDS, 0), kind: 1}
    # The same without Spark.
    local = tuple(one for one in KINDS if one != "frame")
    found = diff(kinds, {**dict.fromkeys(local, rows), **({kind: changed} if kind in local else {})}, engine="local")
    assert (found.engine, found.rows) == ("local", dict.fromkeys(local, len(rows)))
    assert found.pairs == {pair: counts for pair, counts in result.pairs.items() if "frame" not in pair}


def test_the_same_drift_is_found_by_every_pair(kinds: AllKinds) -> None:
    at = datetime(2024, 2, 29, 12, tzinfo=timezone.utc)
    rows = [
        (number, True, number, Decimal(number), 0.5, 1.5, f"n {number}", b"x", at.date(), at.replace(tzinfo=None), at)
        for number in range(1, 60)
    ]
    drifted = [(*row[:6], "other", *row[7:]) if row[0] == 7 else row for row in rows if row[0] not in (3, 4)]
    drifted.append((99, *rows[0][1:]))
    result = diff(kinds, {**dict.fromkeys(KINDS, rows), "maria": drifted})
    for pair, found in result.pairs.items():
        missing, extra = (2, 1) if pair.endswith("maria") else (1, 2)
        expected = (missing, extra, 1) if "maria" in pair else (0, 0, 0)
        assert (found.missing, found.extra, found.changed) == expected
    listed = {(it["kind"], it["key"][0][1], tuple(it["columns"])) for it in result.to_arrow().to_pylist()}
    changed = {("changed", "7", ("name",))}
    assert listed == changed | {(kind, key, ()) for kind in ("missing", "extra") for key in ("3", "4", "99")}
