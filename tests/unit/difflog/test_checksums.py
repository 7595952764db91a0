"""A state file that was changed by hand is found, whatever column was changed."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trueup.report.difflog import proof_summary
from trueup.verbs.difflog.checksums import CHECKSUMS, altered_files, write_checksums
from trueup.verbs.difflog_ends.judge import Proof

DAY = datetime.date(2026, 1, 1)
ROW = {
    **{"id": 1, "F": 3, "SlowVersion": 2, "IsDeleted": False, "money": 1.5, "Fast": {"ua": "firefox"}},
    **{"Since": [("money", 2)], "Expires": DAY},
}
# A row that another one has overwritten is a change of values and of `Since`.
CHANGES: list[dict[str, Any]] = [
    *({"id": 2}, {"F": 4}, {"SlowVersion": 3}, {"IsDeleted": True}, {"money": 1.25}, {"Fast": {"ua": "chrome"}}),
    *({"Since": [("money", 3)]}, {"Expires": DAY + datetime.timedelta(1)}, {"Expires": None}),
]
TYPES = {"Since": pa.map_(pa.string(), pa.int64())}
FILE = "run-000001/bucket=0/part-0.parquet"


def _write(table: Path, name: str, row: dict[str, Any]) -> Path:
    path = table / name
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {column: pa.array([value], TYPES.get(column)) for column, value in row.items()}
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A state table with one file of a run."""
    write_checksums(tmp_path / "run-000001", [_write(tmp_path, FILE, ROW)])
    return tmp_path


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_change_of_any_column_is_found(table: Path, change: dict[str, Any]) -> None:
    assert altered_files(table, [FILE]) == []
    _write(table, FILE, ROW)
    assert altered_files(table, [FILE]) == [], "the same bytes"
    _write(table, FILE, {**ROW, **change})
    assert altered_files(table, [FILE]) == [FILE]


def test_a_file_that_no_run_has_written_is_found(table: Path) -> None:
    others = ["run-000001/bucket=0/part-1.parquet", "run-000002/bucket=0/part-0.parquet", "part-0.parquet"]
    for name in others:
        _write(table, name, ROW)
    assert altered_files(table, [FILE, *others, "run-000001/missing.parquet"]) == sorted(
        [*others, "run-000001/missing.parquet"]
    )
    for text in ("", "[]", "{}"):
        (table / "run-000001" / CHECKSUMS).write_text(text)
        assert altered_files(table, [FILE]) == [FILE], "without its checksum, a file is not proven"


def test_an_altered_file_is_no_proof(table: Path) -> None:
    proof = Proof("MATCH", 1)
    assert proof.with_altered([]) == proof
    found = proof.with_altered([FILE])
    assert (found.verdict, found.exit_code) == ("DIFFER", 1)
    assert f"the state file {FILE} is not as a run has written it" in proof_summary(found.as_json())
    assert Proof("INCOMPLETE", 1).with_altered([FILE]).verdict == "INCOMPLETE"
