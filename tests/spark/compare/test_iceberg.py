"""Iceberg tables that Spark has no catalog for: a snapshot, deletes, renamed and added columns."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import trueup
from support.fixtures import Databases, ReportOf, Spark
from trueup.errors import TrueupError


def test_an_iceberg_table(
    databases: Databases, tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch, report_of: ReportOf
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__HOUSE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__HOUSE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__HOUSE__WAREHOUSE", f"file://{tmp_path}/house")
    # Reads the environment when it is imported.
    from pyiceberg.catalog import load_catalog
    from pyiceberg.types import StringType

    catalog = load_catalog("house")
    catalog.create_namespace("shop")
    kinds = {"id": pa.int64(), "old": pa.string(), "price": pa.decimal128(10, 2), "at": pa.timestamp("us", "UTC")}
    table = catalog.create_table("shop.orders", pa.schema(kinds))
    pg = databases(1)[0]
    pg.execute("CREATE TABLE orders (id bigint PRIMARY KEY, name text, price numeric, at timestamptz, note text)")
    nodes = {"pg": pg.uri, "lake": "iceberg:house.shop.orders"}
    assert trueup.diff("orders", nodes=nodes, columns=["price"], recheck=0).verdict == "MATCH"
    prices = [Decimal(number) / 4 for number in range(1, 6)]
    values = [[1, 2, 3, 4, 5], ["a", "b", None, "d", ""], prices, [10**15] * 5]
    table.append(pa.table([pa.array(one, kind) for one, kind in zip(values, kinds.values(), strict=True)], [*kinds]))
    # Files have the old name, and no note; rows are deleted later.
    with table.update_schema() as update:
        update.rename_column("old", "name")
        update.add_column("note", StringType())
    table.delete("id = 4")
    pg.execute(
        """INSERT INTO orders SELECT n, (ARRAY['a', 'b', NULL, 'd', ''])[n], n / 4.0, to_timestamp(1000000000)
             FROM generate_series(1, 5) n WHERE n <> 4"""
    )
    result = trueup.diff("orders", nodes=nodes, recheck=0)
    assert (result.verdict, result.rows) == ("MATCH", {"pg": 4, "lake": 4})
    assert report_of(result)["proof"]["nodes"]["lake"]["facts"]["snapshot"] == table.metadata.current_snapshot_id
    pg.execute("UPDATE orders SET name = 'other' WHERE id = 2; INSERT INTO orders VALUES (4)")
    nodes["lake"] = f"iceberg:{table.metadata_location}"
    found = trueup.diff("orders", nodes=nodes, recheck=1, recheck_wait=0).pairs["pg/lake"]
    assert (found.changed, found.missing, found.total) == (1, 1, 2)
    for wrong in ("house.shop.no", "none.shop.orders"):
        with pytest.raises(TrueupError, match=f"the Iceberg table {wrong} cannot be opened"):
            trueup.diff("orders", nodes={"pg": pg.uri, "lake": f"iceberg:{wrong}"})
