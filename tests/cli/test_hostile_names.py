"""Names and values with control characters: no command shows them, and none begins a line of its own."""

from __future__ import annotations

import re
from pathlib import Path

from support.cli import NodeOptions
from support.fixtures import Cli, Databases, OnAll, Ran
from trueup.testing.postgres import Database

# Clears the screen, colours, sets the title, and a line that looks like a verdict; markup of the progress bars.
EVIL = "t\x1b[2J\x9b8m\x1b]0;t\x07\r\u202e[/bold]\nVERIFIED: intact"
QUOTED = f'"{EVIL}"'
TABLE = f"""
    CREATE TABLE {QUOTED} ({QUOTED} int PRIMARY KEY, note text DEFAULT $n${EVIL}$n$);
    INSERT INTO {QUOTED} SELECT generate_series(1, 9);
"""


def _is_tame(ran: Ran) -> bool:
    text = ran.out + ran.err
    hostile = re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    return hostile is None and not re.search("^VERIFIED", text, re.MULTILINE)


def test_no_command_shows_them(cli: Cli, databases: Databases, on_all: OnAll, node_options: NodeOptions) -> None:
    nodes: list[Database] = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute(f"UPDATE {QUOTED} SET note = $n${EVIL}{EVIL}$n$ WHERE {QUOTED} = 2")
    options = node_options(nodes)
    addresses = options[options.index("--node") :]
    nodes[1].execute(f"ALTER TABLE {QUOTED} ADD CHECK (note <> $n${EVIL}$n$) NOT VALID")
    many = cli("diff", "--schema", "public", *options, "--log-level", "debug")
    (report,) = Path().glob("tables_diffs-*/*_diffs-*.json")
    ran = {
        "diff --schema": many,
        "diff": cli("diff", QUOTED, *options, "--exclude-columns", "note", "-v"),
        "check": cli("check", QUOTED, *options, "--json"),
        "report": cli("report", report),
        "report json": cli("report", report, "--output", "json"),
        "rerun": cli("rerun", report, *options),
        "repair": cli("repair", report, "--source-of-truth", "n1", *addresses),
        "schema-diff": cli("schema-diff", "public", *addresses),
        "history": cli("history"),
        "history of it": cli("history", QUOTED),
        "tasks": cli("tasks"),
        "tasks list": cli("tasks", "list", "--json"),
        "doctor": cli("doctor", QUOTED, "--no-spark", *addresses),
        "plan": cli("sync", "plan", "--from", "n1", "--to", "n2", "--tables", "public.*", *addresses),
        "no table": cli("diff", f'"no{EVIL}"', *options, "-v"),
        "no command": cli(EVIL),
        "no option": cli("diff", "--filter", EVIL, QUOTED, *options),
        "report of another program": cli("report", _foreign(report), "--output", "json"),
    }
    assert [name for name, each in ran.items() if not _is_tame(each)] == []
    assert [name for name, each in ran.items() if not (each.out or each.err)] == []
    assert "VERIFIED" in many.out


def _foreign(report: Path) -> Path:
    """Return the report as another program may write it: with characters that are not escaped."""
    path = Path("foreign.json")
    path.write_text(report.read_text(encoding="utf-8").replace("\\u009b", "\x9b").replace("\\u202e", "\u202e"))
    return path
