"""Undo a repair: put the rows of an undo file back where they are still as the repair left them.

A row that differs both from the row before the repair and from the row that the repair wrote was changed later: it is
left as it is and listed. An undo writes an undo file of its own, so it can be undone too.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from trueup.config.model import Config, Node
from trueup.config.wording import counted
from trueup.db import catalog
from trueup.db.names import display_name
from trueup.db.reader import ResultTooLarge, borrow
from trueup.db.snapshot import Control
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed
from trueup.report.many import folder_of_run
from trueup.report.repair import RepairResult
from trueup.report.repairs import RepairsResult, write_repairs
from trueup.rows.encode import column_spec, key_order
from trueup.rows.keys import KeyValues
from trueup.rows.spec import KeySpec, TableSpec
from trueup.rows.write.copy_text import key_id, key_of
from trueup.store import TaskStore
from trueup.task.nodes import open_nodes
from trueup.task.open import OpenTask, open_task
from trueup.verbs.repair.decisions import Decisions, Rows
from trueup.verbs.repair.identity import check_same_databases, identity_on
from trueup.verbs.repair.layout import Layout, fixed_columns
from trueup.verbs.repair.lines import Line, lines_by_key
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.request import Writing
from trueup.verbs.repair.result import Ending, Facts, conclude, failing, record, record_run, undo_path
from trueup.verbs.repair.undo_file import NOT_WRITTEN, Place, read_after, read_before, read_head
from trueup.verbs.repair.write import NOTHING_WRITTEN, write_nodes
from trueup.verbs.repair.writes import Decided, Entry, Left, Writes

_CHANGED = "the row changed since the repair"
_INTERRUPTED = "each node is either unchanged or completely written; run the command again"
_KEYS_PER_BATCH = 2000
_BYTES_PER_BATCH = 8_000_000
MAX_BYTES = 64_000_000


@dataclass(frozen=True)
class UndoRequest:
    """The undo file, and how to write."""

    file: Path
    execute: bool = False
    writing: Writing = field(default_factory=Writing)
    # Whether the databases may be other ones than those of the file, or have the table created again.
    other_database: bool = False
    # The undo file of the undo itself, and the folder of its report.
    undo: str = ""
    folder: Path = Path()


def run(request: UndoRequest, config: Config, *, store: TaskStore, progress: Progress | None = None) -> RepairResult:
    """Put the rows of a table back; a dry run unless the request says to execute."""
    head = read_head(request.file)
    with _open(request, head, store, progress, is_run=False) as task:
        (result,) = _undo(request, head, config.select(None, list(head["nodes"])), task)
        record(task, result)
        return result


def run_many(
    request: UndoRequest, config: Config, *, store: TaskStore, progress: Progress | None = None
) -> RepairsResult:
    """Put the rows of all tables of a run back, each node in one transaction."""
    head, started = read_head(request.file), time.monotonic()
    with _open(request, head, store, progress, is_run=True) as task:
        folder = folder_of_run(str(request.folder), "undo", task.task_id)
        results = _undo(replace(request, folder=folder), head, config.select(None, list(head["nodes"])), task)
        summary = RepairsResult(
            executed=request.execute,
            tables=tuple(results),
            verb="undo",
            mode=results[0].mode,
            nodes=tuple(head["nodes"]),
            of=str(request.file),
            seconds=round(time.monotonic() - started, 3),
            task_id=task.task_id,
            undo=next((result.undo for result in results if result.undo), ""),
        )
        return record_run(task, write_repairs(folder, summary, html=False))


def _open(
    request: UndoRequest, head: Mapping[str, Any], store: TaskStore, progress: Progress | None, *, is_run: bool
) -> AbstractContextManager[OpenTask]:
    tables = head["tables"]
    return open_task(
        store,
        "TABLES_UNDO" if is_run else "TABLE_UNDO",
        schema="" if is_run else tables[0]["schema"],
        table=counted(len(tables), "table") if is_run else tables[0]["table"],
        context={"file": str(request.file), "nodes": ",".join(head["nodes"]), "execute": request.execute},
        progress=progress,
        on_interrupt=_INTERRUPTED,
    )


def is_of_many(file: Path) -> bool:
    """Return whether an undo file is of a repair of several tables."""
    return len(read_head(file)["tables"]) > 1


def _undo(request: UndoRequest, head: Mapping[str, Any], nodes: tuple[Node, ...], task: OpenTask) -> list[RepairResult]:
    task.on_failure = task.on_interrupt = NOTHING_WRITTEN
    application, progress = f"trueup undo {task.short_id}", task.progress
    way = f"repair {head['task'][:8]}, {head['way']}"
    facts = Facts("undo", way, request.execute, request.folder, datetime.now(timezone.utc))
    with ExitStack() as stack:
        controls = stack.enter_context(open_nodes(nodes, application))
        tables = [
            {
                control.node.name: _layout(control, table)
                for control in controls
                if control.node.name in table["columns"]
            }
            for table in head["tables"]
        ]
        if not request.other_database:
            check_same_databases(head["tables"], tables)
        rows = None
        if request.execute:
            new_path = partial(undo_path, request.folder, [(each["schema"], each["table"]) for each in head["tables"]])
            rows = Rows(request.undo, new_path, tables, task=task.task_id, mode=f"undo of {request.file}")
            stack.callback(rows.close)
        every = [Decisions(number, layouts, rows) for number, layouts in enumerate(tables)]
        progress.stage("reading", 0)
        for (table, number), keys, before in _batches(request.file, head):
            layout = tables[table][nodes[number].name]
            every[table].add(_decide(nodes[number], layout, keys, before, application))
            progress.advance(len(keys), rows=len(keys), more=len(keys))
        endings = [
            Ending(facts, next(iter(layouts.values())).spec, str(request.file), decisions, "local", task.task_id)
            for layouts, decisions in zip(tables, every, strict=True)
        ]
        write_nodes(
            endings,
            controls,
            rows,
            writing=request.writing,
            changed=_CHANGED,
            application=application,
            task=task,
            interrupted=_INTERRUPTED,
        )
        if request.execute:
            progress.stage("comparing keys", sum(decisions.keys for decisions in every))
            with failing(endings, "the comparison of the rows"):
                _count_remaining(request, head, nodes, endings, application)
        return [conclude(ending) for ending in endings]


def _layout(control: Control, head: Mapping[str, Any]) -> Layout:
    """Return the layout of the table on one node; raise if its columns are not those of the file."""
    node, schema, name = control.node.name, head["schema"], head["table"]
    table = catalog.read_table(control.connection, schema, name)
    columns = {} if table is None else {column.name: column for column in table.columns}
    specs = {column.name: column_spec(column) for column in columns.values()}
    types: Mapping[str, str] = head["columns"][node]
    if table is None or any(column not in specs or specs[column].type != types[column] for column in types):
        raise CheckFailed(
            ["the table was dropped, or its columns or their types changed, since the undo file was written"],
            cure="restore the definition of the table first",
            node=node,
            table=display_name(schema, name),
        )
    spec = TableSpec(
        schema,
        name,
        tuple(KeySpec(specs[column], key_order([columns[column]])) for column in head["key"]),
        tuple(specs[column] for column in head["guards"][node]),
        digest=head["digest"],
        numeric="representation",
        seed=head["seed"],
    )
    identity = identity_on(control, schema, name)
    columns_of_line = tuple(specs[column] for column in types)
    return Layout(spec, columns_of_line, {node: ()}, {node: fixed_columns(table)}, {node: identity})


_Row = tuple["bytes | None", "bytes | None", "bytes | None"]  # guard and line before, guard after


def _batches(file: Path, head: Mapping[str, Any]) -> Iterator[tuple[Place, list[KeyValues], list[_Row]]]:
    """Yield the numbers of table and node, keys and rows of the file, in batches of bounded size."""
    widths = [len(table["key"]) for table in head["tables"]]
    after = {(place, key): guard for place, key, guard in read_after(file, widths)}
    keys: dict[Place, list[KeyValues]] = defaultdict(list)
    rows: dict[Place, list[_Row]] = defaultdict(list)
    sizes: Counter[Place] = Counter()
    for place, key, guard, made_before, line in read_before(file, widths):
        keys[place].append(key_of(key))
        made = after.get((place, key), made_before)
        rows[place].append((guard, line, guard if made == NOT_WRITTEN else made))
        sizes[place] += len(line or b"")
        if len(keys[place]) == _KEYS_PER_BATCH or sizes[place] > _BYTES_PER_BATCH:
            yield place, keys.pop(place), rows.pop(place)
            sizes[place] = 0
    for place in list(keys):
        yield place, keys[place], rows[place]


def _decide(node: Node, layout: Layout, keys: Sequence[KeyValues], rows: Sequence[_Row], application: str) -> Decided:
    """Put a row back if it is still as the repair left it."""
    lines = _read(node, layout, keys, application)
    entries: list[Entry] = []
    left, agree = [], 0
    for key, (guard, line, after) in zip(keys, rows, strict=True):
        name = key_id(key)
        row = lines.get(name)
        current = row.guard if row else None
        if current == guard:
            agree += 1
        elif current != after:
            left.append(Left(key, (node.name,), _CHANGED))
        else:
            act: Act = "delete" if line is None else "update" if row else "insert"
            entries.append((act, key, name, current, row.fields if row else None, line, guard or b""))
    return Decided(len(keys), agree, {node.name: Writes.of(entries)} if entries else {}, left)


def _read(node: Node, layout: Layout, keys: Sequence[KeyValues], application: str) -> dict[bytes, Line]:
    with borrow(node, None, application=application, retries=3) as reader:
        try:
            return lines_by_key(reader, layout, keys, timeout=0, most_bytes=MAX_BYTES if len(keys) > 1 else 0)
        except ResultTooLarge:
            half = len(keys) // 2
    return {**_read(node, layout, keys[:half], application), **_read(node, layout, keys[half:], application)}


def _count_remaining(
    request: UndoRequest, head: Mapping[str, Any], nodes: Sequence[Node], endings: Sequence[Ending], application: str
) -> None:
    """Read every row again, and count per table those that are not as they were before the repair."""
    for (table, number), keys, rows in _batches(request.file, head):
        layout = endings[table].decisions.layouts[nodes[number].name]
        lines = _read(nodes[number], layout, keys, application)
        for key, (guard, _, _) in zip(keys, rows, strict=True):
            row = lines.get(key_id(key))
            endings[table].remaining += (row.guard if row else None) != guard
