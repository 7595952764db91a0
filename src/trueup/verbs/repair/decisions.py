"""What all tasks decided for a table: counts, examples, keys that are left; and the rows to write, of all tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trueup import __version__
from trueup.report.repair import Example
from trueup.rows.write.copy_text import split, text_of_field
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.spool import Spool, SpoolFile
from trueup.verbs.repair.undo_file import UndoFile
from trueup.verbs.repair.writes import EXAMPLES, Decided, Left, Writes

# Characters of a value that an example shows.
_SHOWN = 200


class Rows:
    """The rows of all tables until they are written: the rows before in the undo file, the rows after on spools."""

    def __init__(
        self, path: str, new_path: Callable[[], Path], tables: Sequence[Mapping[str, Layout]], *, task: str, mode: str
    ) -> None:
        """`path` is that of the undo file; without one, `new_path` returns names until one is free."""
        nodes = tuple(dict.fromkeys(node for layouts in tables for node in layouts))
        head = {"trueup": __version__, "task": task, "way": mode, "tables": [_head(layouts) for layouts in tables]}
        self.undo: UndoFile | None = (
            UndoFile(Path(path).absolute(), nodes, head) if path else UndoFile(new_path(), nodes, head, new_path)
        )
        self.is_empty = True
        # The path of the undo file once it is complete.
        self.undo_path = ""
        self._files: dict[str, SpoolFile] = {}
        self._spools: dict[tuple[int, str], Spool] = {}

    def add(self, table: int, node: str, writes: Writes) -> None:
        """Keep the rows of one batch of a table."""
        assert self.undo is not None
        self.is_empty = False
        self.undo.before(table, node, writes)
        if node not in self._files:
            self._files[node] = SpoolFile(self.undo.path.parent)
        self._spools.setdefault((table, node), Spool(self._files[node])).add(writes.without_rows_before())

    def spool(self, table: int, node: str) -> Spool:
        """Return the rows after of a table on a node."""
        return self._spools[table, node]

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
        for file in self._files.values():
            file.close()
        if self.undo is not None:
            self.undo.discard()


class Decisions:
    """Collects what the tasks decide for the table with this number; without `rows` nothing will be written."""

    def __init__(self, number: int, layouts: Mapping[str, Layout], rows: Rows | None) -> None:
        self.number = number
        self.nodes = tuple(layouts)
        self.layouts = layouts
        self.keys = self.agree = 0
        self.planned: dict[str, Counter[Act]] = {node: Counter() for node in layouts}
        # The places of the columns that updates change.
        self.changed: dict[str, set[int]] = {node: set() for node in layouts}
        self.left: list[Left] = []
        self.examples: list[Example] = []
        self.rows = rows

    def add(self, decided: Decided) -> None:
        """Add the decisions of one batch."""
        self.keys += decided.keys
        self.agree += decided.agree
        self.left += decided.left
        for node, writes in decided.writes.items():
            self.planned[node].update(writes.acts)
            self.changed[node].update(*set(writes.places))
            self._add_examples(node, writes)
            if self.rows is not None:
                self.rows.add(self.number, node, writes)

    @property
    def undo_path(self) -> str:
        """The path of the undo file if it has rows of this table."""
        return self.rows.undo_path if self.rows and any(counts.total() for counts in self.planned.values()) else ""

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
        "databases": {node: layout.identities[node].as_json() for node, layout in layouts.items()},
    }
