"""The files of a frame: long rows are processed in small parts, links are not followed, a full disk is named."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from trueup.engine.parquet_files import common_schema, spark_footer
from trueup.errors import CheckFailed, StoreError
from trueup.verbs.difflog.steps import write
from trueup.verbs.difflog.stored import discard_frame
from trueup.verbs.difflog.value_checks import input_errors

FULL = """[TASK_WRITE_FAILED] Task failed while writing rows to file:/work/.frame/rows. SQLSTATE: 58030
Caused by: java.io.IOException: No space left on device"""


@pytest.mark.parametrize(("length", "expected"), [(0, 2000), (1000, 2000), (100_000, 160)])
def test_long_rows_are_read_in_parts_of_limited_size(tmp_path: Path, length: int, expected: int) -> None:
    path = tmp_path / "rows.parquet"
    texts = [str(number) * length for number in range(10)] * 200
    # As Spark writes a frame: without a dictionary, which would store each text once.
    pq.write_table(pa.table({"c0": texts}), path, compression="none", use_dictionary=False)
    sizes = [batch.num_rows for batch in write.batches([str(path)], ["text"])]
    assert sum(sizes) == 2000
    assert max(sizes) == pytest.approx(expected, rel=0.1)


def test_outputs_with_long_rows_are_written_before_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "BYTES_PER_GROUP", 10_000)
    output = write.Output("wide", str(tmp_path), "token", {"a": "b"})
    for number in range(30):
        output.add({"text": pa.array([str(number % 10) * 1000])})
    output.close()
    (written,) = output.written
    with pq.ParquetFile(tmp_path / written.path) as file:
        assert (file.metadata.num_rows, file.metadata.num_row_groups) == (30, 3)
        assert file.read()["text"].to_pylist() == [str(number % 10) * 1000 for number in range(30)]


def test_a_link_in_the_place_of_the_frame_is_removed_and_its_target_is_not(tmp_path: Path) -> None:
    other, work = tmp_path / "other", tmp_path / "work"
    other.mkdir()
    work.mkdir()
    (other / "kept").touch()
    (work / ".frame").symlink_to(other)
    discard_frame(work)
    assert not (work / ".frame").is_symlink()
    assert (other / "kept").exists()
    (work / ".frame" / "rows").mkdir(parents=True)
    discard_frame(work)
    assert not (work / ".frame").exists()


def test_a_full_disk_is_not_an_error_of_the_input() -> None:
    with pytest.raises(StoreError, match="cannot write files into the work folder: No space left on device"):
        _fail(FULL)
    with pytest.raises(CheckFailed, match=r"the input cannot be processed: Division by zero\. \(DIVIDE_BY_ZERO\)"):
        _fail("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012")


def _fail(message: str) -> None:
    with input_errors(None):
        raise PySparkException(message)


def test_schemas_that_java_and_python_write_differently_are_the_same(tmp_path: Path) -> None:
    schema = StructType([StructField("id", LongType()), StructField("goals", ArrayType(StringType()))])
    table = pa.table({"id": pa.array([1]), "goals": pa.array([["a"]])})
    by_python = spark_footer(schema)
    (name,) = (key for key in by_python if key.endswith("row.metadata"))
    by_java = {name: json.dumps(_reversed(json.loads(by_python[name])))}
    other = {name: StructType([StructField("id", LongType(), nullable=False)]).json()}
    assert by_java[name] != by_python[name]
    for file, footer in (("python", by_python), ("java", by_java), ("other", other), ("none", {})):
        pq.write_table(table.replace_schema_metadata(footer), tmp_path / f"{file}.parquet")
    python, java, another, none = (tmp_path / f"{file}.parquet" for file in ("python", "java", "other", "none"))
    assert common_schema([python, java]) == schema
    assert common_schema([python, another]) is None
    assert common_schema([python, java, none]) is None


def _reversed(value: object) -> object:
    """Return a JSON value with the fields of its objects in the opposite order."""
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(value)}
    return [_reversed(item) for item in value] if isinstance(value, list) else value
