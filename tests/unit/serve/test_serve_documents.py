"""The published description of the API is that of the program, and every metric is documented."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from trueup.config.model import Config
from trueup.serve.documents import openapi, openapi_text
from trueup.serve.metrics import metrics_text
from trueup.serve.model import Seen

ROOT = Path(__file__).parents[3]


def metric_names() -> set[str]:
    families = list(text_string_to_metric_families(metrics_text(Seen(), Config()).decode()))
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


def test_the_published_description_is_current() -> None:
    assert (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8") == openapi_text()
    assert "/api/v1/tasks/{task_id}" in openapi()["paths"]


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(trueup_[a-z_]+)`", page))
    assert named == metric_names()
