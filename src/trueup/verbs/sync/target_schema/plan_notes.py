"""Notes of a plan: triggers that are disabled, materialized views, large objects, other differences of the schemas."""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Sequence as Many
from itertools import groupby
from typing import Any

from trueup.config.wording import counted, shown_names
from trueup.db.connection import Connection
from trueup.db.meaning import without_equal_meaning
from trueup.db.names import display_name, display_part
from trueup.db.schema import compare_schemas, read_schema, without_newest_versions
from trueup.db.trust import check_schema
from trueup.rows.write import large_objects
from trueup.rows.write.disabled_triggers import Trigger, firing, recorded
from trueup.verbs.sync.model import LARGE_OBJECTS, STATE_SCHEMA, Problem, SyncTable
from trueup.verbs.sync.request import Scope
from trueup.verbs.sync.target_schema.plan_target import TargetState

_SHOWN = 20


def view_notes(relations: Many[dict[str, Any]], scope: Scope) -> list[str]:
    """Return what happens to materialized views."""
    views = [row for row in relations if row["kind"] == "m" and not row["extension"]]
    if scope.tables:
        notes = {"materialized views are not refreshed, because --tables names what is synced": views}
    else:
        notes = {
            "materialized views are refreshed after the copy and before a switchover": [
                row for row in views if row["populated"]
            ],
            "materialized views stay without rows, as on the source": [row for row in views if not row["populated"]],
        }
    return [
        f"{text}: {', '.join(display_name(row['schema'], row['name']) for row in rows)}"
        for text, rows in notes.items()
        if rows
    ]


def disabled_note(
    connection: Connection, target: Connection, tables: Many[SyncTable], scope: Scope, mode: str
) -> list[str]:
    """Return a note with the triggers and rules that are disabled on the target while the sync writes to it."""
    found = [*firing(connection, [table.name for table in tables], mode), *_recorded(target, scope.name)]
    triggers = sorted({trigger.place: trigger for trigger in found}.values(), key=lambda trigger: trigger.place[1:])
    if not triggers:
        return []
    kinds = [
        counted(count, kind) for kind in ("trigger", "rule") if (count := sum(each.kind == kind for each in triggers))
    ]
    lines = [
        f"{display_name(*table)}: {', '.join(map(_short, group))}"
        for table, group in groupby(triggers, lambda trigger: (trigger.schema, trigger.table))
    ]
    head = (
        f"{' and '.join(kinds)} disabled on the target until a switchover, which enables them there as on the source;"
        " they would fire when rows are written:"
    )
    return [f"{head} {'; '.join(lines)}"]


def _short(trigger: Trigger) -> str:
    name = display_part(trigger.name)
    return name if trigger.kind == "trigger" else f"{trigger.kind} {name}"


def _recorded(target: Connection, name: str) -> list[Trigger]:
    """Return what the sync has disabled on the target."""
    return recorded(target, name) if check_schema(target, STATE_SCHEMA) else []


def other_differences(
    source: Connection, target: Connection, tables: Many[SyncTable], scope: Scope, names: tuple[str, str]
) -> list[str]:
    """Return the other differences of the schemas: they lose no rows, but close the gate of a switchover."""
    chosen = {table.name for table in tables} if scope.tables else None
    schemas = {
        name: read_schema(connection, tables=chosen) for name, connection in zip(names, (source, target), strict=True)
    }
    disabled = {trigger.item for trigger in _recorded(target, scope.name)}
    differences = without_newest_versions(compare_schemas(schemas), schemas)
    remarks = [
        f"the schemas differ: {item.kind} {item.schema + '.' if item.schema else ''}{item.name} {item.how}"
        + (f" on {', '.join(item.nodes)}" if item.how != "changed" else "")
        for item in without_equal_meaning(target, differences, schemas[names[1]], schemas[names[0]])
        # Differences of tables and columns are problems of the plan.
        if item.kind not in ("table", "column") and (item.kind, item.schema, item.name) not in disabled
    ]
    more = len(remarks) - _SHOWN
    return [*remarks[:_SHOWN], *([f"and {more} more differences: trueup schema-diff"] if more > 0 else [])]


def check_large_objects(
    source: Connection,
    target: Connection,
    scope: Scope,
    progress: TargetState,
    roles: Container[str],
    problems: list[Problem],
    remarks: list[str],
) -> None:
    """Add the reasons why large objects cannot be copied, or what they cost.

    The owners `roles` do not count: they will be created on the target, or are a problem already.
    """
    oids = large_objects.numbers(source)
    if not oids:
        return
    count = counted(len(oids), "large object")
    if not scope.has_large_objects:
        remarks.append(f"{count} not synced, because --tables names what is synced")
        return
    reasons = large_objects.problems(source, target, roles)
    problems += [Problem(LARGE_OBJECTS, what, f"{cure}, or name the tables with --tables") for what, cure in reasons]
    if not progress.is_filled and (taken := sorted(set(oids) & set(large_objects.numbers(target)))):
        what = f"these numbers are used on the target already: {shown_names(list(map(str, taken)), 5)}"
        problems.append(Problem(LARGE_OBJECTS, what, "remove these from the target (lo_unlink)"))
    remarks.append(
        f"{count}: writes to large objects fire no trigger, so all are read to find what changed, also twice inside of"
        " the pause of a switchover"
    )
