"""Checks of a plan with --create-schema: names that are taken, roles, extensions, and what cannot be created."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.db import catalog
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_code import FOREIGN_CODE_CURE, foreign_code_of
from trueup.db.names import display_name
from trueup.verbs.sync.model import FUNCTIONS_SCHEMA, LOG_SCHEMA, ORDERED, STATE_SCHEMA, Problem, SyncTable
from trueup.verbs.sync.request import Scope
from trueup.verbs.sync.target_schema.database_settings import database_remarks
from trueup.verbs.sync.target_schema.features import check_definitions
from trueup.verbs.sync.target_schema.left_out import LeftOut
from trueup.verbs.sync.target_schema.not_copied import statement_rows
from trueup.verbs.sync.target_schema.roles import check_roles

_OURS = {"ours": [STATE_SCHEMA, LOG_SCHEMA, FUNCTIONS_SCHEMA]}


def check_schema_creation(
    source: Connection,
    target: Connection,
    scope: Scope,
    tables: Sequence[SyncTable],
    left_out: LeftOut,
    mode: str,
    problems: list[Problem],
    remarks: list[str],
) -> tuple[str, ...]:
    """Add what prevents the creation of the schema, and what will be missing; return the roles that will be created."""
    problems += left_out.problems
    remarks += left_out.remarks
    _check_names(source, target, tables, left_out, problems)
    _check_extensions(source, target, problems)
    _check_collations(source, target, problems)
    check_definitions(source, target, left_out.relations, problems)
    roles = check_roles(source, target, scope, problems, remarks)
    _check_rights(source, target, tables, mode, problems)
    remarks += database_remarks(source, target, no_owner=scope.no_owner)
    remarks += _invalid_indexes(source, left_out)
    return roles


def is_superuser(connection: Connection) -> bool:
    """Return whether the role of a session is a superuser."""
    return bool(one_value(connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")))


def _check_names(
    source: Connection, target: Connection, tables: Sequence[SyncTable], left_out: LeftOut, problems: list[Problem]
) -> None:
    """Add a problem per object whose name is taken on the target."""
    cure = "drop it there, or start without --create-schema"
    what = "it exists on the target already"
    taken = {display_name(*name) for name in catalog.read_tables(target, [table.name for table in tables])}
    problems += [Problem(name, what, cure) for name in sorted(taken)]
    known = {(row["kind"], row["schema"], row["name"]) for row in statement_rows(target, "taken", _OURS)}
    for row in statement_rows(source, "taken", _OURS):
        name = (row["schema"], row["name"])
        home = (row["schema"], row["home"] or row["name"])
        if (row["kind"], *name) in known and home not in left_out.relations and display_name(*home) not in taken:
            shown = display_name(*name) if row["schema"] else row["name"]
            problems.append(Problem(f"{row['kind']} {shown}", what, cure))


def _check_extensions(source: Connection, target: Connection, problems: list[Problem]) -> None:
    available = {row["name"]: row for row in statement_rows(target, "available")}
    superuser = is_superuser(target)
    for row in statement_rows(source, "extensions"):
        name, there = row["name"], available.get(row["name"])
        if there is None:
            cure = "install the package of the extension on the target's server, or drop the extension on the source"
            problems.append(Problem(f"extension {name}", "the target's server does not have it", cure))
        elif not there["is_created"] and not there["can_create"] and not superuser:
            what = "only a superuser can create it on the target"
            problems.append(Problem(f"extension {name}", what, "let a superuser run CREATE EXTENSION there"))


def _check_collations(source: Connection, target: Connection, problems: list[Problem]) -> None:
    """Add a problem per ICU collation of the source, if the target was built without ICU."""
    if one_value(target.execute("SELECT EXISTS (SELECT FROM pg_collation WHERE collname ~ '-x-icu$')")):
        return
    query = "SELECT oid::regcollation::text FROM pg_collation WHERE collprovider = 'i' AND oid >= 16384 ORDER BY 1"
    what, cure = "the target's server has no ICU", "use a server that was built with ICU, or drop the collation"
    problems += [Problem(f"collation {name}", what, cure) for (name,) in source.execute(query).fetchall()]


def _invalid_indexes(source: Connection, left_out: LeftOut) -> list[str]:
    """Return a remark per index of the source that a dump leaves out, although a comparison of the schemas finds it."""
    remarks = []
    for row in statement_rows(source, "invalid"):
        if (row["schema"], row["home"]) not in left_out.relations:
            shown = display_name(row["schema"], row["name"])
            remarks.append(
                f"the index {shown} is invalid (CREATE INDEX CONCURRENTLY failed, or still runs): it is not created on"
                f" the target, and closes the gate of a switchover; drop it, or REINDEX INDEX CONCURRENTLY {shown}"
            )
    return remarks


def _check_rights(
    source: Connection, target: Connection, tables: Sequence[SyncTable], mode: str, problems: list[Problem]
) -> None:
    """Add a problem per table that the role could not write on the target, or that would run code of other roles."""
    query = "SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"
    superuser, bypasses = target.execute(query).fetchall()[0]
    if superuser:
        names = [table.name for table in tables]
        found = foreign_code_of(source, names, writes=True, silenced=mode != ORDERED, disabled=True, for_superuser=True)
        problems += [
            Problem(display_name(*name), reason, FOREIGN_CODE_CURE)
            for name, reasons in found.items()
            for reason in reasons
        ]
    elif not bypasses:
        forced = {(row["nspname"], row["relname"]) for row in statement_rows(source, "forced")}
        problems += [
            Problem(
                str(table), "its row security is forced, and would apply to the role on the target",
                "use a role with BYPASSRLS",
            )
            for table in tables if table.name in forced
        ]  # fmt: skip
