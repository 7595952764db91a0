"""Variables like TRUEUP__DIFF__BLOCK_SIZE that override the file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueup.config.load import load
from trueup.errors import ConfigError

WriteToml = Callable[[str], str]

FILE = """
[nodes]
Main = "${NOT_SET}"
[diff]
retries = 1
[spark.conf]
"spark.executor.memoryOverhead" = "1g"
"""


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("BLOCK_SIZE", "5000", 5_000),
        ("RETRIES", "9", 9),
        ("RECHECK_WAIT", "1", 1.0),
        ("CONCURRENCY_FACTOR", "0.25", 0.25),
        ("SNAPSHOT", "off", False),
        ("SNAPSHOT", "False", False),
        ("OVERRIDE_BLOCK_SIZE", "1", True),
        ("DIGEST", "portable", "portable"),
        ("REPORT_DIR", "${x}", "${x}"),
    ],
)
def test_diff_settings(name: str, text: str, value: object) -> None:
    diff = load(env={f"TRUEUP__DIFF__{name}": text}).diff
    assert getattr(diff, name.lower()) == value
    assert type(getattr(diff, name.lower())) is type(value)


def test_all_sections(toml: WriteToml) -> None:
    env = {
        "TRUEUP__NODES__MAIN": "host=main",
        "TRUEUP__NODES__Other": "host=${x}",
        "TRUEUP__CLUSTERS__ACCTG": "Main, other",
        "TRUEUP__DIFF__RETRIES": "7",
        "TRUEUP__SPARK__ENGINE": "local",
        "TRUEUP__SPARK__CONF__SPARK_EXECUTOR_MEMORY": "2g",
        "TRUEUP__SPARK__CONF__SPARK_EXECUTOR_MEMORYOVERHEAD": "3g",
        "TRUEUP__SPARK__CONF__spark_task_maxFailures": "4",
        "TRUEUP__TASKS__TASK_DB": "/x",
        "TRUEUP_CONFIG": "",
    }
    config = load(toml(FILE), env=env)
    # The file's Main asks for a variable that is not set, but it is overridden.
    assert {name: node.conninfo for name, node in config.nodes.items()} == {
        "Main": "host=main",
        "other": "host=${x}",
    }
    assert config.clusters == {"acctg": ("Main", "other")}
    assert config.diff.retries == 7
    assert config.spark.engine == "local"
    assert config.spark.conf == {
        "spark.executor.memory": "2g",
        "spark.executor.memoryOverhead": "3g",
        "spark.task.maxFailures": "4",
    }
    assert config.tasks.task_db == "/x"


def test_options_override_variables() -> None:
    config = load(env={"TRUEUP__NODES__N1": "host=a"}, nodes={"n1": "host=b"})
    assert config.nodes["n1"].conninfo == "host=b"


@pytest.mark.parametrize(
    ("variable", "text", "message", "cure"),
    [
        ("TRUEUP__DIFF__BLOCK_SIZE", "many", "expected a whole number", "whole number"),
        ("TRUEUP__DIFF__BLOCK_SIZE", "", "expected a whole number", "whole number"),
        ("TRUEUP__DIFF__BLOCK_SIZE", "5", "must be between 1000 and 1000000", ""),
        ("TRUEUP__DIFF__RECHECK_WAIT", "x", "expected a number", ""),
        ("TRUEUP__DIFF__SNAPSHOT", "maybe", "expected true or false", ""),
        ("TRUEUP__DIFF__DIGEST", "x", "must be one of", ""),
        ("TRUEUP__DIFF__BLOCKSIZE", "5000", "there is no such key", 'Did you mean "block_size"?'),
        ("TRUEUP__DIFF__CONF__X", "5000", "there is no such key", "Use one of: "),
        ("TRUEUP__DIF__BLOCK_SIZE", "5000", 'there is no section "dif"', 'Did you mean "diff"?'),
        ("TRUEUP__DIFF", "5000", "the name of the setting is missing", "TRUEUP__DIFF__SETTING"),
        ("TRUEUP__SPARK__CONF", "x", "a variable cannot set a whole table", "TRUEUP__SPARK__CONF__spark"),
        ("TRUEUP__NODES__N1", "hunter2", "invalid address", "postgresql://"),
        ("TRUEUP__NODES__N1__PASSWORD", "hunter2", 'there is no "n1__password"', "whole value"),
        ("TRUEUP__CLUSTERS__C", "n1", 'there is no node "n1"', ""),
        ("TRUEUP__CLUSTERS__C", " , ", "the cluster has no nodes", ""),
    ],
)
def test_errors_name_the_variable(variable: str, text: str, message: str, cure: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(env={variable: text})
    assert str(caught.value).startswith(f"{variable}: {message}")
    assert cure in caught.value.cure
    assert "hunter2" not in str(caught.value) + caught.value.cure
