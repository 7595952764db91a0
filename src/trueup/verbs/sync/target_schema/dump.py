"""The schema of the source in a file, written by pg_dump; pg_restore makes scripts of it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.engine.scratch import ScratchFolder
from trueup.errors import TrueupError
from trueup.verbs.sync.model import FUNCTIONS_SCHEMA, LOG_SCHEMA, STATE_SCHEMA
from trueup.verbs.sync.request import SyncRequest
from trueup.verbs.sync.target_schema.programs import find_programs, run_program

PRE, POST = "pre-data", "post-data"
# pg_dump locks all tables in ACCESS SHARE mode; it ends if it waits for that many milliseconds, and is repeated.
LOCK_WAIT = 2000
_RETRY_SECONDS = 0.5
# Statements that only psql knows, with the same random word.
_RESTRICT = re.compile(r"^\\restrict (\w+)$", re.MULTILINE)
_TIMEOUT = re.compile(r"^SET transaction_timeout = 0;$", re.MULTILINE)


@dataclass(frozen=True)
class Dump:
    """The schema of the source in a file, and the programs that made it."""

    programs: Path
    file: Path

    def entries(self, section: str) -> list[str]:
        """Return the list of the objects of a section."""
        listed = run_program(
            [str(self.programs / "pg_restore"), "--list", f"--section={section}", str(self.file)], None
        )
        return [line for line in listed.splitlines() if line and not line.startswith(";")]

    def use(self, entries: Iterable[str], name: str) -> str:
        """Write a list of objects to a file, and return the option of pg_restore that uses it."""
        path = self.file.with_suffix(f".{name}")
        path.touch(mode=0o600)
        path.write_text("\n".join(entries) + "\n", encoding="utf-8")
        return f"--use-list={path}"

    def script(self, entries: list[str], options: Iterable[str]) -> str:
        """Return the statements that create these objects."""
        if not entries:
            return ""
        command = [str(self.programs / "pg_restore"), *options, "--file=-", self.use(entries, "script")]
        text = run_program([*command, str(self.file)], None)
        if match := _RESTRICT.search(text):
            text = text.replace(match[0], "", 1).replace(f"\\unrestrict {match[1]}", "", 1)
        # Older servers do not know it; the session has no time-outs.
        return _TIMEOUT.sub("", text)


@dataclass(frozen=True)
class DumpAhead:
    """A dump without these relations, which is being written."""

    left_out: tuple[TableName, ...]
    writing: Future[Dump]


@contextmanager
def dumped(
    request: SyncRequest,
    source: Connection,
    target: Connection,
    left_out: tuple[TableName, ...],
    ahead: DumpAhead | None = None,
) -> Iterator[Dump]:
    """Write the schema of the source to a temporary file, or wait for `ahead` if it is without the same relations."""
    if ahead is not None and ahead.left_out == left_out:
        yield ahead.writing.result()
        return
    with _new_dump(source, target, request) as dump:
        _write(request, dump, _command(source, dump, left_out), source.info.server_version)
        yield dump


@contextmanager
def dumped_ahead(
    request: SyncRequest, source: Connection, target: Connection, left_out: tuple[TableName, ...]
) -> Iterator[DumpAhead]:
    """Write the schema of the source in a thread, while the caller uses the sessions."""
    stop = threading.Event()
    with _new_dump(source, target, request) as dump, ThreadPoolExecutor(1, thread_name_prefix="trueup-dump") as thread:
        command, version = _command(source, dump, left_out), source.info.server_version
        try:
            yield DumpAhead(left_out, thread.submit(_write, request, dump, command, version, stop))
        finally:
            stop.set()


@contextmanager
def _new_dump(source: Connection, target: Connection, request: SyncRequest) -> Iterator[Dump]:
    programs = find_programs(source.info.server_version, target.info.server_version, request.pg_bin)
    with ScratchFolder("trueup-schema-") as folder:
        file = folder / "schema.dump"
        file.touch(mode=0o600)
        yield Dump(programs, file)


def _command(source: Connection, dump: Dump, left_out: tuple[TableName, ...]) -> list[str]:
    """Return the command for a dump: no rows, nothing of trueup, no publications, no tables that are left out."""
    rows = source.execute(
        "SELECT nspname FROM pg_namespace WHERE obj_description(oid, 'pg_namespace') = 'Tubes of trueup.'"
    ).fetchall()
    hidden = {STATE_SCHEMA, LOG_SCHEMA, FUNCTIONS_SCHEMA, *(row[0] for row in rows)}
    return [
        str(dump.programs / "pg_dump"),
        "--format=custom",
        "--schema-only",
        "--encoding=UTF8",
        "--no-publications",
        "--no-subscriptions",
        "--no-security-labels",
        f"--lock-wait-timeout={LOCK_WAIT}",
        *(f"--exclude-schema={_pattern(name)}" for name in sorted(hidden)),
        *(f"--exclude-table={_pattern(*name)}" for name in left_out),
        f"--file={dump.file}",
    ]


def _write(
    request: SyncRequest, dump: Dump, command: list[str], version: int, stop: threading.Event | None = None
) -> Dump:
    """Write a dump; repeat it while other sessions lock a table, until `stop` is set."""
    give_up = time.monotonic() + request.timeout
    while True:
        began = time.monotonic()
        try:
            run_program(command, request.source, version=version, application="trueup dump")
            return dump
        except TrueupError as error:
            # The reason is in the language of the server.
            is_lock = "LOCK TABLE" in error.message and time.monotonic() - began >= LOCK_WAIT / 1000
            if not is_lock or time.monotonic() > give_up or (stop is not None and stop.is_set()):
                raise
            time.sleep(_RETRY_SECONDS)


def _pattern(*parts: str) -> str:
    """Return a pattern of pg_dump that matches one name only."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)
