"""The template of `trueup init` has every setting with its default."""

from __future__ import annotations

import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from trueup.config.load import load
from trueup.config.model import Config
from trueup.config.settings import DiffSettings, SparkSettings, TaskSettings
from trueup.config.sources import read_file
from trueup.config.template import TEMPLATE, write_template
from trueup.errors import ConfigError

UNCOMMENTED = re.sub(r'^#(?=[\w"\[])', "", TEMPLATE, flags=re.MULTILINE)


def test_the_unchanged_template_has_the_defaults(tmp_path: Path) -> None:
    file = write_template(tmp_path / "trueup.toml")
    assert load(env={}) == Config(path=Path("trueup.toml"))
    assert file.read_text() == TEMPLATE


def test_every_setting_is_in_the_template_with_its_default(tmp_path: Path) -> None:
    file = tmp_path / "trueup.toml"
    file.write_text(UNCOMMENTED)
    tables = read_file(file)
    spark: dict[str, Any] = tables["spark"]
    assert tables["diff"] == asdict(DiffSettings())
    assert {**spark, "conf": {}} == asdict(SparkSettings())
    assert spark["conf"]
    assert tables["tasks"] == asdict(TaskSettings())

    config = load(env={"N3_PASSWORD": "secret"})
    assert config.diff == DiffSettings()
    assert len(config.select("shop")) == 3
    assert config.warnings == ()


def test_every_setting_is_explained() -> None:
    lines = TEMPLATE.splitlines()
    in_settings = lines[lines.index("[diff]") :]
    for before, line in pairwise(in_settings):
        if re.match(r"#\w", line):
            assert before.startswith("# "), line


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    file = write_template(tmp_path / "new" / "folder" / "trueup.toml")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    file = tmp_path / "trueup.toml"
    file.write_text("mine" * 10_000)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"trueup\.toml: the file exists") as caught:
        write_template(file)
    assert "--force" in caught.value.cure
    assert file.read_text().startswith("mine")
    write_template(file, force=True)
    assert file.read_text() == TEMPLATE
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_folder_with_the_name_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a regular file"):
        write_template(tmp_path, force=True)
