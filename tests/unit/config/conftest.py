"""Fixtures for tests of the configuration: no configuration files, and a function that writes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

WriteToml = Callable[[str], str]


@pytest.fixture(autouse=True)
def _nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate tests from the trueup.toml of the user and of the system."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platformdirs.user_config_dir", lambda *_, **__: str(tmp_path / "user"))
    monkeypatch.setattr("platformdirs.site_config_dir", lambda *_, **__: str(tmp_path / "site"))


@pytest.fixture
def toml(tmp_path: Path) -> WriteToml:
    """Return a function that writes ./trueup.toml and returns its path."""

    def write(text: str) -> str:
        file = tmp_path / "trueup.toml"
        file.write_text(text, encoding="utf-8")
        file.chmod(0o600)
        return "trueup.toml"

    return write
