"""The locked requirements of a release: every version is pinned with hashes, and equals the version that is tested."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", re.MULTILINE)


def pins(name: str) -> set[tuple[str, str]]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return {(re.sub(r"[-_.]+", "-", package).lower(), version) for package, version in PIN.findall(text)}


def test_every_locked_version_is_the_tested_one() -> None:
    assert pins("requirements.lock") - pins("constraints.txt") == set()


def test_every_requirement_has_hashes() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[A-Za-z])", text.partition("\n")[2])
    assert len(entries) == len(PIN.findall(text))
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_all_requirements_of_the_package_are_locked() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert listed is not None
    found = re.findall(r'^ *"([A-Za-z0-9._-]+)', listed.group(1), re.MULTILINE)
    names = {re.sub(r"[-_.]+", "-", name).lower() for name in found}
    assert names
    assert names - {package for package, _ in pins("requirements.lock")} == set()


def test_the_libraries_of_all_kinds_of_nodes_and_sinks_are_locked() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = dict(re.findall(r"^(\w+) = \[(.*)\]$", project, re.MULTILINE))
    listed = "".join(extras[name] for name in ("lake", "iceberg", "clickhouse", "mysql", "redis", "difflog"))
    names = set(re.findall(r'"([A-Za-z0-9._-]+)[^"[]*"', listed))
    assert {"deltalake", "clickhouse-connect", "pymysql", "redis"} <= names
    assert names - {package for package, _ in pins("requirements.lock")} == set()
