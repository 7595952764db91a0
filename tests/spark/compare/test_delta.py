"""Delta tables as nodes: versions, partitions, added columns, and features that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import trueup
from support.fixtures import Databases, ReportOf, Spark
from trueup.errors import CheckFailed, NodeError

MAPPED = {"id": 1, "physicalName": "id"}
PARTS = ["a b", "c/d", None, "x=%"]


def test_versions_partitions_and_added_columns(
    databases: Databases, tmp_path: Path, spark: Spark, report_of: ReportOf
) -> None:
    pg = databases(1)[0]
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, part text, more int)")
    for number, part in enumerate(PARTS):
        pg.execute("INSERT INTO t VALUES (%s, %s, %s)", [number, part, None if number < 3 else 7])
    folder = str(tmp_path / "lake")
    first = pa.table({"id": pa.array([0, 1, 2], pa.int32()), "part": PARTS[:3]})
    write_deltalake(folder, first, partition_by=["part"])
    last = {"id": pa.array([3], pa.int32()), "part": PARTS[3:], "more": pa.array([7], pa.int32())}
    write_deltalake(folder, pa.table(last), mode="append", schema_mode="merge")
    # Rows of files that the table has replaced are not read.
    write_deltalake(folder, pa.table(last), mode="append")
    write_deltalake(folder, pa.table(last), mode="overwrite", predicate="id = 3")
    nodes: dict[str, Any] = {"pg": pg.uri, "lake": f"delta:{folder}"}
    result = trueup.diff("t", nodes=nodes, recheck=0)
    assert (result.verdict, result.rows) == ("MATCH", {"pg": 4, "lake": 4})
    assert report_of(result)["proof"]["nodes"]["lake"]["facts"]["version"] == 3
    pg.execute("UPDATE t SET part = NULL WHERE id = 0")
    assert trueup.diff("t", nodes=nodes, recheck=0).pairs["pg/lake"].changed == 1
    # Spark would read another text from the name of this folder.
    write_deltalake(folder, pa.table({**last, "part": ["\u00fc"]}), mode="append")
    with pytest.raises(CheckFailed, match="is partitioned in a way that its files alone do not show: part in the path"):
        trueup.diff("t", nodes=nodes)


def _one_row(databases: Databases, tmp_path: Path) -> tuple[dict[str, str], Path, list[dict[str, Any]]]:
    """Return nodes with a table of one row, the first file of the log of Delta, and its actions."""
    pg, folder = databases(1)[0], tmp_path / "lake"
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    write_deltalake(str(folder), pa.table({"id": pa.array([1], pa.int32())}))
    log = folder / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    return {"pg": pg.uri, "lake": f"delta:{folder}"}, log, actions


@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping", "typeWidening"])
def test_features_that_files_do_not_show_are_refused(databases: Databases, tmp_path: Path, feature: str) -> None:
    nodes, log, actions = _one_row(databases, tmp_path)
    for action in actions:
        if "protocol" in action:
            features = {"readerFeatures": [feature], "writerFeatures": [feature]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
            if feature == "columnMapping":
                # Part of an older protocol too, which has no list of features.
                action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action and feature == "columnMapping":
            schema = json.loads(action["metaData"]["schemaString"])
            schema["fields"][0]["metadata"] = {f"delta.columnMapping.{name}": it for name, it in MAPPED.items()}
            action["metaData"]["schemaString"] = json.dumps(schema)
            action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(CheckFailed, match=f"uses {feature}, which its files alone do not show") as caught:
        trueup.diff("t", nodes=nodes)
    assert "Spark session that has Delta" in caught.value.cure


def test_a_newer_protocol_is_refused(databases: Databases, tmp_path: Path) -> None:
    nodes, log, actions = _one_row(databases, tmp_path)
    newer = [{"protocol": {"minReaderVersion": 4, "minWriterVersion": 8}} if "protocol" in it else it for it in actions]
    log.write_text("\n".join(map(json.dumps, newer)))
    # By the library, which does not open such a table; older versions of it do.
    with pytest.raises((CheckFailed, NodeError), match="version 4"):
        trueup.diff("t", nodes=nodes)
