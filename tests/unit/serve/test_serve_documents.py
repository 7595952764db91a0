"""The published description of the API is that of the program, and every metric is documented."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.serve import metric_names
from trueup.serve.answers import Api
from trueup.serve.documents import openapi, openapi_text
from trueup.store import Task

ROOT = Path(__file__).parents[3]


def test_the_published_description_is_current() -> None:
    assert (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8") == openapi_text()
    assert "/api/v1/tasks/{task_id}" in openapi()["paths"]


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(trueup_[a-z_]+)`", page))
    assert named == metric_names()


@pytest.mark.parametrize("show_rows", [True, False])
def test_the_output_of_commands_is_hidden_unless_rows_are_shown(show_rows: bool) -> None:
    values: dict[str, Any] = {field.name: "" for field in fields(Task)}
    task = Task(**{**values, "task_context": {"diff_summary": {"verdict": "DIFFER", "said": "row 7: secret"}}})
    options: Any = SimpleNamespace(show_rows=show_rows)
    reading: Any = None
    shown = Api(reading, reading, options).without_rows(task).task_context
    assert ("secret" in str(shown), "DIFFER" in str(shown)) == (show_rows, True)
