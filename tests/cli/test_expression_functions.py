"""Every command with an SQL expression refuses functions that are not allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.expressions import Spied
from support.fixtures import Cli


def _config(tmp_path: Path, database: Spied, section: str) -> str:
    path = tmp_path / "trueup.toml"
    path.write_text(f'[nodes]\nn1 = "{database.uri}"\nn2 = "{database.uri}"\n{section}', encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def test_every_command_refuses(spied: Spied, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any row is read, with the function, the expression and the cure; and each can allow the function."""
    config = ("--config", _config(tmp_path, spied, ""))
    hostile, cure = "public.spy(id) > 0", "to allow it: --allow-functions public.spy"
    route = ("--from", "n1", "--to", "n2", "--tables", "public.items", "--map", "public.items=public.copy", "--lag=0")
    spied.database.execute("CREATE TABLE copy (LIKE items INCLUDING ALL)")
    assert cli("tube", "install", "n1", *config).code == 0
    assert cli("tube", "ensure", "t", "--on", "n1", *config).code == 0
    attach = ("tube", "attach", "t", "public.items", "--on", "n1")
    commands: list[tuple[str, ...]] = [
        ("diff", "items", "--engine=local", "--filter", hostile),
        ("check", "items", "--engine=local", "--filter", hostile),
        (*attach, "--shard=0", "--filter", hostile),
        (*attach, "--routing", "public.spy(id)"),
        ("validate", "start", *route, "--source=changelog", "--name=v", "--filter", f"public.items: {hostile}"),
    ]
    for command in commands:
        ran = cli(*command, *config)
        assert (ran.code, cure in ran.err, "public.spy(id)" in ran.err) == (2, True, True), (command, ran.err)
    assert cli(*attach, "--shard=0", *config).code == 0
    commands = [
        ("tube", "ensure", "t", "--on=n1", "--filter", hostile),
        ("tube", "touch", "t", "public.items", "--on=n1", "--query", "SELECT public.spy(id) FROM public.items"),
    ]
    for command in commands:
        ran = cli(*command, *config)
        assert (ran.code, cure in ran.err) == (2, True), (command, ran.err)
    assert (
        "more than one statement"
        in cli(
            *("tube", "touch", "t", "public.items", "--on=n1", "--query", "SELECT 1; SELECT public.spy(1)"), *config
        ).err
    )
    monkeypatch.setenv("TRUEUP__DIFF__TABLE_FILTER", hostile)
    ran = cli("doctor", "items", "--no-spark", *config)
    monkeypatch.delenv("TRUEUP__DIFF__TABLE_FILTER")
    assert cure in ran.out + ran.err
    # Allowed by the option, by a variable, and by the file.
    allowed = ("diff", "items", "--engine=local", "--filter", "public.spy_equal(id, 1)")
    names = "public.spy_equal"
    assert "the code ran" in cli(*allowed, "--allow-functions", names, *config).err
    monkeypatch.setenv("TRUEUP__EXPRESSIONS__ALLOW_FUNCTIONS", names)
    assert "the code ran" in cli(*allowed, *config).err
    monkeypatch.delenv("TRUEUP__EXPRESSIONS__ALLOW_FUNCTIONS")
    file = _config(tmp_path, spied, f'[expressions]\nallow_functions = "random, {names}"\n')
    assert "the code ran" in cli(*allowed, "--config", file).err
