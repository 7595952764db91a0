"""The command line of the version log, without Spark and without a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fixtures import Cli
from trueup.api.difflog import DiffLog
from trueup.verbs.difflog.result import RunResult

PASSWORD = "hunter2-2290"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A difflog.toml with a password that other users can read."""
    file = tmp_path / "difflog.toml"
    url = f'url = "clickhouse://u:{PASSWORD}@127.0.0.1:1/db"'
    file.write_text(
        '[entity]\nname = "visit"\nkey = ["VisitID"]\nfast_version = "F"\n'
        '[[log]]\nname = "money"\nkey = ["VisitID"]\n[log.columns]\nRevenue = "sum"\n'
        f'[clickhouse]\ntable = "visits"\n{url}\n'
    )
    file.chmod(0o644)
    return file


@pytest.fixture
def no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace `DiffLog.run`: no chunks are waiting."""
    monkeypatch.setattr(DiffLog, "run", lambda *_, **__: RunResult(0))


@pytest.mark.usefixtures("no_run")
def test_a_password_that_others_can_read_is_a_warning_on_stderr(cli: Cli, config: Path) -> None:
    ran = cli("difflog", "run", "--config", config, "--json")
    assert ran.code == 0
    assert ran.json["number"] == 0
    assert "trueup: warning: " in ran.err
    assert f"chmod 600 {config}" in ran.err
    assert PASSWORD not in ran.out + ran.err


@pytest.mark.usefixtures("no_run")
def test_no_warning_with_quiet_or_private_permissions(cli: Cli, config: Path) -> None:
    assert cli("difflog", "run", "--config", config, "--quiet").err == ""
    config.chmod(0o600)
    assert "chmod" not in cli("difflog", "run", "--config", config).err


def test_an_unknown_side_log_is_an_error(cli: Cli, config: Path) -> None:
    ran = cli("difflog", "join", "--config", config, "--visits", "raw", "--log", "mony=raw")
    assert ran.code == 2
    assert "--log mony=raw: not NAME=DIR of a side log" in ran.err
    assert "the side logs are money" in ran.err


def test_a_path_that_does_not_exist_is_an_error_before_spark_starts(
    cli: Cli, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trueup.api.difflog.spark_session", lambda *_: pytest.fail("Spark was started"))
    ran = cli("difflog", "join", "--config", config, "--visits", tmp_path / "missing")
    assert ran.code == 2
    assert f"{tmp_path / 'missing'} does not exist" in ran.err
