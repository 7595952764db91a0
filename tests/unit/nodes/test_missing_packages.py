"""A kind of node whose package is not installed says what to install."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from trueup.db.clickhouse import Embedded, Server, parse_url
from trueup.errors import ConfigError

URL = "clickhouse://127.0.0.1:9/d"


def test_clickhouse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find_spec = PathFinder.find_spec

    def find(name: str, *arguments: Any) -> Any:
        return None if name in ("chdb", "clickhouse_connect") else find_spec(name, *arguments)

    monkeypatch.setattr(PathFinder, "find_spec", find)
    for name in ("chdb", "clickhouse_connect"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError, match="needs the library chdb") as caught:
        Embedded(tmp_path)
    assert caught.value.cure == "run pip install chdb"
    with pytest.raises(ConfigError, match="needs the library clickhouse_connect") as caught:
        Server(URL, parse_url(URL))
    assert caught.value.cure == "run pip install 'trueup[clickhouse]'"
