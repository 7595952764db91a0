"""The statements that give enums of the target the labels of the source.

Labels are compared by their order: of two lists, those in both are fixed, and what is between two of these was added or
renamed. Where that is not clear, the difference is named and nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.names import display_name, quoted_name
from trueup.db.statements import load
from trueup.verbs.sync import members
from trueup.verbs.sync_ddl.change import Change, Statement


def label_changes(
    source: Connection, target: Connection, oids: Iterable[int], notes: list[str]
) -> tuple[list[Change], set[int]]:
    """Return the changes of enums in columns of these tables of the source, and the tables whose enums differ."""
    changes: list[Change] = []
    concerned: set[int] = set()
    enums = members.enums(source, oids)
    names = [(enum.schema, enum.name) for enum in enums]
    query = load("trueup.verbs.sync_ddl", "ddl.sql")["labels"]
    rows = target.execute(query, {"schemas": [schema for schema, _ in names], "names": [name for _, name in names]})
    present = {(schema, name): labels for schema, name, labels in rows.fetchall()}
    for enum in enums:
        labels = present.get((enum.schema, enum.name))
        if labels is None or labels == enum.labels:
            continue
        concerned.update(enum.tables)
        shown = f"type {display_name(enum.schema, enum.name)}"
        statements = label_statements(f"{quoted_name(enum.schema)}.{quoted_name(enum.name)}", labels, enum.labels)
        if statements:
            changes.append(Change(shown, tuple(statements)))
        else:
            lists = f"({', '.join(enum.labels)}) on the source, ({', '.join(labels)}) on the target"
            notes.append(f"{shown}: its labels differ, and it is not clear how: {lists}; alter the type on the target")
    return changes, concerned


def label_statements(name: str, present: Sequence[str], wanted: Sequence[str]) -> list[Statement]:
    """Return the statements, or none if labels were exchanged or removed."""
    common = [label for label in wanted if label in present]
    if common != [label for label in present if label in wanted]:
        return []
    statements: list[Statement] = []
    for before, after, old, new in _gaps(common, present, wanted):
        if not old:
            # Each one behind the one before it; the first ones in front of the first that is there.
            for at, label in enumerate(new):
                former = new[at - 1] if at else before
                place = f" AFTER {_text(former)}" if former is not None else ""
                place = place or (f" BEFORE {_text(after)}" if after is not None else "")
                statements.append(Statement(f"ALTER TYPE {name} ADD VALUE {_text(label)}{place}"))
        elif len(old) == len(new):
            # It could also be a label that only the target has, in the place of a new one: not without a look at it.
            statements += [
                Statement(f"ALTER TYPE {name} RENAME VALUE {_text(first)} TO {_text(second)}", drops=True)
                for first, second in zip(old, new, strict=True)
            ]
        else:
            return []
    return statements


def _gaps(
    common: Sequence[str], present: Sequence[str], wanted: Sequence[str]
) -> Iterable[tuple[str | None, str | None, Sequence[str], Sequence[str]]]:
    """Return what is between the common labels: the labels around it, those of the target, and those of the source."""
    ends: list[str | None] = [None, *common, None]
    for before, after in pairwise(ends):
        parts = [
            each[each.index(before) + 1 if before is not None else 0 : each.index(after) if after is not None else None]
            for each in (present, wanted)
        ]
        yield before, after, parts[0], parts[1]


def _text(label: str) -> str:
    return sql.Literal(label).as_string(None)
