"""Write differences as lines of the JSON report. A report may have millions of them, so the JSON is built by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii as quoted

from trueup.rows.align import Difference, Group, Pair, changed_columns, kind_of, rows_in
from trueup.rows.encode import LongValue, Value
from trueup.rows.keys import KeyValues
from trueup.rows.spec import TableSpec


class Lines:
    """The lines of one pair: key, hashes, kind, changed columns, both rows, and which nodes agree."""

    def __init__(self, spec: TableSpec, pair: Pair, before: Mapping[KeyValues, bool] | None = None) -> None:
        """Prepare the lines; `before` has, for a rerun, whether the earlier report lists a key."""
        self._spec = spec
        self._pair = pair
        self._before = before
        self._keys = [f"{quoted(name)}: " for name in (("row_hash",) if spec.is_keyless else spec.key_names)]
        self._columns = [f"{quoted(name)}: " for name in spec.column_names]
        self._names: dict[str, str] = {}
        # JSON of lists of names, which are often the same.
        self._lists: dict[tuple[object, ...], str] = {}

    def of(
        self,
        differences: Iterator[Difference],
        max_rows: int | None = None,
        accepted: Mapping[int, str] | None = None,
        *,
        only_accepted: bool = False,
    ) -> Iterator[str]:
        """Yield a line per difference of the pair, until they have at least `max_rows` rows (None: all).

        `accepted` has the id of the acceptance of a difference, by its number; those are yielded with
        `only_accepted`, the others without.
        """
        count, accepted = 0, accepted or {}
        for number, difference in enumerate(differences):
            kind = kind_of(difference, self._pair)
            if kind is not None and (max_rows is None or count < max_rows):
                count += rows_in(difference, self._pair)
                if (number in accepted) == only_accepted:
                    line = self._line(difference, kind)
                    yield f'{{"accepted": "{accepted[number]}", {line[1:]}' if only_accepted else line

    def _line(self, difference: Difference, kind: str) -> str:
        left, right = map(difference.group_of, self._pair)
        assert left is not None
        assert right is not None
        key = ", ".join([name + quoted(value) for name, value in zip(self._keys, difference.key, strict=True)])
        hashes = ", ".join(
            [
                # As text: not every JSON parser keeps 64-bit integers.
                self._name(node) + ("null" if group.hash is None else f'"{group.hash}"')
                for group in difference.groups
                for node in group.nodes
            ]
        )
        columns = self._list(changed_columns(self._spec, left, right) if kind == "changed" else ())
        hot = '"hot": true, ' if difference.is_hot(self._pair) else ""
        one, other = map(self._name, self._pair)
        line = (
            f'{{"key": {{{key}}}, "hashes": {{{hashes}}}, "kind": "{kind}", {hot}"columns": {columns}, "rows": {{{one}'
            f'{self._row(left)}, {other}{self._row(right)}}}, "agree": {self._agree(difference)}'
        )
        if self._spec.is_keyless:
            line += f', "copies": {{{one}{_copies(left)}, {other}{_copies(right)}}}'
        if self._before is not None:
            line += f', "since": "{"remains" if self._before.get(difference.key) else "new"}"'
        return line + "}"

    def _row(self, group: Group) -> str:
        if group.hash is None or group.values is None:
            return "null"
        fields = [
            name + (quoted(value) if type(value) is str else _other(value))
            for name, value in zip(self._columns, group.values, strict=True)
        ]
        return "{" + ", ".join(fields) + "}"

    def _agree(self, difference: Difference) -> str:
        groups = tuple([group.nodes for group in difference.groups])
        text = self._lists.get(groups)
        if text is None:
            text = self._lists[groups] = json.dumps(groups)
        return text

    def _list(self, names: Sequence[str]) -> str:
        key = ("columns", *names)
        text = self._lists.get(key)
        if text is None:
            text = self._lists[key] = json.dumps(list(names))
        return text

    def _name(self, node: str) -> str:
        text = self._names.get(node)
        if text is None:
            text = self._names[node] = f"{quoted(node)}: "
        return text


def _other(value: Value) -> str:
    """Return the JSON of a value that is not text: NULL, or too long to be shown."""
    if isinstance(value, LongValue):
        return json.dumps({"length": value.length, "sha256": value.sha256})
    return json.dumps(value)


def _copies(group: Group) -> int:
    return group.copies if group.hash is not None else 0
