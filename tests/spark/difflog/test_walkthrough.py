"""The commands of the documentation: the example configuration with its sample data, and the walk-through."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import ArithmeticException

from support.fixtures import Spark
from trueup.cli.main import run
from trueup.engine.bulk_session import spark_session
from trueup.verbs.difflog.clickhouse import open_target
from trueup.verbs.difflog.config import load_difflog
from trueup.verbs.difflog.model import SINCE

PAGE = (Path(__file__).parents[3] / "docs" / "difflog-walkthrough.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.usefixtures("one_partition")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Spark) -> None:
    """Run commands in an empty folder, with the Spark session of the suite."""
    assert spark is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRUEUP_TASK_DB", str(tmp_path / "tasks.db"))


def test_the_template_runs_with_its_sample_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Including a time column that orders a log and belongs to a `last` rule."""
    assert run(["difflog", "init", "--sample"]) == 0
    commands = [line.split()[1:] for line in capsys.readouterr().out.splitlines()[1:]]
    assert [command[1] for command in commands] == ["join", "run", "prove"]
    assert [run(command) for command in commands] == [0, 0, 0]
    with open_target(load_difflog("difflog.toml").target) as house:
        for file in Path("raw/day1/fast").glob("*.parquet"):
            house.insert_parquet(file)
        merged = house.rows(f"SELECT Goals, Score, LastGoal, Revenue FROM {house.name} FINAL WHERE VisitID = 12")
    assert merged == [([1, 3], 2, "goal 3", 9.5)]
    capsys.readouterr()
    assert run(["difflog", "status"]) == 0
    shown = capsys.readouterr().out
    assert re.match(r"last run: 1, finished 2\S+Z\nwaiting chunk sets: none\nstate: 1,000 keys in \d+ files", shown)
    assert run(["difflog", "prove"]) == 0
    assert "MATCH" in capsys.readouterr().out
    _alter(next(Path("difflog/state").rglob("*.parquet")))
    assert run(["difflog", "prove"]) == 1
    assert "is not as a run has written it" in capsys.readouterr().out
    Path("difflog/runs/000001").rename("moved")
    assert run(["difflog", "status"]) == 2
    assert "state contains run 1" in " ".join(capsys.readouterr().err.split())


def _alter(file: Path) -> None:
    """Change the versions of single values, which are not in the log, of all states in a file."""
    table = pq.ParquetFile(file).read()
    place = table.schema.get_field_index(SINCE)
    nothing = pa.nulls(table.num_rows, table.schema.field(place).type)
    assert not table.column(place).combine_chunks().equals(nothing)
    pq.write_table(table.set_column(place, table.schema.field(place), nothing), file)


def test_the_walk_through_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Run the blocks of the page in order; a text block is the output of the block before it."""
    namespace: dict[str, object] = {}
    shown = ""
    for match in re.finditer(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        language, block = match.groups()
        if language == "text":
            assert block.split() == shown.split()
        elif language == "toml":
            Path("difflog.toml").write_text(block, encoding="utf-8")
        elif language == "python":
            # Blank lines before the code, so that a traceback shows the line of the page.
            code = "\n" * PAGE[: match.start(2)].count("\n") + block
            exec(compile(code, "docs/difflog-walkthrough.md", "exec"), namespace)  # noqa: S102
        else:
            for line in block.replace("pip install trueup\n", "").splitlines():
                program, *arguments = shlex.split(line)
                assert (program, run(arguments)) == ("trueup", 0)
        shown = capsys.readouterr().out


def test_the_settings_of_a_foreign_session_do_not_count_or_change(spark: Spark) -> None:
    changed = {"spark.sql.ansi.enabled": "false", "spark.sql.files.ignoreMissingFiles": "true", "trueup.test": "kept"}
    before = {name: spark.conf.get(name, None) for name in changed}
    try:
        for name, value in changed.items():
            spark.conf.set(name, value)
        for given in (spark, None):
            with spark_session(given=given) as session:
                assert [session.conf.get(name) for name in changed] == ["true", "false", "kept"]
                with pytest.raises(ArithmeticException):
                    session.sql("SELECT 9223372036854775807 + id AS total FROM range(1, 2)").collect()
        assert {name: spark.conf.get(name) for name in changed} == changed
        assert spark.range(3).count() == 3
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
