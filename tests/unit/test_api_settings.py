"""Every parameter of `trueup.diff` and the functions like it reaches the settings or the request."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import trueup
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.rows.request import TableRequest
from trueup.verbs.diff import many
from trueup.verbs.diff import run as one

NODES = {"a": "host=a dbname=x", "b": "host=b dbname=x"}
FUNCTIONS: list[Callable[..., Any]] = [
    *(trueup.diff, trueup.check, trueup.diff_many, trueup.check_many, trueup.rerun),
]
# Parameters that are not settings.
REQUEST = {"table", "nodes", "cluster", "config", "filter", "columns", "exclude_columns", "key", "task_db", "progress"}
REQUEST |= {"schemas", "tables", "exclude_tables", "exclude_tables_file", "report", "allow_functions", "map", "query"}
REQUEST |= {"since_proof", "certify", "require_rows"}
# For each setting a value that is not the default.
VALUES: dict[str, Any] = {
    "block_size": 50_000,
    "min_block_size": 500,
    "max_block_size": 2_000_000,
    "override_block_size": True,
    "compare_unit_size": 5_000,
    "max_diff_rows": 10,
    "concurrency_factor": 1.5,
    "max_connections": 8,
    "recheck": 1,
    "recheck_wait": 0.5,
    "snapshot": False,
    "numeric": "representation",
    "digest": "portable",
    "block_timeout": 10.0,
    "retries": 1,
    "long_value": 4096,
    "gentle": True,
    "gentle_seconds": 1.0,
    "max_rows_per_second": 1000,
    "max_lag": 1.0,
    "max_active_sessions": 5,
    "max_lock_waits": 1,
    "report_dir": "reports",
    "output": "json,html",
    "engine": "local",
    "master": "spark://host:7077",
    "remote": "sc://host:15002",
}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[TableRequest]:
    """The requests of calls, which are not run."""
    (tmp_path / "reports").mkdir()
    seen: list[TableRequest] = []
    monkeypatch.setattr(one, "run", lambda request, **_: seen.append(request))
    monkeypatch.setattr(many, "run_many", lambda request, **_: seen.append(request.table))
    return seen


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_locals_are_the_parameters(function: Callable[..., Any]) -> None:
    names = tuple(inspect.signature(function).parameters)
    # `same_parameters` passes the parameters by name: there are no locals.
    assert hasattr(function, "__wrapped__") or function.__code__.co_varnames == names
    settings = {field.name for field in (*fields(DiffSettings), *fields(SparkSettings))}
    assert set(names) <= settings | REQUEST


@pytest.mark.parametrize("name", VALUES)
def test_a_setting(requests: list[TableRequest], name: str) -> None:
    trueup.diff("t", nodes=NODES, **{name: VALUES[name]})
    trueup.check_many(tables=["t"], nodes=NODES, **{name: VALUES[name]})
    for request in requests:
        if name in ("engine", "master", "remote"):
            assert request.settings == DiffSettings()
            assert request.spark == replace(SparkSettings(), **{name: VALUES[name]})
        else:
            assert request.settings == replace(DiffSettings(), **{name: VALUES[name]})
            assert request.spark == SparkSettings()
    assert [request.digests_only for request in requests] == [False, True]


def test_the_values_cover_all_settings_that_are_parameters() -> None:
    assert set(inspect.signature(trueup.diff).parameters) - REQUEST == set(VALUES)


def test_the_rest_of_the_request(requests: list[TableRequest]) -> None:
    trueup.diff("s.t", nodes=NODES, filter="x > 1", columns=["x"], key=["id"], output=["json", "html"])
    trueup.check("s.t", nodes=NODES, exclude_columns=["y"])
    first, second = requests
    assert (first.table, first.filter, first.columns, first.key) == ("s.t", "x > 1", ("x",), ("id",))
    assert first.node_names == ("a", "b")
    assert first.settings.outputs == ("json", "html")
    assert second.exclude_columns == ("y",)
