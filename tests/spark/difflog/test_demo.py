"""The demo of the version log works, and its result is proven."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.fixtures import Spark
from support.spark import ONE_PARTITION
from trueup.cli.main import run
from trueup.engine.bulk_session import changed_settings

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")


def test_the_demo_of_the_version_log(spark: Spark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the demo in this process, which already has a Spark session."""
    assert "`trueup demo difflog`" in README
    # Its result does not depend on how Spark divides the rows.
    with changed_settings(spark, ONE_PARTITION):
        assert run(["demo", "difflog", "--rows", "2000", "--keep"]) == 0
    shown = capsys.readouterr().out
    assert "MATCH: every key collapses to one row" in shown
    assert re.search(r"diff_log_2_conversions +[1-9].* signed rows, 66 late", shown)
    raw = tmp_path / "trueup-demo" / "raw"
    logs = ["--fast-log", str(raw / "1" / "fast"), "--fast-log", str(raw / "2" / "fast")]
    assert run(["difflog", "prove", "--config", "trueup-demo/difflog.toml", "--json", *logs]) == 0
    assert json.loads(capsys.readouterr().out)["keys"] == 2000
