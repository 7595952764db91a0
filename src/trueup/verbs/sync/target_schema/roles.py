"""Roles that the source's database uses: which ones the target lacks, and whether the role there can make them owners.

A function or a view that runs with the rights of its owner must not have more rights on the target than on the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg.rows import dict_row

from trueup.config.wording import counted, shown_names
from trueup.db.connection import Connection
from trueup.db.statements import load
from trueup.verbs.sync.model import FUNCTIONS_SCHEMA, LOG_SCHEMA, STATE_SCHEMA, Problem
from trueup.verbs.sync.request import Scope

# Attributes that are rights, as in CREATE ROLE.
RIGHTS = ("superuser", "createrole", "createdb", "replication", "bypassrls")
# Since this version, a role that may create roles grants only the attributes it has, and a membership has options.
OPTIONS_SINCE = 160000
_OURS = {"ours": [STATE_SCHEMA, LOG_SCHEMA, FUNCTIONS_SCHEMA]}
Rights = Mapping[str, Any]


@dataclass(frozen=True)
class Membership:
    """A role and its member."""

    role: str
    member: str
    admin: bool
    inherit: bool
    can_set: bool


@dataclass(frozen=True)
class Roles:
    """The roles that the source's database uses, and the roles of the target; by name, with their attributes."""

    used: Mapping[str, Rights]
    present: Mapping[str, Rights]
    memberships: tuple[Membership, ...]
    memberships_there: tuple[Membership, ...]
    # The roles of the target that the current one may make the owner of an object.
    may_set: frozenset[str]
    version: int
    current: Rights = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """The roles that do not exist on the target."""
        return tuple(name for name in self.used if name not in self.present)

    @property
    def is_superuser(self) -> bool:
        """Whether the role on the target is a superuser."""
        return bool(self.current["superuser"])

    @property
    def may_create(self) -> bool:
        """Whether the role on the target may create roles."""
        return self.is_superuser or bool(self.current["createrole"])

    def may_give(self, right: str) -> bool:
        """Return whether the role on the target may give an attribute to a new role."""
        if self.is_superuser:
            return True
        is_old = self.version < OPTIONS_SINCE
        if right == "superuser" or (is_old and right in ("replication", "bypassrls")):
            return False
        return self.may_create and (is_old or bool(self.current[right]))

    def may_grant(self, role: str) -> bool:
        """Return whether the role on the target may grant the membership in a role, which may be a new one."""
        if self.is_superuser:
            return True
        there = self.present.get(role)
        if there is None:
            return role in self.used
        if self.version < OPTIONS_SINCE and self.may_create and not there["superuser"]:
            return not role.startswith("pg_") or bool(there["may_grant"])
        return bool(there["may_grant"])

    def more_rights(self, name: str) -> list[str]:
        """Return the rights that a role has on the target and not on the source."""
        here, there = self.used[name], self.present.get(name)
        if there is None or here["superuser"]:
            return []
        gained = _roles_of(self.memberships_there, name) - _roles_of(self.memberships, name)
        rights = [right.upper() for right in RIGHTS if there[right] and not here[right]]
        return [*rights, *(f"membership in {role}" for role in sorted(gained))]


def _roles_of(memberships: Sequence[Membership], name: str) -> set[str]:
    """Return the roles that a role is a member of, directly or through others."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        member = waiting.pop()
        new = {row.role for row in memberships if row.member == member} - found
        found |= new
        waiting += new
    return found


def statement_rows(connection: Connection, name: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Run a statement of roles.sql and return its rows."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            load("trueup.verbs.sync.target_schema", "roles.sql")[name], {**_OURS, **(values or {})}
        ).fetchall()


def read_roles(source: Connection, target: Connection, scope: Scope) -> Roles:
    """Read the roles of both servers."""
    used = {row["name"]: row for row in statement_rows(source, "used", {"large_objects": scope.has_large_objects})}
    present = {row["name"]: row for row in statement_rows(target, "present")}
    names = {"names": list(used)}
    version = target.info.server_version
    if version >= OPTIONS_SINCE:
        may_set = frozenset(row["rolname"] for row in statement_rows(target, "may_set"))
    else:
        may_set = frozenset(name for name, row in present.items() if row["is_member"])
    return Roles(
        used,
        present,
        tuple(Membership(**row) for row in statement_rows(source, "memberships", names)),
        tuple(Membership(**row) for row in statement_rows(target, "memberships", names)),
        may_set,
        version,
        next(row for row in present.values() if row["is_current"]),
    )


def check_roles(
    source: Connection, target: Connection, scope: Scope, problems: list[Problem], remarks: list[str]
) -> tuple[str, ...]:
    """Add what prevents the owners and privileges of the source; return the roles that will be created."""
    roles = read_roles(source, target, scope)
    if roles.missing and not scope.create_roles:
        problems += [_missing_problem(roles, name) for name in roles.missing]
    elif roles.missing and not roles.may_create:
        names = ", ".join(roles.missing)
        what = f"the role {roles.current['name']} may not create roles on the target"
        problems.append(Problem(f"roles {names}", what, "ALTER ROLE … CREATEROLE there, or create the roles by hand"))
    elif roles.missing:
        remarks += _losses(source, roles)
    if not roles.is_superuser:
        if not scope.no_owner:
            problems += _not_members(roles)
        problems += [
            Problem(row["format"], "privileges on it were granted by another role than its owner",
                    "restore them as a superuser, or grant them again as the owner on the source")
            for row in statement_rows(source, "granted_by_others")
        ]  # fmt: skip
    problems += _definers(source, roles, no_owner=scope.no_owner)
    remarks += _differences(roles)
    others = [row["rolname"] for row in statement_rows(source, "others", {"names": list(roles.used)})]
    if absent := [name for name in others if name not in roles.present]:
        remarks.append(
            "roles without objects or privileges in the database do not exist on the target, and are not created:"
            f" {shown_names(absent)}; create those that applications log in with"
        )
    return roles.missing if scope.create_roles else ()


def _missing_problem(roles: Roles, name: str) -> Problem:
    owned = roles.used[name]["owned"]
    uses = f"owns {counted(owned, 'object')}" if owned else "has privileges or memberships"
    cure = "create the missing roles with --create-roles, or by hand"
    return Problem(f"role {name}", f"it does not exist on the target, and {uses} on the source", cure)


def _losses(source: Connection, roles: Roles) -> list[str]:
    """Return what new roles will not have because of the roles of the two sessions."""
    remarks = []
    current = roles.current["name"]
    for name in roles.missing:
        lost = [right.upper() for right in RIGHTS if roles.used[name][right] and not roles.may_give(right)]
        if lost:
            remarks.append(f"the new role {name} does not get {', '.join(lost)}: {current} may not grant it")
    lost_memberships = [
        row for row in new_memberships(roles) if not roles.may_grant(row.role) or row.role not in _known(roles)
    ]
    remarks += [f"{current} may not grant {row.role} to {row.member} on the target" for row in lost_memberships]
    logins = [name for name in roles.missing if roles.used[name]["login"]]
    if logins and not may_read_passwords(source):
        remarks.append(f"passwords cannot be read on the source: set those of {', '.join(logins)} on the target")
    return remarks


def _known(roles: Roles) -> set[str]:
    return {*roles.used, *roles.present}


def new_memberships(roles: Roles) -> list[Membership]:
    """Return the memberships of which the target lacks the role or the member."""
    missing = set(roles.missing)
    return [row for row in roles.memberships if row.role in missing or row.member in missing]


def may_read_passwords(source: Connection) -> bool:
    """Return whether the role may read pg_authid."""
    row = source.execute("SELECT has_table_privilege('pg_catalog.pg_authid', 'SELECT')").fetchone()
    return bool(row and row[0])


def _not_members(roles: Roles) -> list[Problem]:
    """Return a problem per owner that the role on the target cannot make the owner of an object."""
    current = roles.current["name"]
    problems = []
    for name, used in roles.used.items():
        there = roles.present.get(name)
        if not used["owned"] or there is None or (there["is_inherited"] and name in roles.may_set):
            continue
        objects = shown_names(used["objects"], 3) + (" and others" if used["owned"] > len(used["objects"]) else "")
        what = f"{current} is not a member of it on the target, and cannot make it the owner of {objects}"
        options = " WITH INHERIT TRUE, SET TRUE" if roles.version >= OPTIONS_SINCE else ""
        cure = f"GRANT {name} TO {current}{options} on the target; or --no-owner, and {current} owns all objects"
        if there["superuser"]:
            cure = f"change the owner on the source, or --no-owner, and {current} owns all objects"
        problems.append(Problem(f"role {name}", what, cure))
    return problems


def _definers(source: Connection, roles: Roles, *, no_owner: bool) -> list[Problem]:
    """Return a problem per function or view that would run with more rights than on the source."""
    current = roles.current["name"]
    problems = []
    for row in statement_rows(source, "definers"):
        owner, name = row["owner"], row["name"]
        if owner not in roles.used or roles.used[owner]["superuser"]:
            continue
        more = roles.more_rights(owner)
        if no_owner and owner != current:
            what = f"with --no-owner it would run with the rights of {current} instead of those of {owner}"
            problems.append(
                Problem(name, what, "start without --no-owner, or let it run with the rights of its caller")
            )
        elif more:
            what = f"it would have more rights on the target, where its owner {owner} has {', '.join(more)}"
            problems.append(Problem(name, what, "take these rights from the role on the target, or change the owner"))
    return problems


def _differences(roles: Roles) -> list[str]:
    """Return the roles that exist on both servers with other rights."""
    remarks = []
    # Those in a missing role are granted when it is created.
    kept = [row for row in roles.memberships if row.role not in roles.missing]
    for name in roles.used:
        there = roles.present.get(name)
        if there is None:
            continue
        less = [right.upper() for right in (*RIGHTS, "login") if roles.used[name][right] and not there[right]]
        lost = _roles_of(kept, name) - _roles_of(roles.memberships_there, name)
        less += [f"membership in {role}" for role in sorted(lost)]
        if less:
            remarks.append(f"the role {name} exists on the target without {', '.join(less)}")
        if more := roles.more_rights(name):
            remarks.append(f"the role {name} has more rights on the target: {', '.join(more)}")
    return remarks
