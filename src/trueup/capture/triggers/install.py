"""Puts the tables and functions of tubes into a schema of a node, brings them to this version, takes them out again."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from trueup.capture.log.publications import refuse_all_tables
from trueup.capture.triggers.session import Session
from trueup.errors import CheckFailed

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# Raised whenever anything in the folder sql changes what is in a database.
VERSION = 2
# Version -> what must be done to the tables of the version before it; new tables and functions are made anyway.
# 2: who works on a tube (workers), what could not be delivered (dead_letters).
MIGRATIONS: dict[int, LiteralString] = {}


@dataclass(frozen=True)
class Installed:
    """What an installation did: the version that was there (None: none), and the one that is there now."""

    node: str
    schema: str
    before: int | None
    version: int


def install(session: Session) -> Installed:
    """Make the schema, or bring it to this version in place; a second call changes nothing."""
    with session.errors(), session.connection.transaction():
        connection = session.connection
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('trueup tube install', 0))")
        _check_server(session)
        before = installed_version(session)
        if before is not None and before > VERSION:
            raise CheckFailed(
                [f"the tubes in the schema {session.schema} are of version {before}; this trueup knows {VERSION}"],
                cure="upgrade trueup",
                node=session.node.name,
            )
        refuse_all_tables(connection, f"{session.schema}.installation")
        _make_schema(session, is_new=before is None)
        connection.execute(_filled(session, "tables.sql"))
        for version in range((before or VERSION) + 1, VERSION + 1):
            if version in MIGRATIONS:
                connection.execute(_sql(MIGRATIONS[version], session))
        _make_functions(session)
        _write_version(session, before)
    return Installed(session.node.name, session.schema, before, VERSION)


def installed_version(session: Session) -> int | None:
    """The version in the schema; None where there is none."""
    name = f"{session.schema}.installation"
    found = session.connection.execute("SELECT to_regclass(%s)", [name]).fetchone()
    if found is None or found[0] is None:
        return None
    row = session.connection.execute(_sql("SELECT version FROM @schema@.installation", session)).fetchone()
    return int(row[0]) if row else None


def uninstall(session: Session, *, force: bool) -> int:
    """Detach all tables and drop the schema; with pods that wait only by force. Gives the number of dropped tubes."""
    with session.errors(), session.connection.transaction():
        if installed_version(session) is None:
            return 0
        waiting = session.connection.execute(
            _sql(
                "SELECT coalesce(sum(live_pods + backfill_pods + control_pods), 0) FROM @schema@.tube_stats()", session
            )
        ).fetchone()
        if waiting and waiting[0] and not force:
            raise CheckFailed(
                [f"{waiting[0]:,} pods wait in the tubes of the schema {session.schema}, and would be lost"],
                cure="work them off, or say --force",
                node=session.node.name,
            )
        tubes = session.connection.execute(
            _sql("SELECT count(@schema@.tube_ensure_absent(tube)::text) FROM @schema@.tubes", session)
        ).fetchone()
        session.connection.execute(_sql("DROP SCHEMA @schema@ CASCADE", session))
    return int(tubes[0]) if tubes else 0


def _check_server(session: Session) -> None:
    version = session.connection.info.server_version
    if version < 140000:
        raise CheckFailed(
            [f"the server is PostgreSQL {version // 10000}; tubes want 14 or newer"],
            cure="upgrade the server",
            node=session.node.name,
        )


def _make_schema(session: Session, *, is_new: bool) -> None:
    found = session.connection.execute(
        "SELECT count(c.oid) FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid"
        " WHERE n.nspname = %s GROUP BY n.oid",
        [session.schema],
    ).fetchone()
    if is_new and found and found[0]:
        raise CheckFailed(
            [f"the schema {session.schema} is there already, and holds other things"],
            cure="choose another one with --schema",
            node=session.node.name,
        )
    if not found:
        session.connection.execute(_sql("CREATE SCHEMA @schema@", session))
        session.connection.execute(_sql("COMMENT ON SCHEMA @schema@ IS 'Tubes of trueup.'", session))


def _make_functions(session: Session) -> None:
    """All functions anew, then the trigger functions of attached tables; tables and triggers are not locked."""
    connection = session.connection
    # Another version may have had other arguments or results; not those that triggers of attached tables hold.
    old = connection.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = to_regnamespace(%s)"
        r" AND p.proname LIKE 'tube\_%%' AND p.prorettype <> 'trigger'::regtype",
        [session.schema],
    ).fetchall()
    for (function,) in old:
        connection.execute(_sql(f"DROP FUNCTION {function}", session))
    for file in sorted(function_files()):
        connection.execute(_filled(session, file))
    connection.execute(
        _sql(
            "SELECT @schema@.tube_trigger_functions(s.source) FROM @schema@.sources s"
            ' JOIN pg_class c ON c.oid = s."table" WHERE s.detached_at IS NULL',
            session,
        )
    )


def function_files() -> list[str]:
    """The files of the folder sql that hold a function."""
    folder = resources.files("trueup.capture.triggers").joinpath("sql")
    return [file.name for file in folder.iterdir() if file.name.startswith("tube_")]


def _write_version(session: Session, before: int | None) -> None:
    if before is None:
        session.connection.execute(_sql("INSERT INTO @schema@.installation (version) VALUES (%s)", session), [VERSION])
    elif before != VERSION:
        session.connection.execute(
            _sql("UPDATE @schema@.installation SET version = %s, upgraded_at = now()", session), [VERSION]
        )


def _filled(session: Session, file: str) -> LiteralString:
    text = resources.files("trueup.capture.triggers").joinpath("sql").joinpath(file).read_text(encoding="utf-8")
    return _sql(text, session)


def _sql(text: str, session: Session) -> LiteralString:
    # The schema's name is checked to need no quotes; files of the package are as trustworthy as its code.
    return text.replace("@schema@", session.schema)  # type: ignore[return-value, unused-ignore]
