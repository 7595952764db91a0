"""The text of the metrics: a real parser reads it, names and labels are what was seen, whatever a table is called."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from trueup.config.model import Config
from trueup.serve.metrics import metrics_text
from trueup.serve.model import NodeSeen, Part, Seen, SlotSeen
from trueup.store import Task
from trueup.store.browse import Summary
from trueup.store.history import TableRun, TableState

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def state(table: str, *, nodes: str = "n1,n2", verdict: str = "DIFFER", ended: str = "2026-01-02") -> TableState:
    time = f"{ended}T00:00:00.000Z"
    kinds = {"n1/n2": {"missing": 1, "extra": 2, "changed": 3}}
    run = TableRun("id", "shop", nodes, table, "diff", True, verdict, 6, kinds, {}, 10, 1.0, time, time)
    return TableState(run, "1970-01-01T00:01:40.000Z", 2, 20)


def seen(*states: TableState, switchovers: tuple[Task, ...] = ()) -> Seen:
    summary = Summary((("TABLE_DIFF", "COMPLETED", 3),), (), (), switchovers, states, ())
    return Seen(stores={Path("s"): Part("s", summary, 5.0, 5.0)})


def samples(found: Seen, config: Config | None = None) -> Samples:
    text = metrics_text(found, config or Config()).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=4, unique=True))
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
def test_any_name_of_a_table_is_a_label(names: list[str]) -> None:
    found = samples(seen(*(state(name) for name in names)))
    for name in names:
        assert found["trueup_diff_rows_total", labels(cluster="shop:n1,n2", table=name)] == 20
        assert found["trueup_diff_differences", labels(pair="n1/n2", table=name, kind="extra")] == 2


def test_a_proof_and_its_age() -> None:
    cluster = Config(clusters={"shop": ("n2", "n1")})
    found = samples(seen(state("t")), cluster)
    where = labels(cluster="shop", table="t")
    assert found["trueup_proof_last_match_timestamp_seconds", where] == 100
    assert found["trueup_proof_age_seconds", where] > 1e9
    assert found["trueup_table_verdict", where | labels(verdict="DIFFER")] == 1
    assert found["trueup_tasks", labels(type="TABLE_DIFF", status="COMPLETED")] == 3
    assert found["trueup_source_up", labels(kind="store", source="s")] == 1


def test_a_proof_of_some_nodes_is_not_one_of_the_cluster() -> None:
    cluster = Config(clusters={"shop": ("n1", "n2", "n3")})
    found = samples(seen(state("t")), cluster)
    assert ("trueup_proof_age_seconds", labels(cluster="shop", table="t")) not in found
    assert ("trueup_proof_age_seconds", labels(cluster="shop:n1,n2", table="t")) in found


def test_two_stores_with_one_table_are_one_series_with_the_newest_run() -> None:
    found = seen(state("t", verdict="MATCH"), state("t", ended="2026-01-03"), state("t", ended="2026-01-01"))
    values = samples(found)
    assert [key for key in values if key[0] == "trueup_table_verdict"] == [
        ("trueup_table_verdict", labels(cluster="shop:n1,n2", table="t", verdict="DIFFER"))
    ]


def test_a_source_that_fails_is_down_and_keeps_its_values() -> None:
    node = NodeSeen("n1", "id", slots=(SlotSeen("n1", "trueup_v", True, 77), SlotSeen("n1", "lost", False, None)))
    found = samples(
        Seen(
            nodes={"n1": Part("n1", node, 5.0, 6.0, error="down"), "syncs": Part("syncs")}, syncs=Part("syncs", (), 5.0)
        )
    )
    up = {key[1]: value for key, value in found.items() if key[0] == "trueup_source_up"}
    # A node may be named like another source.
    names = (("node", "n1"), ("node", "syncs"), ("command", "syncs"))
    assert up == dict(zip((labels(kind=kind, source=name) for kind, name in names), (0, 0, 1), strict=True))
    assert found["trueup_slot_retained_bytes", labels(node="n1", slot="trueup_v")] == 77
    assert ("trueup_slot_retained_bytes", labels(node="n1", slot="lost")) not in found


def test_the_pauses_are_a_histogram() -> None:
    def task(pause: float, **more: object) -> Task:
        context = {"diff_summary": {"pause_ms": pause, **more}}
        return Task("i", "SWITCHOVER", "COMPLETED", "", context, "", "", "", "", "", "", 1.0, {}, "", "", 1)

    found = samples(seen(switchovers=(task(40), task(300), task(0, already="nothing to do"))))
    name = "trueup_switchover_pause_seconds"
    assert found[f"{name}_count", labels()] == 2
    assert found[f"{name}_sum", labels()] == pytest.approx(0.34)
    assert found[f"{name}_bucket", labels(le="0.05")] == 1
    assert found[f"{name}_bucket", labels(le="+Inf")] == 2
