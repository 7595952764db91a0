"""The documentation has valid links and paths, and describes every option and setting."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from trueup.config.settings import DiffSettings, SparkSettings
from trueup.config.template import TEMPLATE
from trueup.spark.table.options import OPTIONS

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.name != "README.md":
            assert f"({page.relative_to(ROOT / 'docs').as_posix()})" in index


def test_the_glossary_has_one_row_per_word() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \|$", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert rows.pop(0) == ("word", "meaning")
    # "fence of a validation" is still the word "fence".
    words = [word.lower().split(" of ")[0] for word, _ in rows]
    assert len(words) > 50
    assert sorted(words) == sorted(set(words)), "a word has two rows"
    assert not [word for word in words if "," in word], "two words in one row"
    meanings = [meaning for _, meaning in rows]
    assert len(meanings) == len(set(meanings)), "a meaning has two words"
    assert not [meaning for meaning in meanings if re.search(r"; (also|or): ", meaning)], "two meanings in one row"


def test_guards_and_fences_have_the_same_name_everywhere() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| ([\w ]*(?:guard|fence)[\w ]*) \|", glossary, re.MULTILINE) == ["guard", "fence"]
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.sql")]:
        assert not re.search(r"\b(row|write) (guard|fence)", page.read_text(encoding="utf-8"), re.IGNORECASE), page


def test_the_license_is_complete_and_shipped() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert 'license-files = ["LICENSE"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_paths_in_the_check_lists_exist(name: str) -> None:
    for path in re.findall(r"`((?:src|tests|docs)/[\w./-]+|cli/\w+\.py)`", (ROOT / name).read_text(encoding="utf-8")):
        if "NAME" not in path:
            assert (ROOT / path).exists() or (ROOT / "src" / "trueup" / path).exists(), path


def test_every_setting_is_in_the_template() -> None:
    for settings in (DiffSettings, SparkSettings):
        for field in fields(settings):
            assert field.name in TEMPLATE


def test_every_option_of_the_data_source_is_documented() -> None:
    page = (ROOT / "docs" / "datasource.md").read_text(encoding="utf-8")
    for option in OPTIONS:
        assert f"`{option}`" in page
