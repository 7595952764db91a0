"""Objects that a sync does not copy, or copies only in part: named in the plan, with what to do."""

from __future__ import annotations

from typing import Any

from psycopg.rows import dict_row

from trueup.db.connection import Connection
from trueup.db.statements import load

# What to do with objects that are not created on the target, by kind.
_NOT_CREATED = {
    "publication": "create it on the target after the switchover, and connect its subscribers to the target",
    "subscription": "after the switchover, create it on the target with copy_data = false, and drop it on the source",
    "slot": "a slot cannot be copied: its consumer needs a new one on the target, created before the switchover",
    "security label": "set the labels of this provider on the target",
}
_JOBS = {
    "pg_cron": "its jobs (cron.job) are not copied: schedule them on the target after the switchover (cron.schedule)",
    "pg_partman": "its configuration is not copied: insert the rows of part_config on the target, and run its"
    " maintenance there only after the switchover",
    "timescaledb": "its jobs and hypertables are not copied: use the tools of timescaledb",
}


def statement_rows(connection: Connection, name: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Run a statement of not_copied.sql and return its rows."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("trueup.verbs.sync.target_schema", "not_copied.sql")[name], values).fetchall()


def objects(connection: Connection) -> list[dict[str, Any]]:
    """Return the objects of a database that a sync does not handle, or only in part."""
    return statement_rows(connection, "objects")


def remarks_on(source: Connection, target: Connection, *, creates: bool, is_superuser: bool) -> list[str]:
    """Return a remark per object of the source that is not on the target after `start`, and on other locales.

    `creates`: trueup creates the schema of the target.
    """
    known = {(row["kind"], row["name"]) for row in objects(target)}
    remarks = []
    for row in objects(source):
        kind, name, detail = row["kind"], row["name"], row["detail"]
        if kind in _NOT_CREATED and (kind, name) not in known:
            remarks.append(f"{kind} {name} is not created on the target: {_NOT_CREATED[kind]}")
        elif kind == "scheduler":
            cure = _JOBS.get(name, "its jobs are not copied: schedule them on the target after the switchover")
            remarks.append(f"extension {name}: {cure}")
        elif kind == "configuration":
            remarks.append(f"{name} belongs to the extension {detail}, and its rows are not copied")
        elif kind == "tablespace" and creates and (kind, name) not in known:
            remarks.append(f"tablespace {name} does not exist on the target: everything is created in the default one")
        elif kind == "event trigger" and creates and not is_superuser:
            remarks.append(f"event trigger {name} is not created: that needs a superuser on the target")
        elif kind == "user mapping" and creates and detail == "unknown":
            remarks.append(f"user mapping {name}: its options cannot be read: set them on the target")
    return [*remarks, *_locales(source, target)]


def _locales(source: Connection, target: Connection) -> list[str]:
    here, there = statement_rows(source, "locale")[0], statement_rows(target, "locale")[0]
    # The plan has another check for the encoding.
    names = ("collate", "ctype", "provider", "locale")
    differing = [name for name in names if here[name] != there[name] and None not in (here[name], there[name])]
    if not differing:
        return []
    shown = ", ".join(f"{name} {here[name]} on the source and {there[name]} on the target" for name in differing)
    return [f"the locales of the databases differ, and so may the order of texts: {shown}"]
