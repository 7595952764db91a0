"""`trueup doctor`: one line per check, JSON, exit codes, and a real Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.cli import WriteConfig
from support.fixtures import Cli, Spark
from trueup.testing.postgres import Database


def test_text_output(cli: Cli, equal: list[Database], write_config: WriteConfig) -> None:
    write_config(equal)
    ran = cli("doctor", "items", "--cluster", "both", "--no-spark")
    *lines, last = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert all(re.match(r"(OK  |WARN|FAIL)  \S", line) for line in lines), lines
    assert any("not checked, because --no-spark is set" in line for line in lines)
    assert re.fullmatch(r"healthy: 0 failures, \d+ warnings?, \d+ ok; .* s", last)
    assert "\x1b" not in ran.out


def test_a_failure_is_exit_code_2(cli: Cli, equal: list[Database], write_config: WriteConfig) -> None:
    write_config(equal)
    ran = cli("doctor", "itmes", "--no-spark", "--quiet")
    *lines, last = ran.out.splitlines()
    assert ran.code == 2
    assert {line[:4] for line in lines} <= {"FAIL", "WARN"}
    assert "did you mean public.items?" in ran.out
    assert last.startswith("not healthy: ")


def test_json(cli: Cli, equal: list[Database]) -> None:
    inline = [f"--node=n{number}={node.uri}" for number, node in enumerate(equal, 1)]
    ran = cli("doctor", "items", *inline, "--engine", "local", "--json")
    assert (ran.code, ran.err) == (0, "")
    found = ran.json
    assert (found["exit_code"], found["counts"]["FAIL"]) == (0, 0)
    assert sum(found["counts"].values()) == len(found["findings"])
    assert set(found["findings"][0]) == {"level", "check", "where", "message", "cure"}
    assert {"n1", "n2"} <= {finding["where"] for finding in found["findings"]}


def test_nodes_by_name_and_by_address(cli: Cli, equal: list[Database], write_config: WriteConfig) -> None:
    write_config(equal)
    ran = cli("doctor", "--node", f"x={equal[0].uri}", "--nodes", "n2,x", "--no-spark", "--json")
    assert [finding["where"] for finding in ran.json["findings"] if finding["check"] == "version"] == ["n2", "x"]
    assert cli("doctor", "--node", "x", "--no-spark").code == 2


def test_an_invalid_configuration_is_a_finding(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "trueup.toml").write_text("[nodes\n")
    ran = cli("doctor", "--no-spark")
    assert ran.code == 2
    assert ran.out.startswith("FAIL  configuration")
    assert "OK    python" in ran.out


def test_a_misspelled_variable_is_reported(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUEUP_DIFF_BLOCK_SIZE", "5")
    ran = cli("doctor", "--no-spark", "--quiet")
    assert "did you mean TRUEUP__DIFF__BLOCK_SIZE?" in ran.out
    assert "TRUEUP_TASKS_DB" not in ran.out


def test_spark_of_this_process(cli: Cli, spark: Spark) -> None:
    found = [finding for finding in cli("doctor", "--json").json["findings"] if finding["check"] == "spark"]
    assert [(each["level"], each["where"]) for each in found] == [
        ("OK", "this machine"),
        ("OK", "workers"),
        ("OK", "this machine"),
    ]
    assert "protected by a secret" in found[2]["message"]
    assert re.match(r"Spark 4\.\S+ started in .* s, ran a task in .* s", found[0]["message"])
    assert spark.range(3).count() == 3, "sessions of others must not be ended"


def test_spark_that_does_not_start(process: Cli) -> None:
    # Java starts, and Spark does not: its reason is what Java raised.
    ran = process("doctor", "--quiet", env={"TRUEUP__SPARK__CONF__SPARK_DRIVER_MEMORY": "300m"})
    assert ran.code == 2
    failure = next(line for line in ran.out.splitlines() if line.startswith("FAIL  spark"))
    assert re.search("Spark failed to start: .*Insufficient driver memory: .* must be at least 4", failure)
    assert " -> check JAVA_HOME" in failure
    assert len([line for line in ran.out.splitlines() if line.startswith("FAIL")]) == 1
