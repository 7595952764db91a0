"""The documentation points to what is there, and speaks of every option and setting."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from trueup.config.settings import DiffSettings, SparkSettings
from trueup.config.template import TEMPLATE
from trueup.spark.table.options import OPTIONS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        if page.name != "README.md":
            assert f"({page.relative_to(ROOT / 'docs').as_posix()})" in index


def test_every_setting_is_in_the_template() -> None:
    for settings in (DiffSettings, SparkSettings):
        for field in fields(settings):
            assert field.name in TEMPLATE


def test_every_option_of_the_data_source_is_documented() -> None:
    page = (ROOT / "docs" / "datasource.md").read_text(encoding="utf-8")
    for option in OPTIONS:
        assert f"`{option}`" in page
