"""Tables that are left out of a sync are not created on the target, and neither is what depends on them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from psycopg.rows import dict_row

from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.db.statements import load
from trueup.verbs.sync.model import Problem

_VIEWS = ("v", "m")


@dataclass(frozen=True)
class LeftOut:
    """The relations that are not created, with partitions and views; what that means for other objects."""

    relations: tuple[TableName, ...] = ()
    problems: tuple[Problem, ...] = ()
    remarks: tuple[str, ...] = ()


def find_left_out(source: Connection, oids: Sequence[int], refused: Container[int] = ()) -> LeftOut:
    """Return what is not created on the target if these relations are left out; `refused` cannot be in the sync."""
    if not oids:
        return LeftOut()
    with source.cursor(row_factory=dict_row) as cursor:
        query = load("trueup.verbs.sync.target_schema", "left_out.sql")["left_out"]
        rows = cursor.execute(query, {"oids": list(oids)}).fetchall()
    relations: list[TableName] = []
    problems: list[Problem] = []
    remarks: list[str] = []
    for row in rows:
        if row["is_root"] or row["is_own_sequence"]:
            relations.append((row["schema"], row["name"]))
        elif row["kind"] in _VIEWS:
            relations.append((row["schema"], row["name"]))
            remarks.append(f"{row['shown']} is not created: it uses {row['cause']}, which is not in the sync")
        # The plan names foreign keys itself.
        elif not row["is_foreign_key"]:
            what = f"it uses {row['cause']}, which is not in the sync, and cannot be created without it"
            add = "" if row["cause_oid"] in refused else f"add {row['cause']} to the sync, or "
            problems.append(Problem(row["shown"], what, f"{add}drop {row['shown']}"))
    return LeftOut(tuple(relations), tuple(problems), tuple(remarks))
