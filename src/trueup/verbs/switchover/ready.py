"""What the pause needs, prepared: open sessions, the link, the rounds, the proof; and the steps of the pause."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from psycopg import sql

from trueup.config.wording import counted
from trueup.db import sequences
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name
from trueup.rows.write import disabled_triggers as triggers
from trueup.rows.write import large_objects
from trueup.task.together import both
from trueup.verbs.switchover import gate, pointer
from trueup.verbs.switchover.fence import Fence
from trueup.verbs.switchover.hold import GaveWay, Hold
from trueup.verbs.switchover.phases import FENCE, GATE, Budget
from trueup.verbs.switchover.proof import Prover
from trueup.verbs.switchover.request import DIGEST, SwitchoverRequest
from trueup.verbs.switchover.rounds import Rounds
from trueup.verbs.switchover.validated import TableLocked, Validated, digested_tables
from trueup.verbs.sync import state
from trueup.verbs.sync.link import Link
from trueup.verbs.sync.model import Round
from trueup.verbs.sync.plan import query_tables
from trueup.verbs.sync.round import checked_transaction

# A statement is looked up when it first runs, prepared the second time, and fast the third time.
_WARM_UPS = 3


@dataclass
class Ready:
    """Everything the pause needs, open and prepared."""

    request: SwitchoverRequest
    attempt: str
    # Opens the new database after the decision; empty in a rehearsal.
    token: str
    fence: Fence
    hold: Hold
    # A session with the database that will be opened.
    target: Connection
    link: Link
    prover: Prover
    rounds: Rounds
    address: str
    remarks: tuple[str, ...]
    # The catalog fingerprints of both databases when their schemas were compared.
    fingerprints: tuple[str, str]
    # Conditions checked before the pause; they still hold if the fingerprints are unchanged.
    settled: tuple[gate.Condition, ...]
    # The statements that set the triggers of the target as on the source.
    enable: tuple[sql.Composed, ...] = ()
    # The validation of --proof validated.
    validated: Validated | None = None
    # The tables of the source that are not in the sync, by oid: name, and who decided that.
    outside: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    # Objects that a sync does not copy, and what to do.
    not_copied: tuple[str, ...] = ()
    # The sessions that waited when a rehearsal ended.
    waited: tuple[str, ...] = ()
    # The fingerprint of the target in the part of a rehearsal that was rolled back.
    _rehearsed_shape: str = ""

    @property
    def names(self) -> list[TableName]:
        """The tables."""
        return [table.name for table in self.link.tables]

    def warm_up(self) -> None:
        """Run the queries of the pause, so that they are planned and their catalog rows cached."""
        for _ in range(_WARM_UPS):
            both(self._source_facts, self._target_facts)

    def hold_tables(self, budget: Budget) -> None:
        """Lock the tables for the sessions that read inside of the pause; rounds continue until that succeeds."""
        milliseconds = budget.milliseconds(FENCE)
        until = time.monotonic() + self.request.timeout
        while not self.hold.take(milliseconds):
            if time.monotonic() > until:
                raise self.hold.refuse(self.request.timeout)
            self.catch_up()
        for connection in (self.link.source, self.link.target):
            connection.execute(f"SET statement_timeout = {milliseconds}")

    def acquire_fence(self, budget: Budget) -> None:
        """Wait until all writers have ended their transactions; raise GaveWay if one of them needed a held table."""
        was_held = self.hold.is_held
        with self.hold.giving_way(self.link.marker):
            self.fence.acquire(budget)
        if was_held and not self.hold.take(budget.milliseconds(FENCE)):
            raise GaveWay("a writer needed a table that is held")

    def give_way(self, budget: Budget) -> None:
        """Release everything, and catch up, so that the pause can be repeated."""
        self.fence.release()
        self.hold.release()
        budget.stop()
        for connection in (self.link.source, self.link.target):
            connection.execute("SET statement_timeout = 0")
        self.catch_up()

    def catch_up(self) -> None:
        """Run rounds until few keys are left."""
        self.rounds.catch_up(self.request.close_keys, self.request.timeout)

    @property
    def sessions(self) -> list[Connection]:
        """All sessions that are used inside of the pause."""
        link, prover = self.link, self.prover
        sessions = [self.fence.connection, self.target, link.source, link.target, link.marker]
        sessions += [*prover.source.connections, *prover.target.connections]
        return [*sessions, *(self.validated.sessions if self.validated else ())]

    def write_marker(self, budget: Budget) -> None:
        """Write the marker of the validation, if there is one."""
        if self.validated is not None:
            self.validated.write_marker(budget)

    def set_sequences(self) -> None:
        """Set the target's sequences and triggers exactly as on the source, and store the hash of the token there.

        This is the last write to the target before the decision: a server that went back behind it (a failover to a
        standby that was behind) does not have the hash, and is not opened without the rows that it lost. A rehearsal
        has no token: nothing that it leaves behind can open the new database, and the triggers stay as they are.
        """
        link, chosen = self.link, self.link.plan.sequences
        if link.plan.large_objects:
            large_objects.make_equal(
                self.fence.connection, link.target, lambda: state.writing(link.target, link.name, link.epoch)
            )
        on_source, on_target = both(
            lambda: sequences.read(self.fence.connection, chosen), lambda: sequences.read(self.target, chosen)
        )
        changed = {sequence: value for sequence, value in on_source.items() if on_target.get(sequence) != value}
        with checked_transaction(self.link):
            sequences.write(self.link.target, changed)
            if not self.token:
                self.link.target.execute("SAVEPOINT rehearsal")
            for statement in self.enable:
                self.link.target.execute(statement)
            triggers.forget(self.link.target, self.link.name)
            if self.token:
                expected = pointer.expect_token(self.link.target, self.request.sync, self.token)
            else:
                shape = gate.query_fingerprint(self.link.target, self.names)
                self.link.target.execute("ROLLBACK TO SAVEPOINT rehearsal")
        if self.token:
            pointer.check_expected(expected)
        else:
            self._rehearsed_shape = str(one_value(shape))

    def conditions(self, final: Round, budget: Budget) -> tuple[gate.Condition, ...]:
        """Check all conditions while the fence is held."""
        unequal, broken, checked = self._compare(final, budget)
        (shape, values, entries, prepared, present), (target_shape, target_values) = both(
            self._source_facts, self._target_facts
        )
        # In a rehearsal the triggers of the target are not enabled any more.
        target_shape = self._rehearsed_shape or target_shape
        nodes = (self.link.source_node, self.link.target_node)
        altered = [
            f"a table was altered on {node.name} after the schemas were compared"
            for node, before, now in zip(nodes, self.fingerprints, (shape, target_shape), strict=True)
            if before != now
        ]
        conditions = (
            gate.every_table(present, [table.oid for table in self.link.tables], self.outside, nodes[0].name),
            gate.condition(gate.ROWS, unequal, checked),
            gate.condition(gate.REFERENCES, broken, gate.references_text(self.link.plan.foreign_keys)),
            gate.condition(gate.SCHEMA, altered),
            gate.condition(gate.SEQUENCES_EQUAL, gate.unequal_sequences(values, target_values), f"{len(values)}"),
            gate.condition(gate.LOG_EMPTY, [f"it has {counted(entries, 'entry')}"] if entries else []),
            gate.condition(gate.PREPARED, prepared),
            *self._large_objects(),
            *self.settled,
        )
        return tuple(sorted(conditions, key=lambda condition: gate.ALL.index(condition.name)))

    def _large_objects(self) -> list[gate.Condition]:
        """Compare all large objects: the fence does not keep a session from writing them."""
        if not self.link.plan.large_objects or not (oids := large_objects.numbers(self.fence.connection)):
            return []
        unequal = large_objects.unequal(self.fence.connection, self.target)
        return [gate.condition(gate.LARGE_OBJECTS, unequal, f"{len(oids):,}")]

    def _compare(self, final: Round, budget: Budget) -> tuple[list[str], list[str], str]:
        """Return the unequal tables, the broken foreign keys, and what was compared."""
        tables = self.link.tables
        if self.request.proof == DIGEST:
            unequal = list(self.prover.unequal(tables, milliseconds=budget.milliseconds(GATE)).values())
            return unequal, self._broken(budget), f"{counted(len(tables), 'table')}, by digests inside of the pause"
        if self.validated is None:
            # Each round has compared its keys, and raised if rows or foreign keys were wrong.
            return (
                [],
                [],
                f"{counted(len(tables), 'table')}, by digests before the pause,"
                f" and {counted(final.keys, 'key')} inside of it",
            )
        try:
            unequal, checked = self.validated.unequal(final, budget, lambda: self.hold.is_waited_for(self.link.marker))
        except TableLocked as locked:
            # All rows were validated before the pause, and the keys of every round since then are compared.
            unequal = [*locked.problems, *self.rounds.unequal]
            checked = f"{counted(len(tables), 'table')}, validated by {self.validated.name} before the pause, and"
            checked += f" {counted(final.keys, 'key')} inside of it, because a session waits for a lock on a table"
        if (digested := digested_tables(tables)) and not unequal:
            unequal = list(self.prover.unequal(digested, milliseconds=budget.milliseconds(GATE)).values())
            checked += f"; {counted(len(digested), 'partitioned or keyless table')} by digests inside of the pause"
        return unequal, [], checked

    def _broken(self, budget: Budget) -> list[str]:
        """Check all rows of all foreign keys of the target, on the sessions of the proof."""
        self.prover.target.timeout(budget.milliseconds(GATE))
        broken = self.prover.target.spread(
            self.link.plan.foreign_keys, lambda connection, key: gate.broken_foreign_keys(connection, [key])
        )
        return [text for texts in broken for text in texts]

    def _source_facts(self) -> tuple[str, sequences.Values, int, list[str], dict[int, str]]:
        """Return fingerprint, sequences, entries of the log, prepared transactions, all tables; in one round trip."""
        connection, chosen = self.fence.connection, self.link.plan.sequences
        with connection.pipeline():
            shape = gate.query_fingerprint(connection, self.names)
            values = sequences.query(connection, chosen)
            entries = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(self.link.log))
            prepared = gate.query_prepared(connection)
            tables = query_tables(connection)
        return (
            str(one_value(shape)),
            sequences.values_of(values, chosen),
            int(one_value(entries)),
            gate.prepared_names(prepared),
            {oid: display_name(schema, name) for oid, schema, name, _ in tables.fetchall()},
        )

    def _target_facts(self) -> tuple[str, sequences.Values]:
        chosen = self.link.plan.sequences
        with self.target.pipeline():
            shape = gate.query_fingerprint(self.target, self.names)
            values = sequences.query(self.target, chosen)
        return str(one_value(shape)), sequences.values_of(values, chosen)
