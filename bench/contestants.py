"""Who takes part in bench/diff.py: the command of each, and how to read its answer.

An answer is the number of differences, or only whether there are any (True, False).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from trueup.db import catalog
from trueup.rows.digest import digest_query
from trueup.rows.encode import column_spec
from trueup.rows.spec import KeySpec, TableSpec
from trueup.testing.postgres import Server

TABLE = "public.orders"
RELADIFF = "reladiff[postgresql]==0.6.0"

# The one to beat. Two streams in key order; lines are equal in most cases, and keys are read only where they are not.
MERGE = """
import subprocess, sys
psql, copy, *uris = sys.argv[1:]
a, b = (subprocess.Popen([psql, "-qX", uri, "-c", copy], stdout=subprocess.PIPE, bufsize=1 << 20).stdout for uri in uris)
left, right, found = a.readline(), b.readline(), 0
while left or right:
    if left == right:
        left, right = a.readline(), b.readline()
        continue
    found += 1
    one = int(left.split(b"\\t", 1)[0]) if left else float("inf")
    two = int(right.split(b"\\t", 1)[0]) if right else float("inf")
    if one <= two:
        left = a.readline()
    if two <= one:
        right = b.readline()
print(found)
"""

Answer = int | bool


@dataclass(frozen=True)
class Contestant:
    """A way to compare two databases; `command` takes their addresses, `missing` says why it cannot run."""

    name: str
    what: str
    command: Callable[[str, str], Sequence[str]]
    answer: Callable[[Path, int], Answer]
    missing: str = ""
    codes: tuple[int, ...] = (0, 1)


def contestants(server: Server) -> list[Contestant]:
    """All of them; what is not there yet is installed if that can be done."""
    psql = str(server.bin_dir / "psql")
    copy = f"COPY (SELECT * FROM {TABLE} ORDER BY id) TO STDOUT"
    reladiff, no_reladiff = _install_reladiff()
    no_comparator = _install_pg_comparator()
    both = 'exec diff <("$0" -qX "$2" -c "$1") <("$0" -qX "$3" -c "$1")'
    at_once = '"$0" -qXAt "$2" -c "$1" & "$0" -qXAt "$3" -c "$1"; wait'
    merge = [sys.executable, "-c", MERGE, psql, copy]
    reladiff_options = ["-k", "id", "-c", "%", "--json", "-j", str(os.cpu_count() or 1)]
    return [
        Contestant(
            "floor",
            "the digest query alone, over both tables at once",
            lambda a, b: ["sh", "-c", at_once, psql, floor_query(a), a, b],
            lambda out, _: _two_differ(out.read_text().split()),
            codes=(0,),
        ),
        Contestant(
            "merge",
            "`COPY … ORDER BY id` of both sides, merged by fifteen lines of Python",
            lambda a, b: [*merge, a, b],
            lambda out, _: int(out.read_text()),
            codes=(0,),
        ),
        Contestant(
            "copy-diff",
            "`COPY … ORDER BY id` of both sides through `diff`",
            lambda a, b: ["bash", "-c", both, psql, copy, a, b],
            lambda out, _: _distinct(out, lambda line: line[2:].split(b"\t")[0] if line[:1] in b"<>" else None),
        ),
        *_trueups(),
        Contestant(
            "reladiff",
            f"`reladiff {' '.join(reladiff_options)}`, all else by default",
            # It wraps its lines to the width of the terminal, also where there is none.
            lambda a, b: ["env", "COLUMNS=10000", reladiff, a, "orders", b, "orders", *reladiff_options],
            lambda out, _: _distinct(out, lambda line: (found := _RELADIFF_SAYS.match(line)) and found[1]),
            no_reladiff,
            codes=(0,),
        ),
        Contestant(
            "pg_comparator",
            "`pg_comparator --use-key`, all else by default; see below for its checksum",
            lambda a, b: ["pg_comparator", "--use-key", _comparator_url(a), _comparator_url(b)],
            lambda out, _: _distinct(out, lambda line: line if line[:6] in _COMPARATOR_SAYS else None),
            no_comparator,
            codes=(0,),
        ),
    ]


_RELADIFF_SAYS = re.compile(rb'\["[-+]", \["?(\d+)')
_COMPARATOR_SAYS = (b"UPDATE", b"INSERT", b"DELETE")
COLUMNS = "quantity,label,amount,placed_at,details"
# The C library of the Debian package is built for one version of the server, not the one in use here. These functions
# of the same names are inlined by the planner and call the server's own hash, also in C.
CHECKSUMS = """
CREATE FUNCTION public.cksum4(text) RETURNS int4 LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT hashtext($1)';
CREATE FUNCTION public.cksum8(text) RETURNS int8 LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT hashtextextended($1, 0)';
"""


def _trueups() -> list[Contestant]:
    variants = {
        "trueup diff": ["diff"],
        "trueup check": ["check"],
        "trueup diff --recheck 0": ["diff", "--recheck", "0"],
        "trueup check --recheck 0": ["check", "--recheck", "0"],
        "trueup diff --engine spark": ["diff", "--engine", "spark"],
    }
    return [
        Contestant(
            name,
            "without the second look at what differs, which peers do not take" if "0" in verb else "as a user runs it",
            lambda a, b, verb=verb: trueup(*verb, TABLE, "--json", "--node", f"a={a}", "--node", f"b={b}"),
            _trueup_answer,
        )
        for name, verb in variants.items()
    ]


def trueup(*arguments: str) -> list[str]:
    """The command line of trueup."""
    return [sys.executable, "-m", "trueup", *arguments]


def _trueup_answer(out: Path, code: int) -> Answer:
    summary = json.loads(out.read_text())
    if summary["mode"] == "check":
        return code == 1
    return sum(pair[kind] for pair in summary["pairs"].values() for kind in ("missing", "extra", "changed"))


def table_spec(connection: catalog.Connection, table: str, seed: int = 42) -> TableSpec:
    """What trueup compares of a table with a primary key."""
    found = catalog.read_table(connection, *table.split("."))
    assert found is not None, table
    columns = tuple(column_spec(column) for column in found.columns)
    names = found.keys[0].columns
    key = tuple(KeySpec(column) for name in names for column in columns if column.name == name)
    return TableSpec(found.schema, found.name, key, columns, seed=seed)


def floor_query(uri: str) -> str:
    """The digest query of trueup, over the whole table."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(uri) as connection:
        return digest_query(table_spec(connection, TABLE), sql.SQL("0"), []).as_string(connection)


def _two_differ(digests: Sequence[str]) -> bool:
    if len(digests) != 2:
        raise ValueError(f"{len(digests)} digests instead of 2")
    return digests[0] != digests[1]


def _distinct(out: Path, key: Callable[[bytes], object]) -> int:
    with out.open("rb") as lines:
        return len({key(line) for line in lines} - {None})


def _comparator_url(uri: str) -> str:
    return f"{uri.replace('postgresql://', 'pgsql://')}/{TABLE}?id:{COLUMNS}"


def _install_reladiff() -> tuple[str, str]:
    """The program, in an environment of its own: what it needs is not what trueup needs."""
    home = user_cache_path("trueup-bench") / "reladiff"
    program = home / "bin" / "reladiff"
    if not program.exists():
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", str(home)], [*pip, RELADIFF]):
            if subprocess.run(command, check=False).returncode:
                return str(program), "not installed"
    return str(program), ""


def _install_pg_comparator() -> str:
    if not shutil.which("pg_comparator") and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "postgresql-comparator"]
        if subprocess.run(install, capture_output=True, check=False).returncode:
            # The list of packages may be old or not there.
            subprocess.run(["apt-get", "update", "--quiet"], capture_output=True, check=False)
            subprocess.run(install, capture_output=True, check=False)
    return "" if shutil.which("pg_comparator") else "not installed"
