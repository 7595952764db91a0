"""What the tests of the configuration share: an empty place to look for files, and a file writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

WriteToml = Callable[[str], str]


@pytest.fixture(autouse=True)
def _nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the trueup.toml of the developer, nor of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platformdirs.user_config_dir", lambda *_, **__: str(tmp_path / "user"))
    monkeypatch.setattr("platformdirs.site_config_dir", lambda *_, **__: str(tmp_path / "site"))


@pytest.fixture
def toml(tmp_path: Path) -> WriteToml:
    """Writes ./trueup.toml and gives its name."""

    def write(text: str) -> str:
        file = tmp_path / "trueup.toml"
        file.write_text(text, encoding="utf-8")
        file.chmod(0o600)
        return "trueup.toml"

    return write
