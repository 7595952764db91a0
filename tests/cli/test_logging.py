"""Log records of the command line: on stderr, as text or JSON; stdout has the result only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import NodeOptions, WriteConfig
from support.fixtures import Cli
from trueup.errors import TrueupError
from trueup.testing.postgres import Database


def test_an_error_as_json(cli: Cli) -> None:
    ran = cli("diff", "items", "--node", "n1=postgresql://u:Kxq77@h:x/db", "--log-format", "json")
    entry = json.loads(ran.err)
    assert (ran.code, ran.out) == (2, "")
    assert (entry["level"], entry["logger"], entry["exit_code"]) == ("ERROR", "trueup.cli.main", 2)
    assert entry["cure"]
    assert entry["time"].endswith("Z")
    assert "Kxq77" not in ran.err


@pytest.mark.parametrize("before", [True, False])
def test_options_before_and_after_the_command(cli: Cli, before: bool, tmp_path: Path) -> None:
    options = ["--log-format", "json", "--log-level", "error"]
    words = ["report", "nowhere.json"]
    ran = cli(*(options + words if before else words + options))
    assert json.loads(ran.err)["message"].startswith("cannot read the report nowhere.json")


def test_wrong_usage_as_json(cli: Cli) -> None:
    ran = cli("--log-format=json", "diff", "--nonsense")
    assert "nonsense" in json.loads(ran.err)["message"]


def test_a_traceback_as_json(cli: Cli) -> None:
    ran = cli("-v", "--log-format", "json", "report", "nowhere.json")
    assert "Traceback" in json.loads(ran.err)["traceback"]


def test_an_interrupt_writes_no_empty_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*path: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trueup.report.json_reader.open_report", stop)
    ran = cli("--log-format", "json", "report", "nowhere.json")
    assert (ran.code, ran.err.count("\n"), json.loads(ran.err)["message"]) == (130, 1, "stopped by the user")


def test_an_error_of_several_lines(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*path: object) -> None:
        raise TrueupError("the first line\n  the second", cure="retry")

    monkeypatch.setattr("trueup.report.json_reader.open_report", fail)
    ran = cli("report", "nowhere.json")
    assert (ran.code, ran.err) == (2, "trueup: the first line\n  the second\n  what to do: retry\n")


def test_debug_shows_connections_without_passwords(cli: Cli, equal: list[Database], node_options: NodeOptions) -> None:
    ran = cli("check", "items", *node_options(equal), "--log-level", "debug", "--log-format", "json", "--json")
    entries = [json.loads(line) for line in ran.err.splitlines()]
    assert ran.json["verdict"] == "MATCH"
    assert {entry["node"] for entry in entries if entry["message"].startswith("connecting to ")} == {"n1", "n2"}


def test_variables(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUEUP_LOG_FORMAT", "json")
    assert json.loads(cli("report", "nowhere.json").err)
    # An option overrides the variable.
    assert cli("report", "nowhere.json", "--log-format", "text").err.startswith("trueup: ")
    monkeypatch.setenv("TRUEUP_LOG_FORMAT", "xml")
    ran = cli("tasks")
    assert (ran.code, "TRUEUP_LOG_FORMAT: 'xml'" in ran.err) == (2, True)
    monkeypatch.delenv("TRUEUP_LOG_FORMAT")
    monkeypatch.setenv("TRUEUP_LOG_LEVEL", "loud")
    assert "use one of debug, info, warning, error" in cli("tasks").err


def test_notes_are_log_records_with_task_and_table(
    cli: Cli, drifted: list[Database], node_options: NodeOptions
) -> None:
    """A diff of many tables logs a note per finished table."""
    words = ["diff", "--schema", "public", *node_options(drifted)]
    ran = cli(*words, "--log-format", "json", "--json")
    entries = [json.loads(line) for line in ran.err.splitlines()]
    done = [entry for entry in entries if entry["message"] == "public.items: DIFFER"]
    assert (ran.code, len(done)) == (1, 1)
    assert (done[0]["level"], done[0]["task"]) == ("INFO", ran.json["task_id"])
    assert "trueup: public.items: DIFFER" in cli(*words).err
    assert cli(*words, "--quiet").err == ""
    assert cli(*words, "--log-level", "warning").err == ""
    assert "public.items: DIFFER" in cli(*words, "--quiet", "--log-level", "info").err


def test_a_warning_of_the_configuration(
    cli: Cli, equal: list[Database], write_config: WriteConfig, node_options: NodeOptions
) -> None:
    path = write_config(equal, '[nodes.n9]\nhost = "h"\npassword = "Kxq77"\n')
    path.chmod(0o644)
    options = ("check", "items", "--config", path, *node_options(equal))
    ran = cli(*options)
    assert f"trueup: warning: {path} contains a password" in ran.err
    assert "Kxq77" not in ran.err
    assert json.loads(cli(*options, "--log-format", "json").err.splitlines()[0])["level"] == "WARNING"
