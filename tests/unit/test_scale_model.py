"""The model of what a diff costs (bench/scale_model.py): its limits, and the predictions in docs/design/scale.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scale_model import MEASURED, Run, predict, tables

ROOT = Path(__file__).parents[2]
RUN = Run(10_000_000_000, slots=16, server_cores=32, worker_cores=320, latency=0.0005)


@given(
    rows=st.integers(1, 10**11),
    drift=st.sampled_from([0.0, 1e-7, 1e-5, 1e-3, 0.1]),
    engine=st.sampled_from(["local", "spark"]),
    slots=st.integers(1, 500),
    latency=st.sampled_from([0.0, 0.001, 0.1]),
)
def test_more_work_never_takes_less_time(rows: int, drift: float, engine: str, slots: int, latency: float) -> None:
    run = replace(RUN, rows=rows, drift=drift, engine=engine, slots=slots, latency=latency)
    base = predict(run, MEASURED)
    for more in (
        replace(run, rows=rows * 2),
        replace(run, latency=latency + 0.01),
        replace(run, nodes=3),
        replace(run, server_cores=1),
        replace(run, worker_cores=1),
        replace(run, storage=1e9, row_bytes=100),
    ):
        assert predict(more, MEASURED).seconds >= base.seconds * 0.999
    assert base.connections == slots + 2
    assert base.server_load <= run.server_cores * 1.001


@pytest.mark.parametrize(
    ("run", "limit"),
    [
        (RUN, "the slots"),
        (replace(RUN, slots=300), "the cores of a node"),
        (replace(RUN, slots=300, server_cores=300, engine="spark"), "the slots"),
        (replace(RUN, slots=300, storage=1e8, row_bytes=100), "the storage of a node"),
        (replace(RUN, slots=300, drift=0.1), "Python in this process"),
        (replace(RUN, slots=300, drift=0.1, engine="spark"), "the driver"),
        (replace(RUN, slots=2, latency=1.0), "the slots"),
    ],
)
def test_what_limits_a_run(run: Run, limit: str) -> None:
    assert predict(run, MEASURED).limit == limit


def test_the_page_has_the_predictions_of_the_model() -> None:
    page = (ROOT / "docs" / "design" / "scale.md").read_text(encoding="utf-8")
    for table in tables():
        assert table in page
