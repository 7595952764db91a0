"""Fixtures for tests of the command line: run it in this process or a new one, on two nodes with a small table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.cli import NodeOptions, WriteConfig
from support.fixtures import Cli, Databases, OnAll, Ran
from trueup.cli.main import run
from trueup.testing.postgres import Database

ITEMS = """
    CREATE TABLE items (id int PRIMARY KEY, name text, price numeric, note text);
    INSERT INTO items SELECT i, 'item ' || i, i / 4.0, 'n' FROM generate_series(1, {rows}) i;
    ANALYZE items;
"""
DRIFT = """
    UPDATE items SET name = 'x' WHERE id = 7;
    DELETE FROM items WHERE id IN (1, 2);
    INSERT INTO items VALUES (-1), (-2), (-3);
"""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """`cli("diff", "items", …)`: run the command in this process."""
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return Ran(code, output.out, output.err)

    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def process() -> Callable[..., Ran]:
    """`process("diff", "items", …, env={…})`: run the command in a new process."""

    def call(*arguments: object, env: dict[str, str] | None = None, **options: Any) -> Ran:
        completed = subprocess.run(
            [sys.executable, "-m", "trueup", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            timeout=60,
            check=False,
            **options,
        )
        return Ran(completed.returncode, completed.stdout, completed.stderr)

    return call


@pytest.fixture
def node_options() -> NodeOptions:
    """`node_options(databases)`: the options `--node n1=… --node n2=…`, with local threads and without waits."""

    def options(nodes: Sequence[Database]) -> list[str]:
        arguments = ["--engine", "local", "--recheck", "1", "--recheck-wait", "0"]
        for number, node in enumerate(nodes, 1):
            arguments += ["--node", f"n{number}={node.uri}"]
        return arguments

    return options


@pytest.fixture
def equal(databases: Databases, on_all: OnAll) -> list[Database]:
    """Two nodes with the same table `items` of 50 rows."""
    nodes: list[Database] = databases(2)
    on_all(nodes, ITEMS.format(rows=50))
    return nodes


@pytest.fixture
def drifted(equal: list[Database]) -> list[Database]:
    """The nodes of `equal`, with drift on the second: one row changed, two missing, three extra."""
    equal[1].execute(DRIFT)
    return equal


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    """`write_config(databases, more)`: write a trueup.toml with nodes n1, n2, … and a cluster `both`."""

    def write(nodes: Sequence[Database], more: str = "", folder: Path = tmp_path, name: str = "trueup.toml") -> Path:
        lines = ["[nodes]", *(f'n{number} = "{node.uri}"' for number, node in enumerate(nodes, 1))]
        names = ", ".join(f'"n{number}"' for number in range(1, len(nodes) + 1))
        lines += ["[clusters]", f"both = [{names}]", more]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text("\n".join(lines), encoding="utf-8")
        path.chmod(0o600)
        return path

    return write
