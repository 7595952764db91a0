"""`trueup schema-diff`: text, JSON, files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from support.fixtures import Cli
from trueup.testing.postgres import Database
from trueup.verbs.schema.model import SchemaResult


def test_differences_as_text_and_json(drifted: list[Database], cli: Cli, tmp_path: Path) -> None:
    nodes = [part for n, node in enumerate(drifted, 1) for part in ("--node", f"n{n}={node.uri}")]
    body = "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$\nBEGIN\n  RETURN {};\nEND\n$$"
    for number, node in enumerate(drifted):
        node.execute(body.format(number))
    ran = cli("schema-diff", *nodes, "--tables", "public.*")
    # Different rows do not change the definitions.
    assert (ran.code, ran.out.splitlines()[0]) == (
        0,
        "MATCH: schema of n1, n2: all definitions are the same",
    )

    drifted[1].execute("ALTER TABLE items ALTER price TYPE numeric(9, 2), ADD more int; CREATE VIEW v AS SELECT 1 AS x")
    ran = cli("schema-diff", *nodes)
    assert ran.code == 1
    assert ran.out.splitlines()[0] == "DIFFER: schema of n1, n2: the definitions differ"
    assert "  column public.items.price: type: numeric on n1, numeric(9,2) on n2" in ran.out.splitlines()
    assert "  column public.items.more: missing on n1" in ran.out.splitlines()
    assert "  view public.v: missing on n1" in ran.out.splitlines()
    assert "      -  RETURN 0;\n      +  RETURN 1;" in ran.out

    to = tmp_path / "found.json"
    ran = cli("schema-diff", *nodes, "--schema", "public", "--json", "--to", to)
    assert (ran.code, ran.out) == (1, "")
    assert to.stat().st_mode & 0o077 == 0
    found = json.loads(to.read_text())
    assert found["verdict"] == "DIFFER"
    # The same on stdout, and nothing else.
    printed = cli("schema-diff", *nodes, "--schema", "public", "--json", "--quiet").json
    assert printed["task_id"] != found["task_id"]
    # Two runs may take the same rounded time.
    assert {name for name in printed if printed[name] != found[name]} <= {"seconds", "task_id"}
    assert list(found) == [*SchemaResult.__dataclass_fields__, "incomplete"]
    price = next(difference for difference in found["differences"] if difference["name"] == "items.price")
    assert price["facts"] == {"type": {"n1": "numeric", "n2": "numeric(9,2)"}}
    # The store has the names of differing objects, not the bodies of functions.
    shown = cli("tasks", "show", found["task_id"], "--json")
    assert shown.json["task_context"]["diff_summary"]["changed"] == 2
    assert "RETURN" not in shown.out
    assert "public.items.price" in cli("report", found["task_id"]).out


def test_patterns_without_a_match_are_an_error(equal: list[Database], cli: Cli) -> None:
    nodes = [part for n, node in enumerate(equal, 1) for part in ("--node", f"n{n}={node.uri}")]
    ran = cli("schema-diff", *nodes, "--tables", "public.item")
    assert ran.code == 2
    assert "no table or view of any node matches public.item" in ran.err
    ran = cli("schema-diff", *nodes, "--schema", "pubic")
    assert (ran.code, 'Did you mean "public"?' in ran.err) == (2, True)
    ran = cli("schema-diff", *nodes, "--schema", "public", "--tables", "items")
    assert (ran.code, "cannot be used together" in ran.err) == (2, True)
