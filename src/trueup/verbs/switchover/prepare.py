"""All that can be done before the pause: pointers, guards, the way back, schemas, sessions, rounds, much of a proof."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.names import parse_table_name
from trueup.db.node import connect
from trueup.errors import CheckFailed
from trueup.task.together import both
from trueup.verbs.switchover import gate, guard, pointer
from trueup.verbs.switchover.fence import APPLICATION_NAME, Fence
from trueup.verbs.switchover.outcome import DIGEST, KEYS, VALIDATED, Asked
from trueup.verbs.switchover.phases import GATE, Budget
from trueup.verbs.switchover.proof import Prover
from trueup.verbs.switchover.rounds import Rounds
from trueup.verbs.sync import changelog, marks, sequences
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.link import Link, open_link
from trueup.verbs.sync.model import Round
from trueup.verbs.sync.plan import Wanted, other_tables
from trueup.verbs.sync.start import SyncRequest

if TYPE_CHECKING:
    from datetime import datetime

    from trueup.config.model import Node
    from trueup.db.foreign_keys import TableName
    from trueup.engine.progress import Progress
    from trueup.verbs.switchover.validated import Validated

# The first time a statement is looked up, the second time it is prepared, the third time it is as quick as it gets.
_WARM = 3


@dataclass
class Ready:
    """Everything the pause needs, open and at hand."""

    asked: Asked
    attempt: str
    token: str
    fence: Fence
    # A session with the database that is to be opened.
    target: Connection
    link: Link
    prover: Prover
    rounds: Rounds
    address: str
    remarks: tuple[str, ...]
    # What both catalogs said of the tables when they were compared.
    fingerprints: tuple[str, str]
    # Guards and the way back, looked at before the pause; the fingerprints say that they are still there.
    settled: tuple[gate.Condition, ...]
    # Who speaks for the rows, with --proof validated.
    validated: Validated | None = None

    @property
    def names(self) -> list[TableName]:
        """The tables."""
        return [table.name for table in self.link.tables]

    def warm_up(self) -> None:
        """Ask what the pause will ask: what was asked before is planned, and its catalog rows are at hand."""
        for _ in range(_WARM):
            both(self._source_facts, self._target_facts)

    def set_sequences(self) -> None:
        """Set the target's sequences to just what the source's are."""
        chosen = self.link.plan.sequences
        mine, theirs = both(
            lambda: sequences.read(self.fence.connection, chosen), lambda: sequences.read(self.target, chosen)
        )
        sequences.write(self.target, {each: value for each, value in mine.items() if theirs.get(each) != value})

    def conditions(self, final: Round, budget: Budget) -> tuple[gate.Condition, ...]:
        """All conditions, looked at inside of the fence."""
        found: list[gate.Condition] = []
        if self.asked.proof == DIGEST:
            unequal = self.prover.unequal(self.link.tables, milliseconds=budget.milliseconds(GATE))
            broken = self._broken(budget)
            told = f"{len(self.link.tables)} tables, by digests inside of the pause"
        elif self.validated is not None:
            unequal, told = self.validated.unequal(final, budget)
            broken = self.rounds.broken
            # A TRUNCATE of a single partition is not in the log of the whole table: nobody validated that.
            parted = [table for table in self.link.tables if table.is_partitioned]
            if parted and not unequal:
                unequal = self.prover.unequal(parted, milliseconds=budget.milliseconds(GATE))
                told += f"; {len(parted)} partitioned ones also by digests inside of the pause"
        else:
            unequal, broken = self.rounds.unequal, self.rounds.broken
            told = f"{len(self.link.tables)} tables, by digests before the pause, and {final.keys:,} keys inside of it"
        found.append(gate.condition(gate.ROWS, unequal, told))
        found.append(gate.condition(gate.REFERENCES, broken, f"{len(self.link.plan.foreign_keys)} foreign keys"))
        mine, theirs = both(self._source_facts, self._target_facts)
        altered = [
            f"a table was altered on {node.name} since the schemas were compared"
            for node, before, now in zip(
                (self.link.source_node, self.link.target_node), self.fingerprints, (mine[0], theirs[0]), strict=True
            )
            if before != now
        ]
        found.append(gate.condition(gate.SCHEMA, altered))
        found.append(
            gate.condition(gate.SEQUENCES_EQUAL, gate.unequal_sequences(mine[1], theirs[1]), f"{len(mine[1])}")
        )
        waiting = [f"{mine[2]:,} entries wait"] if mine[2] else []
        found.append(gate.condition(gate.LOG_EMPTY, waiting))
        found.append(gate.condition(gate.PREPARED, mine[3]))
        found += self.settled
        return tuple(sorted(found, key=lambda each: gate.ALL.index(each.name)))

    def _broken(self, budget: Budget) -> list[str]:
        """Foreign keys of the target, all rows of them, spread over the sessions of the proof."""
        self.prover.target.timeout(budget.milliseconds(GATE))
        found = self.prover.target.spread(
            self.link.plan.foreign_keys, lambda connection, key: gate.broken(connection, [key])
        )
        return [each for some in found for each in some]

    def _source_facts(self) -> tuple[str, sequences.Values, int, list[str]]:
        connection, chosen = self.fence.connection, self.link.plan.sequences
        # All questions in one message: one way there and back.
        with connection.pipeline():
            shape = gate.ask_fingerprint(connection, self.names)
            values = sequences.ask(connection, chosen)
            waiting: Any = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(self.link.log))
            prepared = gate.ask_prepared(connection)
        return gate.one(shape), sequences.told(values, chosen), int(gate.one(waiting)), gate.told(prepared)

    def _target_facts(self) -> tuple[str, sequences.Values]:
        chosen = self.link.plan.sequences
        with self.target.pipeline():
            shape = gate.ask_fingerprint(self.target, self.names)
            values = sequences.ask(self.target, chosen)
        return gate.one(shape), sequences.told(values, chosen)


@contextmanager
def reach(node: Node) -> Iterator[Any]:
    """A session with a database that may write."""
    with connect(node, application=APPLICATION_NAME, read_only=False) as connection:
        connection.execute("SET synchronous_commit = on; SET statement_timeout = 0")
        connection.prepare_threshold = 1
        yield connection


def request_of(asked: Asked, source: Node, target: Node) -> SyncRequest:
    """The sync, as its own functions want it."""
    return SyncRequest(source, target, Wanted(asked.sync), patience=asked.patience)


def make_pointers(asked: Asked, first: Any, second: Any) -> None:
    """Pointers in both databases; where there are some, names and addresses are brought up to date."""
    first_address = pointer.told_address(asked.first_address) or pointer.address_of(first)
    second_address = pointer.told_address(asked.second_address) or pointer.address_of(second)
    names = (asked.first.name, asked.second.name)
    for connection in (first, second):
        pointer.install(connection)
    pointer.take(first, asked.sync, names=names, address=second_address, is_first=True)
    pointer.take(second, asked.sync, names=(names[1], names[0]), address=first_address, is_first=False)


def prepare_only(asked: Asked) -> tuple[str, int]:
    """Pointers and guards in both databases; applications can use the pointer from here on. Gives who is in use."""
    with reach(asked.first) as first, reach(asked.second) as second:
        known = marks.read(second, asked.sync)
        if known is None:
            cure = "start it first: trueup sync start"
            raise CheckFailed([f"there is no sync {asked.sync} into {asked.second.name}"], cure=cure)
        make_pointers(asked, first, second)
        mine, _ = pointer.both(pointer.read(first, asked.sync), pointer.read(second, asked.sync), asked.sync)
        names = [(schema.text, table.text) for schema, table in map(parse_table_name, known.tables)]
        guards = sum(guard.put_on(each, names, asked.sync, patience=asked.patience) for each in (first, second))
        return asked.first.name if mine.is_in_use else asked.second.name, guards


@contextmanager
def prepare(
    asked: Asked, source: Node, target: Node, fence: Fence, there: Connection, attempt: str, progress: Progress
) -> Iterator[Ready]:
    """Everything before the pause; refuses here rather than there, while nobody waits."""
    is_back = source is asked.second
    here = fence.connection
    with ExitStack() as stack:
        request = request_of(asked, source, target)
        if sync.stop(request, timeout=asked.patience):
            progress.say("the sync that ran was asked to stop, and has stopped")
        link = stack.enter_context(open_link(source, target, asked.sync))
        validated = _validation(asked, link, stack) if asked.proof == VALIDATED else None
        first, second = (there, here) if is_back else (here, there)
        make_pointers(asked, first, second)
        pointer.both(pointer.read(here, asked.sync), pointer.read(there, asked.sync), asked.sync)
        pointer.begin(here, asked.sync, attempt)
        names = [table.name for table in link.tables]
        for connection in (here, there):
            guard.put_on(connection, names, asked.sync, patience=asked.patience)
        make_way_back(link, patience=asked.patience)
        gate.refuse([gate.condition(gate.PREPARED, gate.prepared(here))])
        runner = stack.enter_context(sync.Runner(link, request, progress))
        prover = stack.enter_context(Prover(source, target, link.tables, jobs=asked.jobs))
        rounds = Rounds(link, runner, prover)
        stack.callback(rounds.close)
        rounds.come_close(asked.close_keys, asked.patience)
        before = (gate.fingerprint(here, names), gate.fingerprint(there, names))
        accepted = _compare_schemas(asked, here, there, link)
        settled = _settle(here, there, link, names)
        if asked.proof == KEYS:
            progress.say("comparing all tables before the pause")
            gate.refuse([gate.condition(gate.ROWS, rounds.prove())])
            rounds.come_close(asked.close_keys, asked.patience)
        if validated is not None:
            progress.say(f"waiting until {validated.name} has validated all up to now")
            _come_close(asked, validated, rounds, pointer.closed_since(there, asked.sync))
        runner.carry_sequences()
        token = secrets.token_hex(16)
        pointer.expect(there, asked.sync, token)
        _limit(link, asked.budget)
        address = str(pointer.read(here, asked.sync).next_address)  # type: ignore[union-attr]
        ready = Ready(
            asked, attempt, token, fence, there, link, prover, rounds, address, accepted, before, settled, validated
        )
        ready.warm_up()
        yield ready


def make_way_back(link: Link, *, patience: float) -> None:
    """A change log on the new database, and on the old one the marks of a sync into it, so that it can be gone back."""
    with changelog.open_log(link.target_node) as log:
        changelog.install(log, link.name, link.tables, patience=patience)
    marks.make(link.source)
    if marks.read(link.source, link.name) is None:
        known = marks.read(link.target, link.name)
        # The same tables; what else there is on the other side is left out by name.
        wanted = Wanted(link.name, leave_out=other_tables(link.target, link.plan))
        if known is not None and known.named:
            wanted = Wanted(link.name, tuple(str(table) for table in link.tables))
        marks.begin(link.source, wanted, marks.identity(link.target), link.tables)
        marks.set_phase(link.source, link.name, "running")


def _compare_schemas(asked: Asked, here: Connection, there: Connection, link: Link) -> tuple[str, ...]:
    """Refuse what differs in the schemas, and what came since the sync began; gives what was accepted."""
    known = marks.read(link.target, link.name)
    whole = known is not None and not known.named
    nodes = {link.source_node.name: here, link.target_node.name: there}
    names = [table.name for table in link.tables]
    wrong, accepted = gate.differing(nodes, names, whole=whole, accept=asked.accept_schema)
    gate.refuse([gate.condition(gate.SCHEMA, wrong)])
    return tuple(f"accepted: {each}" for each in accepted)


def _validation(asked: Asked, link: Link, stack: ExitStack) -> Validated:
    """The validation that is to speak for the rows; refused before anything is done if it cannot."""
    from trueup.verbs.switchover.validated import find

    found = stack.enter_context(find(asked, link))
    found.refuse_unfit()
    return found


def _come_close(asked: Asked, validated: Validated, rounds: Rounds, since: datetime) -> None:
    """All rows looked at, all foreign keys valid, no change waiting to be validated: what is left is small."""
    validated.wait_for_sweeps(since, patience=asked.patience, carry=rounds.carry)
    gate.refuse([gate.condition(gate.REFERENCES, rounds.watch_references())])
    validated.come_close(patience=asked.patience, carry=rounds.carry)
    rounds.come_close(asked.close_keys, asked.patience)


def _settle(here: Connection, there: Connection, link: Link, names: list[TableName]) -> tuple[gate.Condition, ...]:
    """Conditions that cannot change without the catalog changing, which the gate looks at again."""
    bare = [f"{schema}.{table}" for node in (here, there) for schema, table in guard.lacking(node, names)]
    guarded = gate.condition(gate.GUARDED, [f"{each} has no guard" for each in bare])
    with changelog.open_log(link.target_node) as log:
        ready = changelog.is_installed(log, link.name)
    back = gate.condition(gate.WAY_BACK, [] if ready else [f"{link.target_node.name} records no changes"])
    gate.refuse([guarded, back])
    return guarded, back


def _limit(link: Link, budget: float) -> None:
    """No statement of the last round takes longer than the pause may, and nothing waits that needs not."""
    for connection in (link.source, link.target):
        connection.execute(f"SET statement_timeout = {max(1, int(budget * 1000))}")
    # Entries of the log that are gone from there: should a crash bring them back, they are carried over once more.
    link.source.execute("SET synchronous_commit = off")
    # The rows themselves have to be on the disk before anything is decided.
    link.target.execute("SET synchronous_commit = on")
