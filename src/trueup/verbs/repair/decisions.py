"""What all tasks decided: counts, examples, keys that are left, and the rows to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trueup import __version__
from trueup.report.repair import Example
from trueup.rows.write.copy_text import split, text_of_field
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.spool import Spool
from trueup.verbs.repair.undo_file import UndoFile
from trueup.verbs.repair.writes import EXAMPLES, Decided, Left, Writes

# Characters of a value that an example shows.
_SHOWN = 200


class Decisions:
    """Collects what the tasks decide. With an undo file, the rows before go there and the rows after to spools."""

    def __init__(self, layouts: Mapping[str, Layout], undo: Path | None, *, task: str, mode: str) -> None:
        self.nodes = nodes = tuple(layouts)
        self.layouts = layouts
        self.keys = self.agree = 0
        self.planned: dict[str, Counter[Act]] = {node: Counter() for node in nodes}
        self.left: list[Left] = []
        self.examples: list[Example] = []
        self.spools: dict[str, Spool] = {}
        self.undo: UndoFile | None = None
        # The path of the undo file once it is complete.
        self.undo_path = ""
        if undo is not None:
            self.undo = UndoFile(undo, nodes, {"trueup": __version__, "task": task, "way": mode, **_head(layouts)})

    def add(self, decided: Decided) -> None:
        """Add the decisions of one batch."""
        self.keys += decided.keys
        self.agree += decided.agree
        self.left += decided.left
        for node, writes in decided.writes.items():
            self.planned[node].update(writes.acts)
            self._add_examples(node, writes)
            if self.undo is not None:
                self.undo.before(node, writes)
                if node not in self.spools:
                    self.spools[node] = Spool(self.undo.path.parent)
                self.spools[node].add(writes.without_rows_before())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not any(counts.total() for counts in self.planned.values())

    def complete_undo_file(self) -> UndoFile | None:
        """Put the undo file onto the disk under its name; None if there is nothing to write."""
        if self.is_empty or self.undo is None:
            return None
        self.undo.keep()
        # From here on `close` keeps the file.
        undo, self.undo = self.undo, None
        self.undo_path = str(undo.path)
        return undo

    def close(self) -> None:
        """Free the disk space, and remove an undo file that is not complete."""
        for spool in self.spools.values():
            spool.close()
        if self.undo is not None:
            self.undo.discard()

    def _add_examples(self, node: str, writes: Writes) -> None:
        layout = self.layouts[node]
        for place in writes.examples():
            act = writes.acts[place]
            if sum((example.node, example.act) == (node, act) for example in self.examples) < EXAMPLES:
                before, after = (_values(layout, node, line) for line in (writes.before[place], writes.after[place]))
                key = dict(zip(layout.spec.key_names, writes.keys[place], strict=True))
                self.examples.append(Example(node, act, key, before, after))


def _values(layout: Layout, node: str, line: bytes | None) -> dict[str, str | None] | None:
    """Return the columns of a line, long values cut: for display only."""
    if line is None:
        return None
    names = [column.name for column in layout.columns_of(node)]
    values: dict[str, str | None] = {}
    for name, field in zip(names, split(line), strict=False):
        if len(field) > 4 * _SHOWN:
            values[name] = field[:_SHOWN].decode(errors="replace") + f"… ({len(field):,} bytes)"
        else:
            values[name] = text_of_field(field)
    return values


def _head(layouts: Mapping[str, Layout]) -> dict[str, Any]:
    """Return what an undo needs of the table: the columns of a line and the columns of the guard, per node."""
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
