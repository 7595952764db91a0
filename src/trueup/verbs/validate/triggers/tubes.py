"""Changes recorded by triggers, for a source whose log is not logical: from a tube, or from a change log.

A change log is a tube that the validation creates at its first start, in a schema of its own, and drops with `delete`.
Any other tube belongs to the user; the validation only processes its pods.

Pods have no log position. Therefore a mark is written into the log of the source before pods are claimed. The claim
sees every pod that was committed before the mark, with one exception: between its commit record and the moment when
other sessions see it, a transaction may still wait. It holds its lock on the pods table until then, so transactions
that hold such a lock right after the mark are waited for. The mark and the commit record are on disk, so this takes a
moment only, unless the commit waits for a synchronous standby. As long as that may be the case, the claimed pods are
judged and the position does not move.

Pods are judged when the syncer has passed the mark. Their numbers are part of the checkpoint: pods that could not be
deleted before a kill are not judged or counted again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trueup.capture.log.pgoutput import Change, Relation, micros_of
from trueup.capture.log.slot import SlotLost
from trueup.capture.triggers import pods as tube_pods
from trueup.capture.triggers import tubes as tube_functions
from trueup.capture.triggers.install import install
from trueup.capture.triggers.model import Attached, Pod
from trueup.capture.triggers.readers import Mark, Reader
from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.db.durable import durable_transaction
from trueup.db.statements import load
from trueup.errors import CheckFailed, QueryError
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.log import FULL_CHECK
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.routes import Name
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.settings import CHANGELOG, Settings
from trueup.verbs.validate.source import Coverage, Opened, Pulled
from trueup.verbs.validate.tables import Tables
from trueup.verbs.validate.triggers.tube_coverage import TubeCoverage

# The schema of change logs. A sync has another one, because the validation must see what a sync writes.
CHANGES_SCHEMA = "trueup_changes"
_MAX_PODS = 400
IDLE_SECONDS = 0.5
_WRITERS_SECONDS = 1.0
_LOCK_SECONDS = 15.0
# The reason of a backfill that a user started; any other reason means that changes may be lost.
_BY_USER = "asked for"
_OPS = {"I": "insert", "U": "update", "D": "delete"}


@dataclass
class PodChanges:
    """The keys of claimed pods, as changes that were committed before a mark."""

    pods: list[Pod]
    sources: Mapping[int, Attached]
    names: Mapping[str, Name]
    oids: Mapping[str, int]
    mark: int
    # The mark, or the start of the read if pods before the mark may be missing.
    position: int
    is_cut: bool

    def __iter__(self) -> Iterator[Change]:
        for pod in self.pods:
            source = self.sources.get(pod.source)
            if source is not None and source.table in self.names:
                # A table that is not validated has a number that is no OID.
                oid = self.oids.get(source.table, -pod.source)
                relation = Relation(oid, *self.names[source.table], "d", source.key, source.key)
                yield from _changes(pod, relation, self.mark)


def _changes(pod: Pod, relation: Relation, mark: int) -> Iterator[Change]:
    """Yield a change per key; one with an empty key counts as a change that cannot be checked."""
    micros = micros_of(pod.at)
    if pod.is_control:
        if (pod.payload or {}).get("type") == "truncate":
            yield Change(relation, "truncate", (), mark, 0, micros)
        elif _lost_changes(pod):
            yield Change(relation, "update", (), mark, 0, micros)
        return
    keys = _keys(pod, len(relation.keys))
    if any(len(key) != len(relation.keys) for key in keys):
        # The pod was written when the table had another key.
        keys = [()] * len(keys)
    for key in keys:
        yield Change(relation, _OPS.get(pod.op, "update"), key, mark, 0, micros)  # type: ignore[arg-type]


def _lost_changes(pod: Pod) -> str:
    """Return why the changes of a table are incomplete: a trigger failed, or rows came with a new partition."""
    payload = pod.payload or {}
    if not pod.is_control or payload.get("type") == "truncate":
        return ""
    reason = str(payload.get("reason", _BY_USER))
    return str(payload.get("error") or reason) if payload.get("lost") or reason != _BY_USER else ""


class TubeSource:
    """Processes the pods of all partitions of a tube."""

    def __init__(self, sessions: Sessions, tables: Tables) -> None:
        self._sessions = sessions
        self._tables = tables
        self._open: Session | None = None
        self._is_changelog = sessions.settings.changes == CHANGELOG
        self._coverage: TubeCoverage | None = None
        # The last round that the meta database has.
        self._last = Mark()
        self._partitions = 1
        self._idle_until = 0.0

    @property
    def _session(self) -> Session:
        assert self._open is not None
        return self._open

    @property
    def _name(self) -> str:
        return tube_of(self._sessions.stored)

    @property
    def _reader(self) -> Reader:
        return Reader(self._session.schema, self._name, self._sessions.stored.slot)

    def open(self, stored: Stored) -> Opened:
        """Lock all partitions, delete the pods of the last checkpoint, and check that all changes are captured."""
        sessions = self._sessions
        self._open = open_tubes(sessions.servers[0], sessions.settings)
        failed = self._ensure(stored.needs_new_start) if self._is_changelog else {}
        self._coverage = TubeCoverage(self._session, self._name, stored.slot, is_changelog=self._is_changelog)
        self._partitions = self._coverage.find().partitions
        for partition in range(self._partitions):
            tube_pods.take_lock(self._session, self._name, partition, wait=_LOCK_SECONDS)
        with self._session.errors():
            self._check_history(stored)
        judged = () if stored.needs_new_start else sessions.meta.value("pods", name=sessions.name)
        self._delete(judged, self._last)
        coverage = self._coverage.check({name: key for name, key in self._keys().items() if name not in failed})
        coverage = Coverage({**failed, **coverage.problems}, coverage.captures)
        if stored.needs_new_start or stored.position is None:
            # The tables are attached: everything that is committed after this mark is captured.
            return Opened(sessions.mark(), is_new=True, coverage=coverage)
        return Opened(stored.position, is_new=False, coverage=coverage)

    def prepare(self, stored: Stored) -> None:
        """Do nothing: tables are attached by `open`."""

    def close(self) -> None:
        """Close the session, which releases the locks."""
        if self._open is not None:
            self._open.close()

    def check(self, read: int, lag: float) -> int | None:
        """Do nothing: every claim checks that all changes are captured."""
        return None

    def read(self, start: int, end: int) -> Pulled | None:
        """Claim pods; they can be judged when the syncer has passed the mark that was written before the claim."""
        if time.monotonic() < self._idle_until:
            return None
        assert self._coverage is not None
        mark = self._sessions.mark()
        writers_ended = self._wait_for_writers()
        claims = [
            tube_pods.claim(self._session, self._name, partition, limit=_MAX_PODS, skip=())
            for partition in range(self._partitions)
        ]
        claimed = [pod for claim in claims for pod in claim]
        # Checked after the mark: changes before the mark were captured if the triggers were in place until now.
        coverage = self._coverage.check(self._keys())
        names = {name: route.source for name, route in self._tables.routes.items()}
        oids = {name: pair.oid for name, pair in self._tables.pairs.items()}
        sources = self._coverage.sources
        warnings = [
            f"{sources[pod.source].table}: changes were lost ({reason}); a scrub of the table is needed"
            for pod in claimed
            if (reason := _lost_changes(pod)) and pod.source in sources
        ]
        has_all = writers_ended and all(len(claim) < _MAX_PODS for claim in claims)
        coverage = Coverage(coverage.problems, coverage.captures, tuple(warnings))
        changes = PodChanges(claimed, sources, names, oids, mark, mark if has_all else start, bool(claimed))
        numbers = tuple(pod.seq for pod in claimed)
        return Pulled(changes, mark, numbers, has_all, coverage, self._begin() if numbers else self._last)

    def confirm(self, pulled: Pulled) -> None:
        """Delete the judged pods; after an empty claim, pause, because every claim writes a mark."""
        if pulled.pods:
            self._delete(pulled.pods, pulled.mark)
        else:
            self._idle_until = time.monotonic() + IDLE_SECONDS

    def leave_mark(self) -> None:
        """Do nothing: every round has a token."""

    def release(self, position: int, *, at_once: bool = False) -> None:
        """Do nothing: pods are deleted by `confirm`."""

    def _begin(self) -> Mark:
        with self._session.errors():
            return self._reader.begin(self._session.connection)

    def _delete(self, numbers: Sequence[int], mark: Mark) -> None:
        """Delete judged pods, in the transaction that records the round as done."""
        with self._session.errors(), durable_transaction(self._session.connection):
            self._reader.done(self._session.connection, mark)
            tube_pods.delete(self._session, self._name, numbers)
        self._last = mark

    def _check_history(self, stored: Stored) -> None:
        """Raise SlotLost if the source or the meta database went back; at a new start, forget earlier rounds."""
        connection, self._last = self._session.connection, Mark(stored.round, stored.token)
        if stored.needs_new_start:
            self._last = Mark()
            self._reader.forget(connection)
            return
        side = self._reader.went_back(connection, self._last)
        if side:
            source, meta = self._sessions.nodes[0].name, self._sessions.meta.node.name
            which = {"here": f"the source {source}", "there": f"the meta database on {meta}"}
            where = which.get(side, f"the source {source} or the meta database on {meta}")
            raise SlotLost(f"{where} went back: a failover or a restore", cure=FULL_CHECK, node=source)

    def _keys(self) -> dict[str, tuple[str, ...]]:
        return {name: pair.key for name, pair in self._tables.pairs.items()}

    def _ensure(self, is_new: bool) -> dict[str, str]:
        """Create the change log and attach all tables; return the tables that could not be attached, and why."""
        session = self._session
        if tube_functions.find(session, self._name) is None and not is_new:
            raise SlotLost("the change log does not exist on the source any more", cure=FULL_CHECK)
        install(session)
        tube_functions.ensure(session, self._name)
        failed: dict[str, str] = {}
        for name in self._tables.pairs:
            try:
                tube_functions.attach(session, self._name, name, shard=0)
            except (CheckFailed, QueryError) as error:
                if isinstance(error, QueryError) and not error.sqlstate.startswith("42"):
                    raise
                failed[name] = str(error)
        return failed

    def _wait_for_writers(self) -> bool:
        """Wait for transactions that have written pods; return whether all that are committed are visible."""
        session = self._session
        query = load("trueup.verbs.validate.triggers", "tubes.sql")["writers"]
        pods = session.name(f"pods_{self._name}").as_string(session.connection)

        def writers() -> dict[str, bool]:
            with session.errors():
                return dict(session.connection.execute(query, {"pods": pods}).fetchall())

        remaining, deadline = writers(), time.monotonic() + _WRITERS_SECONDS
        while remaining and time.monotonic() < deadline:
            time.sleep(0.005)
            now = writers()
            remaining = {writer: now[writer] for writer in remaining if writer in now}
        return not any(remaining.values())


def tube_of(stored: Stored) -> str:
    """Return the name of the tube that a validation processes."""
    return stored.slot if stored.settings.changes == CHANGELOG else stored.settings.tube


def open_tubes(node: Node, settings: Settings) -> Session:
    """Open a session with the schema of the tubes of the source, or of the change logs."""
    return Session(node, CHANGES_SCHEMA if settings.changes == CHANGELOG else "tube")


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
