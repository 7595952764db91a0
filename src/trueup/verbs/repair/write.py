"""From what the tasks decided to the nodes: kept on disk, the old rows in the undo file, then all nodes at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from trueup import __version__
from trueup.config.model import Node
from trueup.db.snapshot import Control
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed, TrueupError
from trueup.report.repair import Example
from trueup.rows.write.copy_text import split, text_of_field
from trueup.task.together import together
from trueup.verbs.repair.execute import NodeWork, Written, write_node
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.modes import ACTS, Act
from trueup.verbs.repair.pile import Pile
from trueup.verbs.repair.prepare import EXAMPLES, Left, Prepared, Writes, first_of_each, without_rows
from trueup.verbs.repair.rights import Rights, rights_on
from trueup.verbs.repair.undo_file import UndoFile

_LONGEST = 200


class Gathered:
    """What the tasks have decided: counts, examples, what was left; and, when it is executed, the rows themselves."""

    def __init__(self, layouts: Mapping[str, Layout], undo: Path | None, *, task: str, way: str) -> None:
        self.nodes = nodes = tuple(layouts)
        self.layouts = layouts
        self.keys = self.agree = 0
        self.planned: dict[str, Counter[Act]] = {node: Counter() for node in nodes}
        self.left: list[Left] = []
        self.examples: list[Example] = []
        self.piles: dict[str, Pile] = {}
        self.undo: UndoFile | None = None
        # Where it is, once it is kept.
        self.undo_path = ""
        if undo is not None:
            self.undo = UndoFile(undo, nodes, {"trueup": __version__, "task": task, "way": way, **_head(layouts)})

    def add(self, answer: Prepared) -> None:
        """One portion more."""
        self.keys += answer.keys
        self.agree += answer.agree
        self.left += answer.left
        for node, writes in answer.writes.items():
            self.planned[node].update(writes.acts)
            self._show(node, writes)
            if self.undo is not None:
                self.undo.before(node, writes)
                if node not in self.piles:
                    self.piles[node] = Pile(self.undo.path.parent)
                self.piles[node].add(without_rows(writes))

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to write."""
        return not any(counts.total() for counts in self.planned.values())

    def close(self) -> None:
        """Let go of the disk; an undo file of a run that wrote nothing goes too."""
        for pile in self.piles.values():
            pile.close()
        if self.undo is not None:
            self.undo.discard()

    def _show(self, node: str, writes: Writes) -> None:
        layout = self.layouts[node]
        for at in first_of_each(writes.acts):
            act = writes.acts[at]
            if sum((each.node, each.act) == (node, act) for each in self.examples) < EXAMPLES:
                before, after = (_values(layout, node, line) for line in (writes.before[at], writes.after[at]))
                key = dict(zip(layout.spec.key_names, writes.keys[at], strict=True))
                self.examples.append(Example(node, act, key, before, after))


def _values(layout: Layout, node: str, line: bytes | None) -> dict[str, str | None] | None:
    """The columns of a line, long values cut: only to be looked at."""
    if line is None:
        return None
    names = [column.name for column in layout.columns_of(node)]
    found: dict[str, str | None] = {}
    for name, field in zip(names, split(line), strict=False):
        if len(field) > 4 * _LONGEST:
            found[name] = field[:_LONGEST].decode(errors="replace") + f"… ({len(field):,} bytes)"
        else:
            found[name] = text_of_field(field)
    return found


def _head(layouts: Mapping[str, Layout]) -> dict[str, Any]:
    """All that an undo needs to know of the table: how its lines are made, and how a row is known again."""
    spec = next(iter(layouts.values())).spec
    return {
        "schema": spec.schema,
        "table": spec.table,
        "key": list(spec.key_names),
        "seed": spec.seed,
        "digest": spec.digest,
        "columns": {
            node: {column.name: column.type for column in layout.columns_of(node)} for node, layout in layouts.items()
        },
        "guards": {node: list(layout.guard(node).column_names) for node, layout in layouts.items()},
    }


class _Writer:
    """One node being written; Ctrl-C ends its query, and so its transaction."""

    def __init__(self, work: NodeWork, undo: UndoFile, progress: Progress) -> None:
        self._work, self._undo, self._progress = work, undo, progress
        self._open: list[Any] = []
        self.node = work.node.name

    def write(self) -> Written | TrueupError:
        try:
            return write_node(self._work, self._undo, self._progress, self._open)
        except TrueupError as error:
            return error

    def cancel(self) -> None:
        for connection in self._open:
            with suppress(Exception):
                connection.cancel_safe(timeout=5)


def write_all(
    gathered: Gathered, nodes: Mapping[str, Node], rights: Mapping[str, Rights], application: str, progress: Progress
) -> dict[str, Written | TrueupError]:
    """Every node in a transaction of its own, all at the same time; one that fails does not keep the others."""
    if gathered.is_nothing or gathered.undo is None:
        return {}
    gathered.undo.keep()
    undo, gathered.undo_path, gathered.undo = gathered.undo, str(gathered.undo.path), None
    works = [
        NodeWork(nodes[node], gathered.layouts[node], pile, rights[node].silent, application, rights[node].is_watched)
        for node, pile in gathered.piles.items()
    ]
    progress.stage("writing", sum(pile.counts.total() for pile in gathered.piles.values()))
    writers = [_Writer(work, undo, progress) for work in works]
    outcomes = together(writers, lambda writer: writer.write())
    return dict(zip((writer.node for writer in writers), outcomes, strict=True))


class Ending(Protocol):
    """What the end of a run is told of its writing, be it a repair or an undo."""

    gathered: Gathered
    remarks: list[str]
    written: dict[str, dict[str, int]]
    failed: dict[str, str]


def write_where_allowed(
    ending: Ending,
    nodes: Sequence[Node],
    controls: Sequence[Control],
    *,
    execute: bool,
    fire_triggers: bool,
    moved: str,
    application: str,
    progress: Progress,
) -> None:
    """Check the rights on all nodes, then write each in a transaction of its own; a dry run ends before that.

    `moved`: what is said of rows that changed between reading and writing.
    """
    gathered = ending.gathered
    rights = {
        control.node.name: rights_on(
            control,
            gathered.layouts[control.node.name],
            gathered.planned[control.node.name],
            fire_triggers=fire_triggers,
        )
        for control in controls
    }
    reasons = [reason for each in rights.values() for reason in each.reasons]
    ending.remarks += [remark for each in rights.values() for remark in each.remarks]
    if not execute:
        ending.remarks += [f"--execute would be refused: {reason}" for reason in reasons]
        return
    if reasons:
        raise CheckFailed(reasons, cure="nothing was written on any node; mend what is named and run again")
    by_name = {node.name: node for node in nodes}
    for node, outcome in write_all(gathered, by_name, rights, application, progress).items():
        if isinstance(outcome, TrueupError):
            ending.failed[node] = f"{outcome}{f' ({outcome.cure})' if outcome.cure else ''}"
        else:
            ending.written[node] = {act: outcome.counts[act] for act in ACTS}
            gathered.left += [Left(key, (node,), moved) for key in outcome.moved]
