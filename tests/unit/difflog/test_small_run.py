"""Work that reads few bytes starts a Java that compiles less."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trueup import DiffLog
from trueup.engine import bulk_session
from trueup.errors import EngineError
from trueup.verbs.difflog import chunks
from trueup.verbs.difflog_ends import prove

CONFIG = """
work = "."
[entity]
name = "visit"
key = ["id"]
fast_version = "F"
[[log]]
name = "money"
key = ["id"]
[log.columns]
Revenue = "sum"
[state]
path = "state"
[clickhouse]
path = "clickhouse"
table = "visits"
"""


@pytest.mark.parametrize("call", ["run", "join", "prove"])
def test_java_is_chosen_by_the_size_of_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("difflog.toml").write_text(CONFIG)
    Path("chunks/a/visit").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1], "F": [1]}), "chunks/a/visit/a.parquet")
    options = []

    def start(*, conf: dict[str, str], **_: Any) -> None:
        options.append(conf["spark.driver.extraJavaOptions"])
        raise EngineError("not started")

    monkeypatch.setattr(bulk_session, "start_session", start)
    monkeypatch.setattr(bulk_session, "existing_session", lambda: None)
    log = DiffLog("difflog.toml", task_db=str(tmp_path / "tasks.db"))
    calls: dict[str, Callable[[], object]] = {
        "run": log.run,
        "join": partial(log.join, visits=["chunks/a/visit/a.parquet"]),
        "prove": log.prove,
    }
    for limit in (10_000, 10):
        monkeypatch.setattr(chunks, "SMALL_BYTES", limit)
        monkeypatch.setattr(prove, "SMALL_PROOF_BYTES", limit)
        with pytest.raises(EngineError, match="not started"):
            calls[call]()
    assert ["TieredStopAtLevel=1" in each for each in options] == [True, False]
