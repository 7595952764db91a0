"""Durations, the budget of the pause, the phases and the gate, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from trueup.config.model import Node
from trueup.errors import ConfigError
from trueup.verbs.switchover import gate
from trueup.verbs.switchover.phases import FENCE, GATE, OPEN, PREPARE, Budget, BudgetSpent, Phases
from trueup.verbs.switchover.request import EXECUTE, ROLLBACK, SwitchoverRequest, seconds

FIRST, SECOND = Node("old", "postgresql://db1/shop"), Node("new", "postgresql://db2/shop")


@pytest.mark.parametrize(("text", "value"), [("5s", 5.0), ("500ms", 0.5), ("1.5", 1.5), (" 2 m ", 120.0)])
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "s", "5 hours", "-1s"])
def test_an_invalid_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        seconds(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0.0}, "--budget"),
        ({"proof": "luck"}, "'luck' is unknown"),
        ({"proof": "keys", "validation": "shop"}, "need --proof validated"),
    ],
)
def test_an_invalid_request(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SwitchoverRequest("main", FIRST, SECOND, **options)


def test_a_rollback_is_the_other_direction() -> None:
    request = SwitchoverRequest("main", FIRST, SECOND)
    assert (request.route(EXECUTE).source, request.route(EXECUTE).target) == (FIRST, SECOND)
    assert (request.route(ROLLBACK).source, request.route(ROLLBACK).target) == (SECOND, FIRST)


def test_the_budget_starts_with_the_pause() -> None:
    now = [100.0]
    budget = Budget(2.0, clock=lambda: now[0])
    now[0] += 50
    assert budget.left == 2.0
    budget.start()
    now[0] += 1.5
    assert budget.milliseconds(GATE) == 500
    now[0] += 0.5
    with pytest.raises(BudgetSpent, match="the budget of 2 s was spent in the phase 'gate'"):
        budget.milliseconds(GATE)


def test_the_pause_is_measured_from_the_fence_to_the_opening() -> None:
    phases = Phases()
    for name in (PREPARE, FENCE, GATE, OPEN):
        with phases.phase(name):
            pass
    assert list(phases.milliseconds) == [PREPARE, FENCE, GATE, OPEN]
    assert phases.pause_ms >= sum(phases.milliseconds[name] for name in (FENCE, GATE, OPEN))


def test_the_gate_names_every_condition_that_fails() -> None:
    problems = [f"t{number}" for number in range(7)]
    conditions = [gate.condition(gate.ROWS, problems), gate.condition(gate.SCHEMA, [], "3 tables")]
    assert str(conditions[1]) == "schema equal: 3 tables"
    with pytest.raises(gate.GateClosed) as caught:
        gate.refuse(conditions)
    assert str(caught.value) == "the gate is closed: rows equal: t0; t1; t2; t3; t4 (and 2 more)"
    gate.refuse(conditions[1:])
