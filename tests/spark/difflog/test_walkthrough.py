"""The commands of the documentation: the example configuration with its sample data."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fixtures import Spark
from trueup.cli.main import run
from trueup.verbs.difflog.clickhouse import open_target
from trueup.verbs.difflog.config import load_difflog


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Spark) -> None:
    """Run commands in an empty folder, with the Spark session of the suite."""
    assert spark is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRUEUP_TASK_DB", str(tmp_path / "tasks.db"))


def test_the_template_runs_with_its_sample_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Including a time column that orders a log and belongs to a `last` rule."""
    assert run(["difflog", "init", "--sample"]) == 0
    join = capsys.readouterr().out.splitlines()[-1].split()
    assert join[:3] == ["trueup", "difflog", "join"]
    assert run(join[1:]) == 0
    assert run(["difflog", "run"]) == 0
    with open_target(load_difflog("difflog.toml").target) as house:
        for file in Path("raw/day1/fast").glob("*.parquet"):
            house.insert_parquet(file)
        merged = house.rows(f"SELECT Goals, Score, LastGoal, Revenue FROM {house.name} FINAL WHERE VisitID = 12")
    assert merged == [([1, 3], 2, "goal 3", 9.5)]
    capsys.readouterr()
    assert run(["difflog", "prove"]) == 0
    assert "MATCH" in capsys.readouterr().out
