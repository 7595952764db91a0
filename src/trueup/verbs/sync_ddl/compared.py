"""The definitions of the tables of a sync that differ by their meaning, as the gate of a switchover compares them.

Versions of PostgreSQL print equal definitions differently, so texts alone would show differences that do not exist.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.db.meaning import without_equal_meaning
from trueup.db.names import display_part
from trueup.db.schema import SchemaDifference, compare_schemas, read_schema

_SOURCE, _TARGET = "the source", "the target"
# What `ddl` has statements for.
_ALTERED = ("table", "column", "constraint", "index")
# Of triggers: the sync disables them on the target.
_NOT_SHOWN = {"enabled"}


@dataclass(frozen=True)
class Compared:
    """What differs between tables of the source and tables of the target with the same names."""

    # With the table that the object belongs to.
    differences: tuple[tuple[SchemaDifference, TableName | None], ...] = ()
    # Tables that were compared.
    tables: frozenset[TableName] = frozenset()

    def differs(self, kind: str, table: TableName, part: str, *facts: str) -> bool:
        """Return whether a part of the table exists on both databases, and differs in one of these facts.

        A table that was not compared, because it is renamed, is compared after that.
        """
        names = (display_part(part), f"{display_part(table[1])}.{display_part(part)}")
        return any(
            each.how == "changed" and any(fact in each.facts for fact in facts)
            for each, home in self.differences
            if home == table and each.kind == kind and each.name in names
        )

    def by_hand(self, altered: Collection[TableName], named: Collection[TableName]) -> list[str]:
        """Return what no statement makes equal, and a switchover compares.

        Tables in `altered` have statements. Of those in `named`, parts that one database lacks are named already.
        """
        notes: list[str] = []
        for each, home in self.differences:
            facts = [fact for fact in each.facts if fact not in _NOT_SHOWN]
            if each.how == "changed" and not facts:
                continue
            is_named = home in named and (each.how == "missing" or "generated" in facts)
            if each.kind in _ALTERED and (home in altered or is_named):
                continue
            what = f"differs ({', '.join(facts)})" if each.how == "changed" else f"is {each.how} on {each.nodes[0]}"
            notes.append(f"{each.kind} {display_part(each.schema)}.{each.name} {what}; a switchover compares it")
        return notes


def compare(source: Connection, target: Connection, tables: frozenset[TableName]) -> Compared:
    """Compare these tables; nothing is written."""
    if not tables:
        return Compared()
    schemas = {_SOURCE: read_schema(source, tables=tables), _TARGET: read_schema(target, tables=tables)}
    differences = without_equal_meaning(target, compare_schemas(schemas), schemas[_TARGET], schemas[_SOURCE])
    homes = {name: item.table for items in schemas.values() for name, item in items.items()}
    return Compared(tuple((each, homes.get((each.kind, each.schema, each.name))) for each in differences), tables)
