"""The dashboard and the rules in contrib/ are valid, and every metric and label that they name exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.serve import metric_names

ROOT = Path(__file__).parents[3]
DASHBOARDS = sorted((ROOT / "contrib" / "grafana").glob("*.json"))
SUFFIXES = ("_bucket", "_sum", "_count")


def expressions() -> list[tuple[str, str]]:
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            found += [(panel["title"], target["expr"]) for target in panel["targets"]]
    for rule in rules():
        found.append((rule["alert"], str(rule["expr"])))
    return found


def rules() -> list[dict[str, Any]]:
    text = (ROOT / "contrib" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    (group,) = yaml.safe_load(text)["groups"]
    listed: list[dict[str, Any]] = group["rules"]
    return listed


@pytest.mark.parametrize(("title", "expression"), expressions(), ids=lambda text: text[:40])
def test_every_metric_exists(title: str, expression: str) -> None:
    named = re.findall(r"trueup_\w+", expression)
    assert named
    for name in named:
        assert name in metric_names() or name.removesuffix("_bucket") in metric_names(), name
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_has_panels_that_do_not_overlap() -> None:
    (path,) = DASHBOARDS
    places: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places
        assert at["x"] + at["w"] <= 24
        places |= cells


def test_every_rule_is_tested() -> None:
    """`promtool test rules` runs these tests; here: no rule is without one that fires."""
    text = (ROOT / "contrib" / "prometheus" / "alerts_test.yml").read_text(encoding="utf-8")
    cases = [case for test in yaml.safe_load(text)["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {rule["alert"] for rule in rules()}


def test_rules_have_a_summary_with_labels_of_their_metric() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    labels = set(re.findall(r"`(\w+)`", page))
    for rule in rules():
        summary = rule["annotations"]["summary"]
        assert set(re.findall(r"\$labels\.(\w+)", summary)) <= labels
        assert re.fullmatch(r"\d+m", rule["for"])
