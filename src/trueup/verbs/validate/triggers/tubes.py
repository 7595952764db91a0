"""Changes recorded by triggers, for a node whose log is not logical: from a tube, or from a change log.

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

import time
from collections.abc import Callable, Sequence
from functools import partial

from psycopg import sql

from trueup.capture.log.pgoutput import Relation
from trueup.capture.log.slot import SlotLost
from trueup.capture.triggers import pods as tube_pods
from trueup.capture.triggers import tubes as tube_functions
from trueup.capture.triggers.install import VERSION, install, installed_version
from trueup.capture.triggers.model import Attached
from trueup.capture.triggers.readers import Mark, Reader
from trueup.capture.triggers.session import Session
from trueup.db.durable import durable_transaction
from trueup.db.statements import load
from trueup.db.table_lock import in_short_attempts
from trueup.errors import CheckFailed, QueryError
from trueup.verbs.validate.log import FULL_CHECK
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.settings import CHANGELOG
from trueup.verbs.validate.source import Coverage, Opened, Pulled
from trueup.verbs.validate.tables import Tables
from trueup.verbs.validate.triggers.pod_changes import PodChanges, lost_changes
from trueup.verbs.validate.triggers.sides import TubeSide, open_tubes, source_tube
from trueup.verbs.validate.triggers.tube_coverage import TubeCoverage

_MAX_PODS = 400
IDLE_SECONDS = 0.5
_WRITERS_SECONDS = 1.0
_LOCK_SECONDS = 15.0


class TubeSource:
    """Processes the pods of all partitions of a tube."""

    def __init__(self, sessions: Sessions, tables: Tables, side_of: Callable[[Stored], TubeSide] = source_tube) -> None:
        self._sessions = sessions
        self._tables = tables
        self._side_of = side_of
        self._number = side_of(sessions.stored).number
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
        return self._side_of(self._sessions.stored).tube

    @property
    def _reader(self) -> Reader:
        return Reader(self._session.schema, self._name, self._sessions.stored.slot)

    def open(self, stored: Stored) -> Opened:
        """Lock all partitions, delete the pods of the last checkpoint, and check that all changes are captured."""
        sessions, side = self._sessions, self._side_of(stored)
        self._open = open_tubes(sessions.servers[self._number], sessions.settings)
        self._coverage = self._new_coverage(stored)
        failed = self._ensure(is_new=side.is_new) if self._is_changelog else {}
        self._partitions = self._coverage.find().partitions
        for partition in range(self._partitions):
            tube_pods.take_lock(self._session, self._name, partition, wait=_LOCK_SECONDS)
        with self._session.errors():
            self._check_history(stored)
        judged = () if side.is_new else sessions.meta.value(side.pods, name=sessions.name)
        self._delete(judged, self._last)
        coverage = self._coverage.check({name: key for name, key in self._keys().items() if name not in failed})
        coverage = Coverage({**failed, **coverage.problems}, coverage.captures)
        if side.is_new or side.position is None:
            # The tables are attached: everything that is committed after this mark is captured.
            return Opened(self._write_mark(), is_new=True, coverage=coverage)
        return Opened(side.position, is_new=False, coverage=coverage)

    def _new_coverage(self, stored: Stored) -> TubeCoverage:
        side = self._side_of(stored)
        return TubeCoverage(self._session, side.tube, stored.slot, side.node, is_changelog=self._is_changelog)

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
        mark = self._write_mark()
        writers_ended = self._wait_for_writers()
        claims = [
            tube_pods.claim(self._session, self._name, partition, limit=_MAX_PODS, skip=())
            for partition in range(self._partitions)
        ]
        claimed = [pod for claim in claims for pod in claim]
        # Checked after the mark: changes before the mark were captured if the triggers were in place until now.
        coverage = self._coverage.check(self._keys())
        sources = self._coverage.sources
        warnings = [
            f"{sources[pod.source].table}: changes were lost ({reason}); a scrub of the table is needed"
            for pod in claimed
            if (reason := lost_changes(pod)) and pod.source in sources
        ]
        has_all = writers_ended and all(len(claim) < _MAX_PODS for claim in claims)
        coverage = Coverage(coverage.problems, coverage.captures, tuple(warnings))
        changes = PodChanges(claimed, sources, self._relations(), mark, mark if has_all else start, bool(claimed))
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

    # ---- the tables of the node

    def _keys(self) -> dict[str, tuple[str, ...]]:
        """Return the key columns of the tables to attach, by their names on the node."""
        return {name: pair.key for name, pair in self._tables.pairs.items()}

    def _relations(self) -> dict[str, list[Relation]]:
        """Return what the changes of the tables of the node are reported as; stopped tables have numbers below 0."""
        pairs = self._tables.pairs
        return {
            name: [
                Relation(pairs[name].oid, *route.source, "d", pairs[name].key, pairs[name].key)
                if name in pairs
                else Relation(-number, *route.source, "d", (), ())
            ]
            for number, (name, route) in enumerate(self._tables.routes.items(), 1)
        }

    def _create(self) -> None:
        tube_functions.ensure(self._session, self._name)

    def _attach(self, name: str, attached: Attached | None) -> None:
        """Attach a table, or correct its triggers if it is attached already."""
        tube_functions.attach(self._session, self._name, name, shard=0)

    def _detach(self, name: str, triggers: Sequence[str] = ()) -> None:
        """Detach a table; `triggers` are statements that drop triggers with other functions than those of the tube."""
        with self._session.errors():
            for statement in triggers:
                drop = sql.SQL(statement)  # type: ignore[arg-type, unused-ignore]
                in_short_attempts(self._session.connection, partial(self._session.connection.execute, drop))
        tube_functions.detach(self._session, self._name, name)

    def _ensure(self, *, is_new: bool) -> dict[str, str]:
        """Create the change log and attach all tables; return the tables that could not be attached, and why."""
        session, coverage = self._session, self._coverage
        assert coverage is not None
        tube = tube_functions.find(session, self._name)
        if tube is None and not is_new:
            coverage.find()
        # Before anything is corrected. A table whose functions or triggers were replaced is attached again, so that its
        # capture has another text than before.
        replaced = coverage.replaced() if tube is not None else {}
        with session.errors():
            version = installed_version(session)
        if version != VERSION:
            # Not at each start: it writes all functions again, also those of other change logs.
            install(session)
        self._create()
        attached = {table.table: table for table in tube.tables} if tube is not None else {}
        failed: dict[str, str] = {}
        for name in self._keys():
            try:
                before = attached.get(name)
                if before is not None and before.source in replaced:
                    self._detach(name, replaced[before.source])
                    before = None
                self._attach(name, before)
            except (CheckFailed, QueryError) as error:
                if isinstance(error, QueryError) and not error.sqlstate.startswith("42"):
                    raise
                failed[name] = str(error)
        return failed

    # ---- rounds

    def _write_mark(self) -> int:
        return self._sessions.mark()

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
        """Raise SlotLost if the node or the meta database went back; at a new start, forget earlier rounds."""
        side = self._side_of(stored)
        connection, self._last = self._session.connection, side.last
        if side.is_new:
            self._last = Mark()
            self._reader.forget(connection)
            return
        which = self._reader.went_back(connection, self._last)
        if which:
            node, meta = self._sessions.nodes[self._number].name, self._sessions.meta.node.name
            places = {"here": f"the {side.node} {node}", "there": f"the meta database on {meta}"}
            where = places.get(which, f"the {side.node} {node} or the meta database on {meta}")
            raise SlotLost(f"{where} went back: a failover or a restore", cure=FULL_CHECK, node=node)

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
