"""Which alerts are raised by what was seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trueup.serve.alert_rules import known, raised
from trueup.serve.alert_settings import AlertSettings
from trueup.serve.model import NodeSeen, Part, Seen, TubeSeen, ValidationSeen
from trueup.serve.pages.overview import overview
from trueup.serve.views import Tiles
from trueup.store.browse import Summary
from trueup.store.history import TableRun, TableState

NONE = AlertSettings(verdict_change=False, validation_error=False, dead_letters=False, task_failed=False)


def node(**more: Any) -> Seen:
    return Seen(nodes={"n1": Part("n1", NodeSeen("n1", "id", **more), 1.0, 1.0)})


def validation(**status: Any) -> Seen:
    values = {"name": "v", "open_errors": 0, "lag_seconds": None, **status}
    return node(validations=(ValidationSeen("n1", SimpleNamespace(**values)),))  # type: ignore[arg-type]


def tube(letters: int, schema: str = "tube") -> Seen:
    row, info = SimpleNamespace(dead_letters=letters), SimpleNamespace(tube="copies")
    return node(tubes=(TubeSeen("n1", info, (row,), schema),))  # type: ignore[arg-type]


def table(verdict: str, *, is_whole: bool = True, ended: str = "2026-01-01", store: str = "s") -> Seen:
    time = f"{ended}T00:00:00.000Z"
    run = TableRun("id", "shop", "n1,n2", "t", "diff", is_whole, verdict, 1, {}, {}, 10, 1.0, time, time)
    summary = Summary((), (), (), (), (TableState(run, None, 1, 10),), ())
    return Seen(stores={Path(store): Part(store, summary, 1.0, 1.0)})


@pytest.mark.parametrize(
    ("seen", "settings", "text"),
    [
        (validation(open_errors=2), {"validation_error": True}, "validation v on n1 has 2 errors"),
        (validation(open_errors=2), {}, ""),
        (validation(), {"validation_error": True}, ""),
        (validation(lag_seconds=400.0), {"lag_above": 300.0}, "validation v on n1 is 400 s behind (limit 5 min)"),
        (validation(lag_seconds=200.0), {"lag_above": 300.0}, ""),
        (tube(3), {"dead_letters": True}, "tube copies on n1 has 3 dead letters"),
        (tube(3, "other"), {"dead_letters": True}, "tube other.copies on n1 has 3 dead letters"),
        (tube(0), {"dead_letters": True}, ""),
        (table("DIFFER"), {"verdict_change": True}, "t on shop is DIFFER"),
        (table("DIFFER", is_whole=False), {"verdict_change": True}, "t on shop is DIFFER"),
        (table("MATCH"), {"verdict_change": True}, ""),
        (table("INCOMPLETE"), {"verdict_change": True}, "t on shop is INCOMPLETE"),
    ],
)
def test_alerts(seen: Seen, settings: dict[str, Any], text: str) -> None:
    assert [alert.text for alert in raised(seen, replace(NONE, **settings)).values()] == ([text] if text else [])


def test_the_newest_verdict_of_two_stores_counts() -> None:
    one, two = table("MATCH", ended="2026-01-02", store="a"), table("DIFFER", ended="2026-01-03", store="b")
    settings = replace(NONE, verdict_change=True)
    assert raised(Seen(stores={**one.stores, **two.stores}), settings)
    assert raised(Seen(stores={**two.stores, **one.stores}), settings)
    later = table("MATCH", ended="2026-01-04", store="a")
    both = Seen(stores={**later.stores, **two.stores})
    assert not raised(both, settings)
    assert [(state.runs, state.rows_total) for state in both.states] == [(2, 20)]
    assert known(both)("verdict t shop n1,n2")


def test_an_error_of_a_validation_counts_against_a_match() -> None:
    """A table that a diff has found equal is not proven while a validation of the same nodes has errors in it."""

    def errors(count: int, *, table: str = "t", nodes: tuple[str, str] = ("n2", "n1")) -> Seen:
        listed = [SimpleNamespace(source=table, target=table, errors={"new": count, "ignored": 9})]
        more = {"blind_spots": (), "state": "running", "total": lambda name: 0}
        return validation(open_errors=count, source=nodes[0], target=nodes[1], tables=listed, **more)

    for found, is_proven in (
        (errors(3), False),
        (errors(0), True),
        (errors(3, table="other"), True),
        (errors(3, nodes=("n1", "n3")), True),
    ):
        (state,) = Seen(stores=table("MATCH").stores, nodes=found.nodes).states
        assert state.is_proven == is_proven
    both = Seen(stores=table("MATCH").stores, nodes=errors(3).nodes)
    (alert,) = raised(both, replace(NONE, verdict_change=True)).values()
    assert alert.text == "t on shop is MATCH, and 3 errors of the validation v"
    tiles = next(block for block in overview(both).blocks if isinstance(block, Tiles)).tiles
    assert [tile.value for tile in tiles if tile.label == "tables proven equal"] == ["0 of 1"]
