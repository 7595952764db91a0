"""The JSON columns: special values are converted to JSON, passwords are masked."""

from __future__ import annotations

import enum
import json
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.store import COMPLETED, TaskStore
from trueup.store.values import from_json, plain_mapping, to_json

Query = Callable[..., list[tuple[Any, ...]]]


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("Zürich – 東京 🙂", "Zürich – 東京 🙂"),
        ('nul \x00 and "quotes" \'\\', 'nul \x00 and "quotes" \'\\'),
        ("half \ud800", "half \\ud800"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (True, True),
        (None, None),
        (10**30, 10**30),
        (0.1, 0.1),
        (Decimal("1.50"), "1.50"),
        (Decimal("NaN"), "NaN"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("/a/b"), "/a/b"),
        (datetime(2025, 7, 22, tzinfo=timezone.utc), "2025-07-22T00:00:00+00:00"),
        (b"\x00\xff", "00ff"),
        ((1, [2, {3: 4}]), [1, [2, {"3": 4}]]),
        ({"b", "a"}, ["a", "b"]),
        (Colour.RED, "red"),
        (Point(1, math.nan), {"x": 1, "y": "nan"}),
        ((number for number in (1, 2)), [1, 2]),
    ],
)
def test_odd_values_become_plain(store: TaskStore, query: Query, value: object, plain: object) -> None:
    task = store.start("TABLE_DIFF", context={"value": value})
    assert task.task_context == {"value": plain}
    assert query("SELECT json_valid(task_context) FROM ace_tasks") == [(1,)]


def test_a_recursive_value_is_stored(store: TaskStore, query: Query) -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop
    store.start("TABLE_DIFF", context=loop)
    assert query("SELECT json_extract(task_context, '$.again.again') IS NOT NULL FROM ace_tasks") == [(1,)]


def test_odd_names_are_stored(store: TaskStore) -> None:
    task = store.start("TABLE_DIFF", cluster="c\ud800", schema="Ü\udc80", table="東'\"京", repset="r;--", context={})
    assert (task.schema, task.table_name, task.repset_name) == ("Ü\\udc80", "東'\"京", "r;--")
    assert task.cluster_name == "c\\ud800"


@pytest.mark.parametrize("text", ["{", "", "[1]", "null"])
def test_a_damaged_context_does_not_block_the_list(store: TaskStore, query: Query, text: str) -> None:
    store.start("TABLE_DIFF", context={})
    query("UPDATE tasks SET task_context = ?", text)
    (task,) = store.list()
    assert list(task.task_context) == ["unreadable"]
    assert store.finish(task.task_id, COMPLETED, summary={}).task_status == COMPLETED


def test_a_nan_written_by_another_program(store: TaskStore, query: Query) -> None:
    task = store.start("TABLE_DIFF", context={})
    query("UPDATE tasks SET task_context = '{\"x\": NaN}'")
    assert store.finish(task.task_id, COMPLETED).task_context == {"x": "NaN"}


SECRET = "hunter2secret"
LEAKS: list[dict[str, object]] = [
    {"dsn": f"postgresql://joe:{SECRET}@db:5432/app"},
    {"dsn": f"host=db user=joe password={SECRET} dbname=app"},
    {"deep": [{"nodes": (f"postgres://joe:{SECRET}@db/app",)}]},
    {f"postgresql://joe:{SECRET}@db/app": 1},
    {"password": SECRET},
    {"node": {"PGPASSWORD": SECRET, "auth_token": SECRET, "password": [SECRET]}},
    {"path": Path(f"x password={SECRET}")},
]


@pytest.mark.parametrize("leak", LEAKS)
def test_no_password_reaches_the_file(path: Path, leak: dict[str, object]) -> None:
    with TaskStore(path) as store:
        first = store.start("TABLE_DIFF", context=leak)
        store.heartbeat(first.task_id, leak)
        store.finish(first.task_id, COMPLETED, summary=leak)
        dsn = f"postgresql://joe:{SECRET}@db/app"
        second = store.start("TABLE_DIFF", cluster=dsn, context={})
        store.finish(second.task_id, "FAILED", error=f"cannot connect to {dsn}", diff_file_path=dsn)
        written = b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert b"TABLE_DIFF" in written
        assert SECRET.encode() not in written


def test_values_that_only_look_secret_are_kept() -> None:
    kept = {"password": None, "use_token": True, "tokens_seen": 3, "table": "passwords"}
    assert plain_mapping(kept) == kept


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_like, max_size=5))
def test_any_value_is_written_and_read_back(value: dict[str, object]) -> None:
    plain = plain_mapping(value)
    text = to_json(plain)
    text.encode("utf-8")
    assert from_json(text) == plain == json.loads(text)
