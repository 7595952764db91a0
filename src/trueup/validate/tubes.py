"""Changes out of a tube, where the source's log is not logical: triggers note the touched keys.

Pods have no position. So after pods are claimed, a mark is written into the source's log: all that they speak of was
committed before it. They are judged when the syncer has passed the mark, and their numbers are kept in the checkpoint:
pods that are deleted late are neither judged nor counted twice.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING

from trueup.errors import CheckFailed
from trueup.rows.keys import KeyValues
from trueup.tube.call import Tubes
from trueup.tube.model import Pod
from trueup.validate.batch import UNCHECKED, Batch
from trueup.validate.pending import Touch

if TYPE_CHECKING:
    from trueup.validate.validator import Validator

_MOST = 400
_REST_SECONDS = 0.5
_OPS = {"I": "insert", "U": "update", "D": "delete"}


class TubeChanges:
    """The pods of a tube; one worker for all its partitions."""

    def __init__(self, validator: Validator) -> None:
        self._of = validator
        self._tubes: Tubes | None = None
        self._sources: dict[int, str] = {}
        self._partitions = 1
        self._held: list[Pod] = []
        # Behind all that the held pods speak of; 0: nothing is claimed.
        self._mark = 0
        self._rest_until = 0.0
        self._is_all = False

    def open(self) -> int:
        """Lock all partitions, and delete what was judged before."""
        of, name = self._of, self._of.settings.tube
        self._tubes = Tubes(of.nodes[0])
        tube = next((each for each in self._tubes.list() if each.tube == name), None)
        if tube is None:
            raise CheckFailed([f"there is no tube {name}"], cure=f"trueup tube ensure {name}", node=of.nodes[0].name)
        self._partitions = tube.partitions
        self._sources = {each.source: each.table for each in tube.tables}
        for name_of_table in list(of.tables.pairs):
            if name_of_table not in self._sources.values():
                of.tables.stop(name_of_table, f"it is not attached to the tube {name}")
        for partition in range(tube.partitions):
            self._locks(partition)
        done = of.meta.rows("pods", name=of.name)[0]["pods"]
        if done:
            self._tubes.delete(name, done)
        self._held, self._mark = [], 0
        position = of.stored.position if of.stored.position is not None else of.mark()
        of.meta.rows("begin_at", name=of.name, position=position, slot=of.stored.slot, gap=None)
        return position

    def close(self) -> None:
        """End its session, and the locks with it."""
        if self._tubes is not None:
            self._tubes.close()

    def look(self) -> None:
        """Nothing can be lost that a claim would not show."""

    def read(self, upto: int) -> bool:
        """Judge the pods that are held if the syncer has passed their mark, else claim some."""
        of = self._of
        assert self._tubes is not None
        if not self._mark:
            if time.monotonic() < self._rest_until:
                return False
            found = [self._tubes.claim(of.settings.tube, each, most=_MOST) for each in range(self._partitions)]
            self._held = [pod for pods in found for pod in pods]
            self._is_all = all(len(pods) < _MOST for pods in found)
            self._mark = of.mark()
        if self._mark > upto:
            return False
        batch = self._batch()
        numbers = [pod.seq for pod in self._held]
        position = self._mark if self._is_all else of.position
        # Marks are written after what was applied: the very position of the syncer is never met.
        of.has_reached = of.has_reached or self._is_all
        try:
            with of.meta.together():
                of.first_look(batch.take())
                of.checkpoint(batch, max(of.position, position), put_pods={"pods": numbers})
        finally:
            of.looks.count()
        if numbers:
            self._tubes.delete(of.settings.tube, numbers)
        else:
            # Every claim writes a mark: an idle tube is not asked all the time.
            self._rest_until = time.monotonic() + _REST_SECONDS
        self._held, self._mark = [], 0
        return bool(numbers)

    def let_go(self, *, at_once: bool) -> None:
        """Pods are deleted as soon as they are judged."""

    def _locks(self, partition: int) -> None:
        from trueup.tube.pods import take_lock

        assert self._tubes is not None
        take_lock(self._tubes.session, self._of.settings.tube, partition, wait=15.0)

    def _batch(self) -> Batch:
        of = self._of
        batch = Batch(of.tables.pairs, of.position)
        for pod in self._held:
            name = self._sources.get(pod.source, "")
            pair = of.tables.pairs.get(name)
            keys = _keys(pod)
            if pair is None:
                if name in of.tables.routes:
                    batch.counts.setdefault(name, Counter())[UNCHECKED] += len(keys)
                continue
            if pod.is_control:
                if (pod.payload or {}).get("type") == "truncate":
                    batch.counts.setdefault(name, Counter())["truncate"] += 1
                    batch.truncated[name] = Touch("truncate", self._mark, self._mark, 0, pod.at)
                continue
            op = _OPS.get(pod.op, "update")
            batch.counts.setdefault(name, Counter())[op] += len(keys)
            for key in keys:
                batch.touch(name, key, Touch(op, self._mark, self._mark, 0, pod.at))
        return batch


def _keys(pod: Pod) -> list[KeyValues]:
    if pod.keys is None:
        return [(str(each),) for each in pod.ids]
    return [tuple(json.loads(each)) if each.startswith("[") else (each,) for each in pod.keys]
