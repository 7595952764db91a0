"""Changes that triggers noted, where the source's log is not logical: out of a tube, or out of a change log of our own.

A change log is a tube as well. It is made at the first start, in a schema of its own, and goes with the validation; a
tube is somebody's, and only worked off.

Pods have no position. So before pods are claimed, a mark is written into the source's log. Whoever was committed before
it is seen by the claim, but for one case: between its record in the log and the moment when others see it, a commit may
wait. It still has its lock on the pods then. So those who have one right after the mark are waited for. The mark is on
the disk, and so is the record: a moment is enough, unless a commit waits for a standby. As long as somebody may do
that, what is claimed is judged, and the position stays.

Pods are judged when the syncer has passed the mark, and their numbers are kept in the checkpoint: pods that are deleted
late are neither judged nor counted twice.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.capture.log.slot import SlotLost, lsn_text
from trueup.capture.triggers import pods as tube_pods
from trueup.capture.triggers import tubes as tube_functions
from trueup.capture.triggers.install import install
from trueup.capture.triggers.model import Attached, Pod, TubeInfo
from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.db.statements import load
from trueup.errors import CheckFailed, QueryError
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.batch import UNCHECKED, Batch
from trueup.verbs.validate.meta import as_json
from trueup.verbs.validate.pending import Touch
from trueup.verbs.validate.settings import CHANGELOG, Settings

if TYPE_CHECKING:
    from trueup.verbs.validate.validator import Validator

# Where the change logs of validations are. Not where that of a sync is: what a sync writes must be seen here.
CHANGES_SCHEMA = "trueup_changes"
_MOST = 400
_REST_SECONDS = 0.5
_SEE_SECONDS = 10.0
_WRITERS_SECONDS = 1.0
# The reason of a backfill that somebody wanted; any other one is a reason for concern.
_ASKED = "asked for"
_OPS = {"I": "insert", "U": "update", "D": "delete"}


class TubeChanges:
    """The pods of a tube; one worker for all its partitions."""

    def __init__(self, validator: Validator) -> None:
        self._of = validator
        self._session: Session | None = None
        self._name = tube_of(validator.settings)
        self._sources: dict[int, Attached] = {}
        self._partitions = 1
        self._held: list[Pod] = []
        # Behind all that the held pods speak of; 0: nothing is claimed.
        self._mark = 0
        self._rest_until = 0.0
        self._is_all = False
        # Of each attached table: its partitions and the triggers that capture it, a word each; and when all was seen.
        self._triggers: dict[int, tuple[str, str]] = {}
        self._seen_at = 0.0

    def open(self) -> int:
        """Lock all partitions, delete what was judged before, and look whether all changes are noted."""
        of, stored = self._of, self._of.stored
        self._session = open_tubes(of.nodes[0], of.settings)
        is_new = stored.position is None or bool(stored.gap and "to" not in stored.gap)
        if of.settings.changes == CHANGELOG:
            self._ensure(is_new)
        self._partitions = self._find().partitions
        for partition in range(self._partitions):
            self._locks(partition)
        done = of.meta.rows("pods", name=of.name)[0]["pods"]
        if done:
            tube_pods.delete(self._session, self._name, done)
        self._held, self._mark = [], 0
        self._triggers = {}
        self._watch()
        # Of a new one: the tables are attached, so all that is committed behind this mark is noted.
        position = of.mark() if stored.position is None or is_new else stored.position
        gap = {**stored.gap, "to": lsn_text(position)} if stored.gap and is_new else stored.gap
        of.meta.rows("begin_at", name=of.name, position=position, slot=stored.slot, gap=as_json(gap) if gap else None)
        return position

    def close(self) -> None:
        """End its session, and the locks with it."""
        if self._session is not None:
            self._session.close()

    def look(self) -> None:
        """Nothing: every claim looks whether all tables are captured."""

    def _watch(self) -> None:
        """Look whether changes can have gone unseen; more than a glance only where something is another than before."""
        triggers, before = self._captured(), self._triggers
        if any(number in before and before[number][0] != word[0] for number, word in triggers.items()):
            # Partitions came or went. New ones get their triggers; rows that came with them are in a control pod.
            assert self._session is not None
            tube_functions.cover(self._session, self._name)
            triggers = self._captured()
        if triggers != before or not triggers or time.monotonic() - self._seen_at > _SEE_SECONDS:
            self._triggers, self._seen_at = triggers, time.monotonic()
            self._see(self._find())

    def _captured(self) -> dict[int, tuple[str, str]]:
        assert self._session is not None
        session = self._session
        names = {"sources": session.name("sources"), "relations": session.name("tube_relations")}
        query = sql.SQL(load("trueup.verbs.validate", "tubes.sql")["triggers"]).format(**names)
        given = {"tube": self._name, "prefix": f"{session.schema}_{self._name}_"}
        try:
            return {number: (relations, triggers) for number, relations, triggers in session.rows(query, given)}
        except CheckFailed:
            return {}

    def _ensure(self, is_new: bool) -> None:
        """Make the change log, or attach tables that came later; one that is gone has lost changes."""
        of, session = self._of, self._session
        assert session is not None
        if tube_functions.find(session, self._name) is None and not is_new:
            raise SlotLost("its change log is gone from the source", cure="a full check is needed")
        install(session)
        tube_functions.ensure(session, self._name)
        for name in list(of.tables.pairs):
            try:
                tube_functions.attach(session, self._name, name, shard=0)
            except (CheckFailed, QueryError) as error:
                if isinstance(error, QueryError) and not error.sqlstate.startswith("42"):
                    raise
                of.tables.stop(name, str(error))

    def _find(self) -> TubeInfo:
        of = self._of
        assert self._session is not None
        found = tube_functions.find(self._session, self._name)
        if found is not None:
            return found
        if of.settings.changes == CHANGELOG:
            raise SlotLost("its change log is gone from the source", cure="a full check is needed")
        raise CheckFailed(
            [f"there is no tube {self._name}"], cure=f"trueup tube ensure {self._name}", node=of.nodes[0].name
        )

    def _see(self, tube: TubeInfo) -> None:
        """Stop tables whose changes may go unseen; and note since when each is captured without a break."""
        of = self._of
        self._sources = {each.source: each for each in tube.tables}
        by_name = {each.table: each for each in tube.tables}
        for name, pair in list(of.tables.pairs.items()):
            found = by_name.get(name)
            wrong = _unseen(tube, found, pair.key)
            if found is None or wrong:
                of.tables.stop(name, wrong)
                continue
            # Waiting pods of another key name other rows; and what the triggers were not there for, nobody knows.
            words = (found.source, found.attached_at.isoformat(), *found.key, *self._triggers.get(found.source, ()))
            capture = " ".join(map(str, words))
            of.meta.rows("capture", name=of.name, source=name, capture=capture)

    def read(self, upto: int) -> bool:
        """Judge the pods that are held if the syncer has passed their mark, else claim some."""
        of = self._of
        assert self._session is not None
        if not self._mark:
            if time.monotonic() < self._rest_until:
                return False
            mark = of.mark()
            are_done = self._writers_are_done()
            found = [
                tube_pods.claim(self._session, self._name, each, limit=_MOST, skip=())
                for each in range(self._partitions)
            ]
            self._held = [pod for pods in found for pod in pods]
            self._is_all = are_done and all(len(pods) < _MOST for pods in found)
            # After the mark: what is validated up to it was captured up to it.
            self._watch()
            self._mark = mark
        if self._mark > min(of.place, of.flushed):
            # Not `upto`: all marks are behind a cut-over position.
            return False
        batch = self._batch()
        numbers = [pod.seq for pod in self._held]
        position = self._mark if self._is_all else of.position
        # Marks are written after what was applied: the very position of the syncer is never met.
        of.has_reached = of.has_reached or self._is_all
        try:
            with of.meta.transaction():
                of.first_look(batch.take())
                of.checkpoint(batch, max(of.position, position), put_pods={"pods": numbers})
        finally:
            of.looks.count()
        if numbers:
            tube_pods.delete(self._session, self._name, numbers)
        else:
            # Every claim writes a mark: an idle tube is not asked all the time.
            self._rest_until = time.monotonic() + _REST_SECONDS
        self._held, self._mark = [], 0
        return bool(numbers)

    def let_go(self, *, at_once: bool) -> None:
        """Pods are deleted as soon as they are judged."""

    def _writers_are_done(self) -> bool:
        """Wait a moment for those who have put pods into the tube; whether all that are committed are ended."""
        assert self._session is not None
        session = self._session
        query = load("trueup.verbs.validate", "tubes.sql")["writers"]
        pods = session.name(f"pods_{self._name}").as_string(session.connection)

        def writers() -> dict[str, bool]:
            with session.errors():
                return dict(session.connection.execute(query, {"pods": pods}).fetchall())

        left, give_up = writers(), time.monotonic() + _WRITERS_SECONDS
        while left and time.monotonic() < give_up:
            time.sleep(0.005)
            now = writers()
            left = {each: now[each] for each in left if each in now}
        return not any(left.values())

    def _locks(self, partition: int) -> None:
        assert self._session is not None
        tube_pods.take_lock(self._session, self._name, partition, wait=15.0)

    def _batch(self) -> Batch:
        of = self._of
        batch = Batch(of.tables.pairs, of.position)
        for pod in self._held:
            source = self._sources.get(pod.source)
            name = source.table if source else ""
            width = len(source.key) if source else 1
            keys = _keys(pod, width)
            is_ours = source is not None and name in of.tables.pairs
            if not is_ours or any(len(key) != width for key in keys):
                if name in of.tables.routes:
                    batch.counts.setdefault(name, Counter())[UNCHECKED] += max(1, len(keys))
                continue
            counts, normal = batch.counts.setdefault(name, Counter()), of.tables.pairs[name].normal()
            if pod.is_control:
                payload = pod.payload or {}
                if payload.get("type") == "truncate":
                    counts["truncate"] += 1
                    batch.truncated[name] = Touch("truncate", of.position, self._mark, 0, pod.at)
                elif payload.get("lost") or payload.get("reason", _ASKED) != _ASKED:
                    # Keys that no trigger could name, or rows that came with a partition: nobody knows which.
                    counts[UNCHECKED] += 1
                    of.say(f"{name}: changes went unseen ({payload.get('error') or payload.get('reason')}): sweep it")
                continue
            op = _OPS.get(pod.op, "update")
            counts[op] += len(keys)
            for key in keys:
                # Committed after all that was read before; when exactly, nobody knows.
                batch.touch(name, normal(key), Touch(op, of.position, self._mark, 0, pod.at))
        return batch


def tube_of(settings: Settings) -> str:
    """The name of the tube that a validation works off."""
    if settings.changes != CHANGELOG:
        return settings.tube
    # Of several meta databases, each may have a validation of this name: the seed tells them apart.
    return f"v_{settings.name[:16]}_{settings.seed % 16**8:08x}"


def open_tubes(node: Node, settings: Settings) -> Session:
    """Open a session with the schema of the tubes of the source, or of the change logs."""
    return Session(node, CHANGES_SCHEMA if settings.changes == CHANGELOG else "tube")


def drop_changelog(node: Node, settings: Settings) -> bool:
    """Take the change log of a validation away, and the schema with the last one; whether there was one."""
    with open_tubes(node, settings) as session:
        return tube_functions.drop_with_schema(session, tube_of(settings))


def _unseen(tube: TubeInfo, found: Attached | None, key: tuple[str, ...]) -> str:
    """Why changes of a table may go unseen; nothing if none does."""
    if found is None:
        return f"it is not attached to the tube {tube.tube}"
    if found.problem:
        return f"changes of it may go unseen: {found.problem}"
    if found.predicate or tube.predicate:
        return f"the tube {tube.tube} notes only rows of a predicate: changes of others go unseen"
    if found.key != key:
        return f"the tube {tube.tube} names its rows by ({', '.join(found.key)}), not by ({', '.join(key)})"
    return ""


def _keys(pod: Pod, width: int) -> list[KeyValues]:
    if pod.keys is None:
        return [(str(each),) for each in pod.ids]
    return [_parts(each) if width > 1 else (each,) for each in pod.keys]


def _parts(text: str) -> KeyValues:
    """A key of several columns; what was none when it was noted is one part."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return tuple(map(str, found)) if isinstance(found, list) else (text,)
