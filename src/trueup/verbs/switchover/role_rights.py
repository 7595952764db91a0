"""What roles may do with the tables of a sync: compared in both directions, by the names of roles.

A role that may do less on the new server stops applications, and one that may do more reads or writes what it must not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trueup.config.wording import shown_names
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_part
from trueup.db.schema import SchemaDifference
from trueup.db.statements import load

if TYPE_CHECKING:
    from typing_extensions import LiteralString

_SHOWN = 3
# As role_rights.sql names them.
_SUPERUSER = "do everything (SUPERUSER)"
_BYPASSES = "bypass row security (BYPASSRLS)"
_ALL_ROWS = "read all rows of"
_LOGIN = "log in"
_CONNECT = "CONNECT"
# What a superuser does not have by itself.
_OWN = (_LOGIN, _CONNECT)
_COLUMNS = " columns of"


@dataclass(frozen=True)
class Side:
    """One of the two databases."""

    node: str
    connection: Connection


@dataclass
class Rights:
    """What a role may do: with objects, by right, and on the whole server; the roles whose rights it has."""

    objects: dict[str, set[str]] = field(default_factory=dict)
    # Without what every role may.
    beyond: dict[str, set[str]] = field(default_factory=dict)
    general: set[str] = field(default_factory=set)
    member_of: set[str] = field(default_factory=set)

    @property
    def matters(self) -> bool:
        """Whether it may do more with the objects than every role."""
        return any(self.beyond.values())

    @property
    def is_superuser(self) -> bool:
        """Whether no right is checked."""
        return _SUPERUSER in self.general

    def more_than(self, other: Rights, compared: Collection[str] | None = None) -> list[str]:
        """Return as texts what this role may do and the other one may not; of memberships those in `compared` only."""
        general = self.general - other.general
        if other.is_superuser:
            general &= {*_OWN}
        elif _SUPERUSER in general:
            general &= {_SUPERUSER, *_OWN}
        if _LOGIN not in self.general:
            general -= {_CONNECT}
        objects = {right: names - other.objects.get(right, set()) for right, names in self.beyond.items()}
        for right, names in objects.items():
            if right.endswith(_COLUMNS):
                whole = right.removesuffix(_COLUMNS)
                names -= other.objects.get(whole, set()) | objects.get(whole, set())
        if general & {_SUPERUSER, _BYPASSES}:
            objects.pop(_ALL_ROWS, None)
        roles = set() if other.is_superuser else self.member_of - other.member_of
        roles = {role for role in roles if compared is None or role in compared}
        shown = {right: shown_names(sorted(names), _SHOWN) for right, names in objects.items() if names}
        if roles:
            shown["use the rights of"] = shown_names(sorted(map(display_part, roles)), _SHOWN)
        return [f"{right} {shown[right]}" if right in shown else right for right in sorted({*shown, *general})]


def role_differences(
    source: Side, target: Side, relations: Sequence[TableName], secured: Set[TableName]
) -> list[SchemaDifference]:
    """Return the roles that may do less or more on the target than on the source.

    Roles count that may do something with these relations beyond what every role may: on the source, or on the target.
    A role that only the target has counts too, unless it is a superuser or the role of this session, which needs its
    rights for the sync. `secured`: the relations with row security on both sides.
    """
    before, after = (_read(side.connection, relations, secured) for side in (source, target))
    current = str(one_value(target.connection.execute("SELECT current_user::text")))
    # A role that the target lacks is named if it has rights on the tables; others are of other databases.
    compared = {role for role in before if role in after or role.startswith("pg_") or before[role].matters}
    differences = []
    for role in sorted({*before, *after}):
        if role.startswith("pg_"):
            continue
        here, there = before.get(role), after.get(role)
        if there is None and here is not None:
            if here.matters:
                remark = f"it may {', '.join(here.more_than(Rights(), compared))} on {source.node}"
                differences.append(_difference(role, "missing", target.node, remark))
        elif here is None and there is not None:
            if there.matters and not there.is_superuser and role != current:
                remark = f"it may {', '.join(there.more_than(Rights()))} on {target.node}"
                differences.append(_difference(role, "missing", source.node, remark))
        elif here is not None and there is not None:
            lost = here.more_than(there, compared) if here.matters else []
            gained = there.more_than(here) if here.matters or there.matters else []
            remarks = [
                f"it may {', '.join(texts)} on {one}, and not on {other}"
                for texts, one, other in ((lost, source.node, target.node), (gained, target.node, source.node))
                if texts
            ]
            if remarks:
                differences.append(_difference(role, "changed", target.node, "; ".join(remarks)))
    return differences


def _difference(role: str, how: str, node: str, remark: str) -> SchemaDifference:
    return SchemaDifference("role", "", display_part(role), how, (node,), {}, remark)


def _read(connection: Connection, relations: Sequence[TableName], secured: Set[TableName]) -> dict[str, Rights]:
    """Return what each role of a server may do, also by SET ROLE; the predefined roles are included by name only."""
    attributes: dict[str, set[str]] = {
        role: set(texts) for role, texts in connection.execute(_statement("attributes")).fetchall()
    }
    rights = {role: Rights(general=set(texts)) for role, texts in attributes.items()}
    for role, other, can_set in connection.execute(_statement("memberships")).fetchall():
        rights[role].member_of.add(other)
        if can_set:
            rights[role].general |= attributes[other] - {*_OWN}
    values = {
        "schemas": [schema for schema, _ in relations],
        "names": [name for _, name in relations],
        "secured": [relation in secured for relation in relations],
    }
    for role, right, names, beyond in connection.execute(_statement("objects"), values).fetchall():
        rights[role].objects[right] = set(names)
        rights[role].beyond[right] = set(beyond)
    return rights


def _statement(name: str) -> LiteralString:
    return load("trueup.verbs.switchover", "role_rights.sql")[name]
