"""Creates the roles that the target lacks: attributes, memberships, settings, and passwords if they can be read."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.engine.progress import Progress
from trueup.verbs.sync.target_schema.database_settings import set_parameters
from trueup.verbs.sync.target_schema.roles import (
    OPTIONS_SINCE,
    RIGHTS,
    Membership,
    Rights,
    Roles,
    may_read_passwords,
    new_memberships,
    statement_rows,
)

_FLAGS = {
    "superuser": sql.SQL("SUPERUSER"),
    "createrole": sql.SQL("CREATEROLE"),
    "createdb": sql.SQL("CREATEDB"),
    "replication": sql.SQL("REPLICATION"),
    "bypassrls": sql.SQL("BYPASSRLS"),
    "login": sql.SQL("LOGIN"),
    "inherit": sql.SQL("INHERIT"),
}


def create_roles(source: Connection, target: Connection, roles: Roles, progress: Progress) -> None:
    """Create the missing roles in the open transaction of the target."""
    if not roles.missing:
        return
    progress.say(f"creating the roles {', '.join(roles.missing)}")
    passwords = _passwords(source, target, roles, progress)
    for name in roles.missing:
        target.execute(_create(roles, name, passwords.get(name)))
        if not roles.is_superuser and roles.used[name]["owned"]:
            # The new role becomes the owner of objects, and the sync writes to them.
            target.execute(_grant(Membership(name, roles.current["name"], False, True, True), roles.version))
    for row in new_memberships(roles):
        if roles.may_grant(row.role) and (row.role in roles.present or row.role in roles.used):
            target.execute(_grant(row, roles.version))
    for name in roles.missing:
        role = sql.SQL("ROLE {}").format(sql.Identifier(name))
        set_parameters(target, role, f"role {name}", roles.used[name]["settings"], progress.say)


def _passwords(source: Connection, target: Connection, roles: Roles, progress: Progress) -> dict[str, str]:
    """Return the hashes of passwords, by role; none if they cannot be read, or would be in the log of the target."""
    logins = [name for name in roles.missing if roles.used[name]["login"]]
    if not logins or not may_read_passwords(source):
        return {}
    # The session of a superuser logs no statements.
    if not roles.is_superuser and one_value(
        target.execute(
            "SELECT current_setting('log_statement') <> 'none' OR current_setting('log_min_duration_statement') <> '-1'"
        )
    ):
        progress.say(f"{', '.join(logins)}: passwords are not copied, because the target logs statements")
        return {}
    rows = statement_rows(source, "passwords", {"names": logins})
    return {row["rolname"]: row["rolpassword"] for row in rows}


def _create(roles: Roles, name: str, password: str | None) -> sql.Composed:
    used = roles.used[name]
    words = [sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)), *_attributes(roles, used)]
    if password:
        words.append(sql.SQL("PASSWORD {}").format(sql.Literal(password)))
    return sql.SQL(" ").join(words)


def _attributes(roles: Roles, used: Rights) -> Iterator[sql.Composable]:
    for flag in _FLAGS:
        if flag in RIGHTS and used[flag] and not roles.may_give(flag):
            continue
        # A role without the right to give an attribute may not name it at all.
        if used[flag] or flag == "inherit":
            yield _FLAGS[flag] if used[flag] else sql.SQL("NOINHERIT")
    if used["connection_limit"] != -1:
        yield sql.SQL("CONNECTION LIMIT {}").format(sql.Literal(int(used["connection_limit"])))
    if used["valid_until"]:
        yield sql.SQL("VALID UNTIL {}").format(sql.Literal(used["valid_until"]))


def _grant(row: Membership, version: int) -> sql.Composed:
    options: sql.Composable = sql.SQL(" WITH ADMIN OPTION" if row.admin else "")
    if version >= OPTIONS_SINCE:
        values = (sql.SQL("true" if value else "false") for value in (row.admin, row.inherit, row.can_set))
        options = sql.SQL(" WITH ADMIN {}, INHERIT {}, SET {}").format(*values)
    return sql.SQL("GRANT {} TO {}{}").format(sql.Identifier(row.role), sql.Identifier(row.member), options)
