"""Blocks by ranges of keys of all classes on databases: what differs at their borders is found exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import trueup
from support.fixtures import Databases
from support.mariadb import MariaDb
from trueup.db.clickhouse import Embedded
from trueup.report.model import DiffResult

ROWS, UNIT = 400, 100
# The first and the last row, and those on both sides of borders of blocks.
BORDERS = (0, 99, 100, 199, 200, 299, 300, 399)
START = datetime(1999, 12, 31, 23, 30)


@dataclass(frozen=True)
class Keys:
    """Keys of one class: their types on PostgreSQL, MariaDB and ClickHouse, and values that are spread evenly."""

    postgres: str
    maria: str
    house: str
    value: Callable[[int], Any]
    # Values that only MariaDB has.
    odd: tuple[str, ...] = ()
    # Before the first and after the last block.
    outside: tuple[int, ...] = (-40, ROWS + 40)


KEYS = {
    "date": Keys(
        *("date", "date", "Date32"),
        lambda n: date(1999, 6, 1) + timedelta(days=n),
        ("0000-00-00", "1999-02-31", "2000-00-01", "2000-02-30"),
    ),
    "timestamp": Keys(
        *("timestamp", "datetime(6)", "DateTime64(6, 'UTC')"),
        lambda n: START + timedelta(microseconds=7 * n),
        ("0000-00-00 00:00:00", "1999-11-31 23:30:00"),
    ),
    "instant": Keys(
        *("timestamptz", "timestamp(6) DEFAULT 0", "DateTime64(6, 'UTC')"),
        lambda n: START + timedelta(hours=n),
        ("0000-00-00 00:00:00",),
    ),
    "decimal": Keys(
        "numeric(30,2)", "decimal(30,2)", "Decimal(30, 2)", lambda n: Decimal(n - 200) / 2 - Decimal("0.25")
    ),
    "unsigned": Keys("bigint", "bigint unsigned", "UInt64", lambda n: 2**53 + n * 3, outside=(-2000,)),
    "smallest": Keys("bigint", "bigint", "Int64", lambda n: -(2**63) + n * 3, outside=(5000,)),
    "largest": Keys("bigint", "bigint", "Int64", lambda n: 2**63 - (ROWS - n) * 3, outside=(-5000,)),
    "huge": Keys("numeric", "decimal(60,0)", "UInt256", lambda n: n * 10**12, outside=(2 * 10**46,)),
    "uuid": Keys("uuid", "uuid", "UUID", lambda n: UUID(int=(n << 118) + (ROWS - n) * 2**60 + 7), outside=(1000,)),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_borders_of_blocks(keys: Keys, databases: Databases, maria: MariaDb, tmp_path: Path) -> None:
    pg = databases(1)[0]
    values = [str(keys.value(number)) for number in range(ROWS)]
    zone = "+00" if keys.postgres == "timestamptz" else ""
    pg.execute(f"CREATE TABLE spread (id {keys.postgres} PRIMARY KEY, v text)")
    pg.execute(f"INSERT INTO spread SELECT (id || '{zone}')::{keys.postgres}, 'x' FROM unnest(%s::text[]) id", [values])
    pg.execute("ANALYZE spread")
    maria.execute("DROP TABLE IF EXISTS spread")
    maria.execute(f"CREATE TABLE spread (id {keys.maria} PRIMARY KEY, v text)")
    maria.execute("INSERT INTO spread VALUES (%s, 'x')", [[value] for value in values])
    house = Embedded(tmp_path / "house")
    listed = ", ".join(f"('{value}', 'x')" for value in values)
    house.execute(f"CREATE TABLE default.spread (id {keys.house}, v String) ENGINE = MergeTree ORDER BY id")
    house.execute(f"INSERT INTO default.spread VALUES {listed}")
    house.close()
    nodes = {"pg": pg.uri, "maria": maria.uri, "house": f"chdb:{tmp_path}/house"}

    def diff() -> DiffResult:
        options: dict[str, Any] = {"compare_unit_size": UNIT, "recheck": 1, "recheck_wait": 0, "engine": "local"}
        return trueup.diff("spread", nodes=nodes, key=["id"], **options)

    result = diff()
    assert (result.verdict, result.rows) == ("MATCH", dict.fromkeys(nodes, ROWS))
    # By hash, there are 16 blocks at least.
    assert result.blocks == ROWS // UNIT

    # Other rows on MariaDB: changed, missing, and those that no block of PostgreSQL has.
    changed, missing = BORDERS[::2], BORDERS[1::2]
    for number in changed:
        maria.execute("UPDATE spread SET v = 'other' WHERE id = %s", [values[number]])
    for number in missing:
        maria.execute("DELETE FROM spread WHERE id = %s", [values[number]])
    extra = [str(keys.value(number)) for number in keys.outside]
    maria.execute(
        "SET STATEMENT sql_mode = 'ALLOW_INVALID_DATES' FOR INSERT INTO spread VALUES (%s, 'x')",
        [[value] for value in (*extra, *keys.odd)],
    )
    result = diff()
    found = result.pairs["pg/maria"]
    assert (found.changed, found.missing, found.extra) == (len(changed), len(missing), len(extra) + len(keys.odd))
    assert result.pairs["pg/house"].total == 0
    assert (result.verdict, result.incomplete) == ("DIFFER", ())
