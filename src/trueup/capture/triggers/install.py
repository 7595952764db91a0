"""Installs, upgrades and removes the tables and functions of tubes in a schema of a node."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from trueup.capture.log.publications import ensure_identities, refuse_all_tables
from trueup.capture.triggers.session import Session
from trueup.config.wording import counted
from trueup.db.private import install_privately
from trueup.errors import CheckFailed

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# Increased with every change of the folder sql that changes what is in a database.
VERSION = 11
# Settings of the functions that evaluate keys, predicates and routings: what is captured must not depend on the session
# that writes. Sessions of trueup have the same values, see PINNED in trueup.db.node.
SETTINGS: LiteralString = (
    "SET DateStyle = 'ISO, YMD' SET TimeZone = 'UTC' SET IntervalStyle = 'postgres' SET extra_float_digits = 3"
    " SET bytea_output = 'hex' SET xmlbinary = 'base64' SET xmloption = 'content' SET lc_monetary = 'C'"
    " SET lc_time = 'C' SET standard_conforming_strings = on SET quote_all_identifiers = off SET array_nulls = on"
    " SET transform_null_equals = off"
)
# Version -> statements that change the tables of the previous version; new tables and functions are created anyway.
# 2: workers and dead letters. 3: messages and comments of the functions. 4: the sync of a change log, readers, holders,
# allowed functions. 5: key columns also by name, one number per key of a table, numbers of pods that start again, names
# and columns of attached tables. 6: copies that may be incomplete. 7: a maximum size of pods, rewritten tables,
# tables without a key. 9: tubes without what subscriptions apply. 10: partitions that were attached again, triggers
# that were changed for a time, tables that had a parent. 11: columns that were dropped and added again.
MIGRATIONS: dict[int, LiteralString] = {
    4: "ALTER TABLE @schema@.tubes ADD COLUMN IF NOT EXISTS sync text, ADD COLUMN IF NOT EXISTS peer text,"
    " ADD COLUMN IF NOT EXISTS allow_functions text[] NOT NULL DEFAULT '{}';"
    " ALTER TABLE @schema@.sources ADD COLUMN IF NOT EXISTS allow_functions text[] NOT NULL DEFAULT '{}',"
    " ADD COLUMN IF NOT EXISTS guard text",
    5: "ALTER TABLE @schema@.sources ADD COLUMN IF NOT EXISTS key_names text[] NOT NULL DEFAULT '{}',"
    " ADD COLUMN IF NOT EXISTS key_place text NOT NULL DEFAULT '',"
    " ADD COLUMN IF NOT EXISTS name text, ADD COLUMN IF NOT EXISTS columns jsonb,"
    " DROP CONSTRAINT IF EXISTS sources_tube_table_key;"
    " ALTER TABLE @schema@.backfills ADD COLUMN IF NOT EXISTS columns jsonb;"
    ' UPDATE @schema@.sources s SET name = s."table"::text, key_names = ARRAY(SELECT a.attname::text'
    " FROM unnest(s.key_numbers) WITH ORDINALITY u(n, at) JOIN pg_catalog.pg_attribute a"
    ' ON a.attrelid = s."table" AND a.attnum = u.n ORDER BY u.at);'
    " ALTER SEQUENCE @schema@.pod_seq CYCLE",
    6: "ALTER TABLE @schema@.sources ADD COLUMN IF NOT EXISTS storage jsonb,"
    " ADD COLUMN IF NOT EXISTS incomplete text, ADD COLUMN IF NOT EXISTS incomplete_at timestamptz;"
    " ALTER TABLE @schema@.backfills ADD COLUMN IF NOT EXISTS storage jsonb,"
    " ADD COLUMN IF NOT EXISTS incomplete_at timestamptz",
    7: "ALTER TABLE @schema@.tubes ADD COLUMN IF NOT EXISTS max_bytes bigint;"
    " ALTER TABLE @schema@.sources ADD COLUMN IF NOT EXISTS row_id text",
    8: "ALTER TABLE @schema@.holders ALTER COLUMN since DROP NOT NULL",
    9: "ALTER TABLE @schema@.tubes ADD COLUMN IF NOT EXISTS skips_applied boolean NOT NULL DEFAULT false",
    10: "ALTER TABLE @schema@.sources ADD COLUMN IF NOT EXISTS triggers jsonb, ADD COLUMN IF NOT EXISTS parents jsonb",
}


@dataclass(frozen=True)
class Installed:
    """Result of an installation: the previous version (None: it was not installed) and the current one."""

    node: str
    schema: str
    before: int | None
    version: int


def install(session: Session) -> Installed:
    """Create the schema, or upgrade it in place; a second call changes nothing."""
    installed: list[int | None] = []
    with session.errors():
        install_privately(session.connection, session.schema, lambda: installed.append(_install(session)))
    return Installed(session.node.name, session.schema, installed[-1], VERSION)


def _install(session: Session) -> int | None:
    """Create or upgrade everything; return the previous version."""
    connection = session.connection
    _check_server(session)
    before = installed_version(session)
    if before is not None:
        # One upgrade at a time. Two first installations conflict in the catalog, and the second one is repeated.
        connection.execute(_sql("LOCK TABLE @schema@.installation IN SHARE ROW EXCLUSIVE MODE", session))
        before = installed_version(session)
    if before is not None and before > VERSION:
        raise CheckFailed(
            [f"the tubes in the schema {session.schema} have version {before}; this trueup supports {VERSION}"],
            cure="upgrade trueup",
            node=session.node.name,
        )
    refuse_all_tables(connection, f"{session.schema}.installation")
    _check_contents(session, is_new=before is None)
    connection.execute(_filled(session, "tables.sql"))
    for version in range((before or VERSION) + 1, VERSION + 1):
        if version in MIGRATIONS:
            connection.execute(_sql(MIGRATIONS[version], session))
    _make_functions(session)
    _write_version(session, before)
    ensure_identities(connection, session.schema)
    return before


def installed_version(session: Session) -> int | None:
    """Return the version installed in the schema; None if nothing is installed."""
    name = f"{session.schema}.installation"
    relation = session.connection.execute("SELECT to_regclass(%s)", [name]).fetchone()
    if relation is None or relation[0] is None:
        return None
    row = session.connection.execute(_sql("SELECT version FROM @schema@.installation", session)).fetchone()
    return int(row[0]) if row else None


def uninstall(session: Session, *, force: bool) -> int:
    """Detach all tables, drop the schema, and return the number of dropped tubes.

    Raise CheckFailed if pods are waiting, unless `force` is set.
    """
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
                [f"{counted(waiting[0], 'waiting pod')} in the tubes of the schema {session.schema} would be lost"],
                cure="process them with trueup tube run, or use --force",
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
            [f"the server is PostgreSQL {version // 10000}; tubes need version 14 or newer"],
            cure="upgrade the server",
            node=session.node.name,
        )


def _check_contents(session: Session, *, is_new: bool) -> None:
    row = session.connection.execute(
        "SELECT count(c.oid) FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid"
        " WHERE n.nspname = %s GROUP BY n.oid",
        [session.schema],
    ).fetchone()
    if is_new and row and row[0]:
        raise CheckFailed(
            [f"the schema {session.schema} already exists and contains other objects"],
            cure="choose another schema with --schema",
            node=session.node.name,
        )
    if is_new:
        session.connection.execute(_sql("COMMENT ON SCHEMA @schema@ IS 'Tubes of trueup.'", session))


def _make_functions(session: Session) -> None:
    """Create all functions, then the trigger functions of attached tables.

    Tables are locked only if their triggers are those of an older version.
    """
    connection = session.connection
    # Arguments or results may have changed since the installed version. Trigger functions are kept: triggers use them.
    old = connection.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = to_regnamespace(%s)"
        r" AND p.proname LIKE 'tube\_%%' AND p.prorettype <> 'trigger'::regtype",
        [session.schema],
    ).fetchall()
    # In one round trip; the server does not compile them now.
    statements = ["SET LOCAL check_function_bodies = off;", *(f"DROP FUNCTION {function};" for (function,) in old)]
    statements += [_filled(session, file) for file in sorted(function_files())]
    statements.append("SET LOCAL check_function_bodies = on")
    connection.execute(_sql("\n".join(statements), session))
    connection.execute(
        _sql(
            "SELECT @schema@.tube_trigger_functions(s.source) FROM @schema@.sources s"
            ' JOIN pg_class c ON c.oid = s."table" WHERE s.detached_at IS NULL',
            session,
        )
    )
    connection.execute(_filled(session, "old_rows.sql"))
    connection.execute(_filled(session, "first_versions.sql"))


def function_files() -> list[str]:
    """Return the files of the folder sql that define a function."""
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
    # The name of the schema was checked and needs no quotes; files of the package are trusted.
    return text.replace("@schema@", session.schema).replace("@settings@", SETTINGS)  # type: ignore[return-value, unused-ignore]
