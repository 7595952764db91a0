"""The keys of claimed pods as changes: a source of changes reports them like those of the log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trueup.capture.log.pgoutput import Change, Relation, micros_of
from trueup.capture.triggers.model import Attached, Pod
from trueup.rows.keys import KeyValues

# The reason of a backfill that a user started; any other reason means that changes may be lost.
_BY_USER = "asked for"
_OPS = {"I": "insert", "U": "update", "D": "delete"}


@dataclass
class PodChanges:
    """The keys of claimed pods, as changes that were committed before a mark."""

    pods: list[Pod]
    sources: Mapping[int, Attached]
    # By attached table: what its changes are reported as. The key columns are those that the validation uses.
    relations: Mapping[str, Sequence[Relation]]
    mark: int
    # The mark, or the start of the read if pods before the mark may be missing.
    position: int
    is_cut: bool

    def __iter__(self) -> Iterator[Change]:
        for pod in self.pods:
            source = self.sources.get(pod.source)
            if source is not None:
                for relation in self.relations.get(source.table, ()):
                    yield from _changes(pod, source.key, relation, self.mark)


def _changes(pod: Pod, names: Sequence[str], relation: Relation, mark: int) -> Iterator[Change]:
    """Yield a change per key; one with an empty key counts as a change that cannot be checked."""
    micros = micros_of(pod.at)
    if pod.is_control:
        if (pod.payload or {}).get("type") == "truncate":
            yield Change(relation, "truncate", (), mark, 0, micros)
        elif lost_changes(pod):
            yield Change(relation, "update", (), mark, 0, micros)
        return
    places = [names.index(name) for name in relation.keys if name in names]
    is_known = len(places) == len(relation.keys)
    for key in _keys(pod, len(names)):
        # A pod of another width was written when the table had another key.
        used = tuple(key[place] for place in places) if is_known and len(key) == len(names) else ()
        yield Change(relation, _OPS.get(pod.op, "update"), used, mark, 0, micros)  # type: ignore[arg-type]


def lost_changes(pod: Pod) -> str:
    """Return why the changes of a table are incomplete: a trigger failed, or rows came with a new partition."""
    payload = pod.payload or {}
    if not pod.is_control or payload.get("type") == "truncate":
        return ""
    reason = str(payload.get("reason", _BY_USER))
    return str(payload.get("error") or reason) if payload.get("lost") or reason != _BY_USER else ""


def _keys(pod: Pod, width: int) -> list[KeyValues]:
    if pod.keys is None:
        return [(str(number),) for number in pod.ids]
    return [_parts(text) if width > 1 else (text,) for text in pod.keys]


def _parts(text: str) -> KeyValues:
    """Parse a key of several columns; a key that had one column when the pod was written is one part."""
    try:
        parts = json.loads(text)
    except ValueError:
        parts = None
    return tuple(map(str, parts)) if isinstance(parts, list) else (text,)
