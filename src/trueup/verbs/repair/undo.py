"""The way back: the rows of an undo file are put back where they are still as the repair left them.

A row that is neither as it was before the repair nor as the repair wrote it was changed by somebody since: it stays,
and is listed. An undo writes an undo file of its own, so that it can be taken back too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trueup.config.model import Config, Node
from trueup.db import catalog, reader
from trueup.db.names import display_name
from trueup.db.reader import TooMuch, borrow
from trueup.db.snapshot import Control
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed
from trueup.report.json_file import report_path
from trueup.report.repair import LeftRow, Outcome, RepairResult, write_repair_report
from trueup.rows.encode import column_spec, key_order
from trueup.rows.keys import KeyValues
from trueup.rows.spec import KeySpec, TableSpec
from trueup.rows.write.copy_text import key_id, key_of
from trueup.store import TaskStore
from trueup.task.open import open_task
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.lines import Line, lines_by_key
from trueup.verbs.repair.modes import ACTS, Act
from trueup.verbs.repair.prepare import Entry, Left, Prepared, Writes
from trueup.verbs.repair.undo_file import NOT_WRITTEN, read_after, read_before, read_head
from trueup.verbs.repair.write import Gathered, write_where_allowed

_CHANGED = "the row changed since the repair"
_KEYS_A_PORTION = 2000
_BYTES_A_PORTION = 8_000_000
_MOST_BYTES = 64_000_000
_MOST_LEFT = 1000


@dataclass(frozen=True)
class UndoRequest:
    """Which file, and whether to do it."""

    file: Path
    execute: bool = False
    fire_triggers: bool = False
    # The undo file of the undo itself, and the folder of its report.
    undo: str = ""
    folder: Path = Path()


@dataclass
class _Ending:
    head: Mapping[str, Any]
    nodes: tuple[Node, ...]
    gathered: Gathered
    remarks: list[str] = field(default_factory=list)
    written: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    remaining: int = 0


def run(request: UndoRequest, config: Config, *, store: TaskStore, progress: Progress | None = None) -> RepairResult:
    """Put the rows back; a dry run unless the request says to execute."""
    head = read_head(request.file)
    nodes = config.select(None, list(head["nodes"]))
    context = {"file": str(request.file), "nodes": ",".join(head["nodes"]), "execute": request.execute}
    started = datetime.now(timezone.utc)
    with open_task(
        store,
        "TABLE_UNDO",
        schema=head["schema"],
        table=head["table"],
        context=context,
        progress=progress,
        on_interrupt="each node is either unchanged or completely written; run the command again",
    ) as task:
        ending = _undo(request, head, nodes, task.task_id, task.progress)
        result = _result(request, ending, task.task_id, started)
        task.finish(
            {name: value for name, value in result.as_json().items() if name not in ("left", "examples")},
            failed=result.verdict == "FAILED",
            error="; ".join(f"{node}: {error}" for node, error in result.failed.items()),
            report=result.report,
        )
        return result


def _undo(
    request: UndoRequest, head: Mapping[str, Any], nodes: tuple[Node, ...], task_id: str, progress: Progress
) -> _Ending:
    application = f"trueup undo {task_id[:8]}"
    reader.allow(application)
    with ExitStack() as stack:
        stack.callback(reader.stop_all, application)
        controls = []
        for node in nodes:
            controls.append(Control(node, application=application))
            stack.callback(controls[-1].close)
        layouts = {control.node.name: _layout(control, head) for control in controls}
        undo = _path(request, head, "undo", "gz") if request.execute else None
        gathered = Gathered(layouts, undo, task=task_id, way=f"undo of {request.file}")
        stack.callback(gathered.close)
        ending = _Ending(head, nodes, gathered)
        progress.stage("reading", 0)
        for number, keys, rows in _portions(request.file, head):
            _decide(nodes[number], layouts[nodes[number].name], keys, rows, gathered, application)
            progress.advance(len(keys), rows=len(keys), more=len(keys))
        _write(request, ending, controls, application, progress)
        if request.execute:
            _verify(request, ending, application)
        return ending


def _layout(control: Control, head: Mapping[str, Any]) -> Layout:
    """The table on one node; refused where its columns are not those of the file."""
    node, schema, name = control.node.name, head["schema"], head["table"]
    table = catalog.read_table(control.connection, schema, name)
    columns = {} if table is None else {column.name: column for column in table.columns}
    specs = {column.name: column_spec(column) for column in columns.values()}
    types: Mapping[str, str] = head["columns"][node]
    if table is None or any(each not in specs or specs[each].type != types[each] for each in types):
        raise CheckFailed(
            ["the table, or a column of it, is not as it was when the undo file was written"],
            cure="undo the change of the table first",
            node=node,
            table=display_name(schema, name),
        )
    key = tuple(KeySpec(specs[each], key_order([columns[each]])) for each in head["key"])
    spec = TableSpec(
        schema,
        name,
        key,
        tuple(specs[each] for each in head["guards"][node]),
        digest=head["digest"],
        numeric="representation",
        seed=head["seed"],
    )
    fixed = tuple(column.name for column in columns.values() if column.identity == "a")
    return Layout(spec, tuple(specs[each] for each in types), {node: ()}, {node: fixed})


_Row = tuple["bytes | None", "bytes | None", "bytes | None"]  # guard and line before, guard after


def _portions(file: Path, head: Mapping[str, Any]) -> Iterator[tuple[int, list[KeyValues], list[_Row]]]:
    """The rows of the file by node, in portions of bounded size."""
    width = len(head["key"])
    after = {(node, key): guard for node, key, guard in read_after(file, width)}
    keys: dict[int, list[KeyValues]] = defaultdict(list)
    rows: dict[int, list[_Row]] = defaultdict(list)
    sizes: Counter[int] = Counter()
    for node, key, guard, said, line in read_before(file, width):
        keys[node].append(key_of(key))
        made = after.get((node, key), said)
        rows[node].append((guard, line, guard if made == NOT_WRITTEN else made))
        sizes[node] += len(line or b"")
        if len(keys[node]) == _KEYS_A_PORTION or sizes[node] > _BYTES_A_PORTION:
            yield node, keys.pop(node), rows.pop(node)
            sizes[node] = 0
    for node in list(keys):
        yield node, keys[node], rows[node]


def _decide(
    node: Node, layout: Layout, keys: Sequence[KeyValues], rows: Sequence[_Row], gathered: Gathered, application: str
) -> None:
    """What is still as the repair left it is put back."""
    now = _read(node, layout, keys, application)
    entries: list[Entry] = []
    left, agree = [], 0
    for key, (guard, line, after) in zip(keys, rows, strict=True):
        name = key_id(key)
        found = now.get(name)
        mine = found.guard if found else None
        if mine == guard:
            agree += 1
        elif mine != after:
            left.append(Left(key, (node.name,), _CHANGED))
        else:
            act: Act = "delete" if line is None else "update" if found else "insert"
            present = found.fields if found else None
            entries.append((act, key, name, mine, present, line, guard or b""))
    gathered.add(Prepared(len(keys), agree, {node.name: Writes.of(entries)} if entries else {}, left))


def _read(node: Node, layout: Layout, keys: Sequence[KeyValues], application: str) -> dict[bytes, Line]:
    with borrow(node, None, application=application, retries=3) as reading:
        try:
            return lines_by_key(reading, layout, keys, timeout=0, most_bytes=_MOST_BYTES if len(keys) > 1 else 0)
        except TooMuch:
            half = len(keys) // 2
    return {
        **_read(node, layout, keys[:half], application),
        **_read(node, layout, keys[half:], application),
    }


def _write(
    request: UndoRequest, ending: _Ending, controls: Sequence[Control], application: str, progress: Progress
) -> None:
    write_where_allowed(
        ending,
        ending.nodes,
        controls,
        execute=request.execute,
        fire_triggers=request.fire_triggers,
        moved=_CHANGED,
        application=application,
        progress=progress,
    )


def _verify(request: UndoRequest, ending: _Ending, application: str) -> None:
    """Every row is looked at again: how many are not as they were?"""
    for node, keys, rows in _portions(request.file, ending.head):
        where = ending.nodes[node]
        now = _read(where, ending.gathered.layouts[where.name], keys, application)
        for key, (guard, _, _) in zip(keys, rows, strict=True):
            found = now.get(key_id(key))
            ending.remaining += (found.guard if found else None) != guard


def _path(request: UndoRequest, head: Mapping[str, Any], kind: str, ending: str) -> Path:
    if kind == "undo" and request.undo:
        return Path(request.undo).absolute()
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d%H%M%S")
    return report_path(request.folder.absolute(), head["schema"], head["table"], stamp, kind=kind, ending=ending)


def _result(request: UndoRequest, ending: _Ending, task_id: str, started: datetime) -> RepairResult:
    gathered, head = ending.gathered, ending.head
    left = [LeftRow(dict(zip(head["key"], each.key, strict=True)), each.nodes, each.reason) for each in gathered.left]
    verdict: Outcome = "UNDONE"
    if not request.execute:
        verdict = "DRY RUN"
    elif ending.failed:
        verdict = "FAILED"
    elif ending.remaining:
        verdict = "REMAINS"
    path = _path(request, head, "undone", "json")
    result = RepairResult(
        verdict=verdict,
        verb="undo",
        table=display_name(head["schema"], head["table"]),
        mode=f"repair {head['task'][:8]}, {head['way']}",
        nodes=gathered.nodes,
        of=str(request.file),
        keys=gathered.keys,
        agree=gathered.agree,
        planned={node: {act: counts[act] for act in ACTS} for node, counts in gathered.planned.items()},
        written=ending.written,
        failed=ending.failed,
        left_counts=dict(Counter(each.reason for each in left)),
        left=tuple(left[:_MOST_LEFT]),
        examples=tuple(gathered.examples),
        seconds=round((datetime.now(timezone.utc) - started).total_seconds(), 3),
        engine="local",
        task_id=task_id,
        executed=request.execute,
        remaining=ending.remaining,
        undo=gathered.undo_path,
        report=str(path),
        remarks=tuple(ending.remarks),
    )
    write_repair_report(path, result, left)
    return result
