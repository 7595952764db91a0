"""Nodes, settings and the choice of nodes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any

import pytest

from trueup.config.model import Config, Node
from trueup.config.settings import DiffSettings, SparkSettings, TaskSettings
from trueup.errors import ConfigError

URI = "postgresql://app:hunter2@db1:5433/shop?sslpassword=hunter3"
THREE = {name: Node(name, f"host={name}") for name in ("n1", "n2", "n3")}
CONFIG = Config(nodes=THREE, clusters={"acctg": ("n1", "n2"), "one": ("n3",)})


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


@pytest.mark.parametrize("show", [repr, str, lambda node: repr(asdict(node)), lambda node: repr([node]), Node.describe])
def test_a_node_does_not_show_its_password(show: Callable[[Node], str]) -> None:
    assert "hunter" not in show(Node("n1", URI))


def test_a_node_keeps_its_password_where_it_is_needed() -> None:
    node = Node("n1", URI)
    assert str(node.conninfo) == f"{node.conninfo}" == URI
    for twin in (pickle.loads(pickle.dumps(node)), copy.deepcopy(node), Node(**asdict(node))):
        assert twin == node
        assert twin.conninfo == URI
        assert "hunter" not in repr(twin.conninfo)


@pytest.mark.parametrize(
    ("conninfo", "shown"),
    [
        ("postgresql://app:pw@db1:5433/shop", "app@db1:5433/shop"),
        ("postgresql://app@db1/shop?password=pw&sslpassword=pw", "app@db1/shop"),
        ("host=db1 dbname=shop user=app password='p w' passfile=/x", "app@db1/shop"),
        ("postgresql://app@h1:1,h2:2/shop", "app@h1:1,h2:2/shop"),
        ("host=h1,h2 port=5 dbname=shop", "h1:5,h2:5/shop"),
        ("service=shop2", "service=shop2"),
        ("service=shop2 user=app password=pw", "app@service=shop2"),
        ("host=/tmp dbname=shop", "/tmp/shop"),
        ("application_name=x", "libpq defaults"),
        ("dbname='password=pw'", "/password=***"),
        ("postgresql://app:p@w@db1/shop", "unreadable address"),
        ("postgresql://app:pw/x@db1/shop", "unreadable address"),
        ("postgresql://app:12/pw@db1/shop", "unreadable address"),
        ("postgresql://app:p@w/x@db1/shop", "unreadable address"),
        ("postgresql://app@corp:pw@db1/shop", "unreadable address"),
        ("password='pw", "unreadable address"),
        ("password=pw\0", "unreadable address"),
    ],
)
def test_describe(conninfo: str, shown: str) -> None:
    assert Node("n1", conninfo).describe() == f"n1 ({shown})"


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        DiffSettings().block_size = 1  # type: ignore[misc]


def test_the_defaults_are_valid() -> None:
    assert DiffSettings().validated() == DiffSettings()
    assert SparkSettings().validated() == SparkSettings()


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 999},
        {"block_size": 1_000_001},
        {"block_size": 0, "override_block_size": True},
        {"min_block_size": 0},
        {"max_block_size": 999},
        {"concurrency_factor": -0.1},
        {"concurrency_factor": 4.1},
        {"concurrency_factor": float("nan")},
        {"max_connections": 1},
        {"max_connections": -1},
        {"compare_unit_size": 0},
        {"max_diff_rows": 0},
        {"recheck": -1},
        {"recheck_wait": -1.0},
        {"recheck_wait": float("inf")},
        {"numeric": "text"},
        {"digest": "md5"},
        {"block_timeout": 0.0},
        {"block_timeout": float("nan")},
        {"retries": -1},
        {"long_value": 0},
        {"block_size": "5000"},
        {"retries": True},
        {"snapshot": 1},
    ],
)
def test_wrong_diff_settings_are_reported(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(DiffSettings(), **change).validated(lambda name: "--" + name.replace("_", "-"))
    name = next(iter(change))
    assert f"--{name.replace('_', '-')}: " in str(caught.value)
    assert caught.value.cure


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 1_000},
        {"block_size": 1_000_000},
        {"block_size": 5, "override_block_size": True},
        {"concurrency_factor": 0},
        {"concurrency_factor": 4.0},
        {"max_connections": 2},
        {"recheck": 0, "recheck_wait": 0.0},
    ],
)
def test_settings_at_their_limits_are_valid(change: dict[str, Any]) -> None:
    settings = replace(DiffSettings(), **change)
    assert settings.validated() is settings


def test_all_wrong_settings_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        DiffSettings(retries=-1, digest="md5").validated()
    assert str(caught.value).splitlines() == [
        "retries: must be at least 0, not -1",
        'digest: must be one of "auto", "native", "portable", not \'md5\'',
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SparkSettings(engine="flink"), "engine: must be one of"),
        (SparkSettings(local_rows=-1), "local_rows: must be at least 0"),
        (SparkSettings(master="yarn", remote="sc://h"), "master and remote cannot be used together"),
    ],
)
def test_wrong_spark_settings(settings: SparkSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings.validated()


def test_other_settings_hide_secrets_too() -> None:
    config = Config(
        spark=SparkSettings(remote="sc://h:15002/;token=hunter2;user_id=x", conf={"spark.x.secret.key": "hunter2"}),
        tasks=TaskSettings("postgresql://u:hunter2@h/db"),
    )
    assert "hunter2" not in repr(config)
    assert "hunter2" not in str(config)
    assert "user_id=x" in str(config)


@pytest.mark.parametrize(
    ("cluster", "chosen_names", "chosen"),
    [
        (None, None, ["n1", "n2", "n3"]),
        (None, [], ["n1", "n2", "n3"]),
        (None, ["all"], ["n1", "n2", "n3"]),
        (None, ["n3", "n1"], ["n3", "n1"]),
        ("acctg", None, ["n1", "n2"]),
        ("acctg", ["all"], ["n1", "n2"]),
        ("acctg", ["n2", "n1"], ["n2", "n1"]),
    ],
)
def test_select(cluster: str | None, chosen_names: list[str] | None, chosen: list[str]) -> None:
    assert names(CONFIG.select(cluster, chosen_names)) == chosen


def test_select_a_single_node_when_one_is_enough() -> None:
    assert names(CONFIG.select(None, ["n1"], at_least=1)) == ["n1"]
    assert names(CONFIG.select("one", None, at_least=1)) == ["n3"]


@pytest.mark.parametrize(
    ("cluster", "chosen_names", "message", "cure"),
    [
        (None, ["n1", "N4"], 'there is no node "N4"', 'Did you mean "n'),
        (None, ["n1", "zebra"], 'there is no node "zebra"', "Use one of: n1, n2, n3."),
        (None, ["n1", "n2", "n1"], 'the node "n1" is listed twice', ""),
        (None, ["n1", "all"], 'there is no node "all"', ""),
        (None, ["n1"], "at least 2 nodes needed, there is only n1", "--node NAME=URI"),
        ("one", None, "at least 2 nodes needed, there is only n3", ""),
        ("acctg", ["n1", "n3"], 'there is no node "n3" in the cluster "acctg"', "Use one of: n1, n2."),
        ("actg", None, 'there is no cluster "actg"', 'Did you mean "acctg"?'),
    ],
)
def test_select_raises(cluster: str | None, chosen_names: list[str] | None, message: str, cure: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CONFIG.select(cluster, chosen_names)
    assert message in str(caught.value)
    assert cure in caught.value.cure


def test_select_without_nodes_has_a_cure() -> None:
    for chosen_names in (None, ["n1", "n2"]):
        with pytest.raises(ConfigError) as caught:
            Config().select(None, chosen_names)
        assert "--node NAME=URI" in caught.value.cure
        assert "trueup init" in caught.value.cure


def test_select_does_not_show_a_password_given_for_a_name() -> None:
    with pytest.raises(ConfigError) as caught:
        CONFIG.select(None, ["postgresql://u:hunter2@h/db"])
    assert "hunter2" not in str(caught.value)
