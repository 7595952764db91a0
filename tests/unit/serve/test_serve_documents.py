"""The published description of the API is that of the program, and every metric is documented."""

from __future__ import annotations

import re
from pathlib import Path

from support.serve import metric_names
from trueup.serve.documents import openapi, openapi_text

ROOT = Path(__file__).parents[3]


def test_the_published_description_is_current() -> None:
    assert (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8") == openapi_text()
    assert "/api/v1/tasks/{task_id}" in openapi()["paths"]


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(trueup_[a-z_]+)`", page))
    assert named == metric_names()
