"""What belongs to the database itself, and is not part of a dump: its owner, privileges and settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from trueup.db.connection import Connection
from trueup.db.statements import load

# Settings whose value is a list of names, each of them quoted where necessary.
_LISTS = {
    *("local_preload_libraries", "search_path", "session_preload_libraries", "shared_preload_libraries"),
    *("temp_tablespaces", "unix_socket_directories"),
}
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]*))\s*(?:,|$)')
_PRIVILEGES = {"CREATE": sql.SQL("CREATE"), "CONNECT": sql.SQL("CONNECT"), "TEMPORARY": sql.SQL("TEMPORARY")}


def copy_database(source: Connection, target: Connection, say: Callable[[str], object], *, no_owner: bool) -> None:
    """Give the target's database the owner, the privileges and the settings of the source's.

    What the role may not do, or the server does not know, is named and left as it is.
    """
    name = sql.Identifier(target.info.dbname)
    owner, there = _rows(source, "owner")[0]["owner"], _rows(target, "owner")[0]
    if there["is_superuser"] and not no_owner and owner != there["owner"]:
        alter = sql.SQL("ALTER DATABASE {} OWNER TO {}").format(name, sql.Identifier(owner))
        _attempt(target, alter, f"the owner {owner} of the database", say)
    for statement, shown in _grants(source, target, name):
        _attempt(target, statement, shown, say)
    for row in _rows(source, "settings"):
        if row["role"]:
            what = sql.SQL("ROLE {} IN DATABASE {}").format(sql.Identifier(row["role"]), name)
            set_parameters(target, what, f"role {row['role']} in the database", row["settings"], say)
        else:
            set_parameters(target, sql.SQL("DATABASE {}").format(name), "database", row["settings"], say)


def database_remarks(source: Connection, target: Connection, *, no_owner: bool) -> list[str]:
    """Return what of the source's database the role on the target may not set."""
    here, there = _rows(source, "owner")[0]["owner"], _rows(target, "owner")[0]
    remarks = []
    if here != there["owner"] and (no_owner or not there["is_superuser"]):
        remarks.append(f"the database belongs to {here} on the source and to {there['owner']} on the target")
    if not there["is_owner"]:
        names = {setting.split("=")[0] for row in _rows(source, "settings") for setting in row["settings"]}
        if names:
            shown = ", ".join(sorted(names))
            remarks.append(f"only the owner of the target's database can set {shown} as on the source")
        if _facts(source) != _facts(target):
            remarks.append("only the owner of the target's database can grant the privileges on it, as on the source")
    return remarks


def set_parameters(
    target: Connection, what: sql.Composable, shown: str, settings: Iterable[str], say: Callable[[str], object]
) -> None:
    """Run ALTER `what` SET for settings of the form name=value. Values are not shown: some contain secrets."""
    for setting in settings:
        name, _, value = setting.partition("=")
        parts = _list(value) if name.lower() in _LISTS else [value]
        values = sql.SQL(", ").join(map(sql.Literal, parts)) if parts else sql.SQL("''")
        parameter = sql.SQL(".").join(map(sql.Identifier, name.split(".")))
        statement = sql.SQL("ALTER {} SET {} TO {}").format(what, parameter, values)
        _attempt(target, statement, f"the setting {name} of the {shown}", say)


def _list(value: str) -> list[str]:
    """Split a list of names: "$user", public."""
    names = []
    for quoted, plain in _NAME.findall(value):
        name = quoted.replace('""', '"') if quoted else plain.strip()
        if name or quoted:
            names.append(name)
    return names


def _grants(source: Connection, target: Connection, name: sql.Identifier) -> Iterator[tuple[sql.Composed, str]]:
    """Yield the statements for the privileges of the source; only PUBLIC loses privileges that it has on the target."""
    here, there = _facts(source), _facts(target)
    known = {str(row[0]) for row in target.execute("SELECT rolname FROM pg_roles").fetchall()}
    for grantee, privilege in sorted({*here, *there}):
        if here.get((grantee, privilege)) == there.get((grantee, privilege)) or (grantee and grantee not in known):
            continue
        role = sql.Identifier(grantee) if grantee else sql.SQL("PUBLIC")
        shown = f"the privilege {privilege} on the database of {grantee or 'PUBLIC'}"
        if not grantee and (grantee, privilege) in there:
            yield sql.SQL("REVOKE {} ON DATABASE {} FROM {}").format(_PRIVILEGES[privilege], name, role), shown
        if (grantee, privilege) in here:
            option = sql.SQL(" WITH GRANT OPTION" if here[grantee, privilege] else "")
            yield sql.SQL("GRANT {} ON DATABASE {} TO {}{}").format(_PRIVILEGES[privilege], name, role, option), shown


def _facts(connection: Connection) -> dict[tuple[str, str], bool]:
    rows = _rows(connection, "privileges")
    return {(row["grantee"], row["privilege"]): row["is_grantable"] for row in rows}


def _attempt(target: Connection, statement: sql.Composed, shown: str, say: Callable[[str], object]) -> None:
    try:
        with target.transaction():
            target.execute(statement)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedObject, psycopg.DataError) as error:
        say(f"{shown} was not copied: {error.diag.message_primary}")


def _rows(connection: Connection, statement: str) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("trueup.verbs.sync.target_schema", "database_settings.sql")[statement]).fetchall()
