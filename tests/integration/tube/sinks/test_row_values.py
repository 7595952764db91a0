"""The values that a Python function gets are those of the table in docs/sinks.md, for types of every category."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.tube import TubeDatabase

DOCS = Path(__file__).parents[4] / "docs" / "sinks.md"
# How the types that the page describes by a word are called in this test.
OWN = {
    "enumeration": "mood",
    "composite": "pair",
    "composite[]": "pair[]",
    "domain over integer": "small",
    "domain over text[]": "texts",
    "any type": "timestamptz",
}
TYPES = """CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (a int, b text); CREATE EXTENSION citext;
    CREATE DOMAIN small AS int CHECK (VALUE < 100); CREATE DOMAIN texts AS text[]"""


def documented() -> list[tuple[str, str, Any]]:
    """Return type, value in SQL, and value in the row: one entry for each type of each line."""
    section = DOCS.read_text(encoding="utf-8").partition("### Values of a row")[2].partition("###")[0]
    lines = re.findall(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", section, re.MULTILINE)
    return [
        (OWN.get(name, name), value, ast.literal_eval(expected))
        for types, value, expected in lines
        for name in types.split(", ")
    ]


def test_the_documented_values(tube_db: TubeDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []
    monkeypatch.setitem(sys.modules, "my_sink", SimpleNamespace(write=received.extend))
    entries = documented()
    assert len(entries) > 40
    tube_db.run(TYPES)
    columns = ", ".join(f"c{number} {kind}" for number, (kind, *_) in enumerate(entries))
    tube_db.run(f"CREATE TABLE t1 (id int PRIMARY KEY, {columns})")
    tube_db.tube.attach("t1")
    values = ", ".join(f"({value})::{kind}" for kind, value, _ in entries)
    tube_db.run(f"INSERT INTO t1 VALUES (1, {values})")
    tube_db.tube.run("python:my_sink:write", until_empty=True)
    (document,) = received
    assert (document.key, document.row["id"]) == (("1",), 1)
    found = [(kind, value, document.row[f"c{number}"]) for number, (kind, value, _) in enumerate(entries)]
    assert [(*entry, type(entry[2])) for entry in found] == [(*entry, type(entry[2])) for entry in entries]
    categories = tube_db.run(
        "SELECT string_agg(DISTINCT t.typcategory, '' ORDER BY t.typcategory) FROM pg_attribute a"
        " JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = 't1'::regclass AND a.attnum > 0"
    )
    # All but pseudo-types (P), unknown (X) and internal types (Z).
    assert categories == [("ABCDEGINRSTUV",)]
