"""How each source is read: a task store, a node, syncs between nodes, the schedule, doctor. Nothing is written.

Only a task store is maintained, as by every command: tasks whose process has died become FAILED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import psycopg

from trueup.api.doctor import doctor
from trueup.capture.triggers import tubes
from trueup.capture.triggers.install import installed_version
from trueup.capture.triggers.session import Session, is_schema_name
from trueup.config.address import POSTGRESQL
from trueup.config.model import Config, Node
from trueup.config.secrets import mask
from trueup.db.connection import Connection
from trueup.db.database_identity import identity
from trueup.db.node import connect, error_from_server
from trueup.db.trust import check_schema
from trueup.errors import CheckFailed, StoreError, TrueupError
from trueup.serve.model import TUBES, NodeSeen, Seen, SlotSeen, SyncSeen, TubeSeen, ValidationSeen
from trueup.store import TaskStore
from trueup.store.browse import Summary, summary
from trueup.verbs.doctor.model import Finding
from trueup.verbs.schedule.config import load_jobs
from trueup.verbs.schedule.listing import Due, due
from trueup.verbs.switchover import status as switchover_status
from trueup.verbs.switchover.request import SwitchoverRequest
from trueup.verbs.sync import status as sync_status
from trueup.verbs.sync.model import LOG_SCHEMA
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.tube.letters import letters
from trueup.verbs.validate.meta import open_meta
from trueup.verbs.validate.row_errors import list_errors
from trueup.verbs.validate.status import read_status

# Errors of a validation, and dead letters of a tube, that a page lists.
MAX_ERRORS = 200
MAX_LETTERS = 100
# Schemas that may have tubes. Those of the change logs of syncs are shown as syncs.
_SCHEMAS = """
SELECT n.nspname FROM pg_namespace n
 WHERE n.nspname <> %(syncs)s
   AND 3 = (SELECT count(*) FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r'
               AND c.relname IN ('installation', 'tubes', 'sources'))
 ORDER BY n.nspname
"""
# A page must never wait for a lock, and cannot write.
_CAREFUL = "SET default_transaction_read_only = on; SET statement_timeout = '60s'; SET lock_timeout = '5s'"
_SLOTS = """
SELECT slot_name, active, pg_wal_lsn_diff(
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, restart_lsn
       )::bigint
  FROM pg_replication_slots
 WHERE slot_type = 'logical' AND slot_name LIKE 'trueup\\_%%' AND database = current_database()
 ORDER BY slot_name
"""
_INTO = "SELECT sync, source FROM trueup.syncs ORDER BY sync"
_CAN_READ = "SELECT coalesce(has_table_privilege(to_regclass('trueup.syncs'), 'SELECT'), false)"
T = TypeVar("T")


def node_names(config: Config, chosen: Sequence[str] | None) -> list[str]:
    """Return the names of the nodes to read: PostgreSQL servers."""
    return [
        node.name
        for node in config.nodes.values()
        if node.kind == POSTGRESQL and (chosen is None or node.name in chosen)
    ]


def read_store(path: Path) -> Summary:
    """Return what the overview needs of a store; the file is not created."""
    if not path.exists():
        raise StoreError(f"the task store {path} does not exist", cure="it is created by the first command that runs")
    # Upgrades the file if needed, and marks tasks whose process has died.
    TaskStore(path).close()
    return summary(path)


def read_node(node: Node, before: NodeSeen | None = None) -> NodeSeen:
    """Return what a node has. Raises NodeError if it does not answer.

    A part that fails is a problem of the result, and stays as it was `before`: it is not gone.
    """
    problems: list[str] = []
    old = before or NodeSeen(node.name)

    def attempt(read: Callable[[], Iterable[T]], known: Iterable[T]) -> tuple[T, ...]:
        try:
            return tuple(read())
        except TrueupError as error:
            problems.append(mask(str(error)))
            return tuple(known)

    with connect(node, application="trueup serve") as connection:
        try:
            ident = identity(connection)
            if ident != old.identity:
                # Another database has the name of the node now.
                old = NodeSeen(node.name)
            slots = attempt(lambda: _slots(node, connection), old.slots)
            syncs = attempt(lambda: _syncs(node, connection), old.syncs)
            schemas = _tube_schemas(connection)
        except psycopg.Error as error:
            raise error_from_server(error, node) from error
    validations = attempt(lambda: _validations(node), old.validations)
    found: list[TubeSeen] = []
    for schema in schemas:
        found += attempt(partial(_tubes, node, schema), [tube for tube in old.tubes if tube.schema == schema])
    return NodeSeen(node.name, ident, validations, tuple(found), slots, syncs, tuple(problems))


def _tube_schemas(connection: Connection) -> list[str]:
    """Return the schemas with tubes; one that a role which is not trusted could have prepared is left alone."""
    names = [str(name) for (name,) in connection.execute(_SCHEMAS, {"syncs": LOG_SCHEMA})]
    return [name for name in names if name == TUBES or _is_trusted(connection, name)]


def _is_trusted(connection: Connection, schema: str) -> bool:
    try:
        return is_schema_name(schema) and check_schema(connection, schema)
    except CheckFailed:
        return False


def _slots(node: Node, connection: Connection) -> tuple[SlotSeen, ...]:
    try:
        rows = connection.execute(_SLOTS).fetchall()
    except psycopg.Error as error:
        raise error_from_server(error, node) from error
    return tuple(SlotSeen(node.name, str(slot), bool(active), retained) for slot, active, retained in rows)


def _syncs(node: Node, connection: Connection) -> tuple[tuple[str, str], ...]:
    try:
        row = connection.execute(_CAN_READ).fetchone()
        if not row or not row[0]:
            return ()
        return tuple((str(sync), str(source)) for sync, source in connection.execute(_INTO))
    except psycopg.Error as error:
        raise error_from_server(error, node) from error


def _validations(node: Node) -> Iterator[ValidationSeen]:
    with open_meta(node, read_only=True) as meta:
        for row in meta.rows("names") if meta.exists() else []:
            status = read_status(meta, row["name"])
            errors = list_errors(meta, status.name, limit=MAX_ERRORS) if status.open_errors else []
            yield ValidationSeen(node.name, status, tuple(errors))


def _tubes(node: Node, schema: str) -> Iterator[TubeSeen]:
    with Session(node, schema) as session:
        session.connection.execute(_CAREFUL)
        if installed_version(session) is None:
            return
        stats = tubes.stats(session)
        for info in tubes.list_tubes(session):
            own = tuple(row for row in stats if row.tube == info.tube)
            refused = letters(session, info.tube, limit=MAX_LETTERS) if any(row.dead_letters for row in own) else ()
            yield TubeSeen(node.name, info, own, schema, tuple(refused))


def read_syncs(config: Config, seen: Seen) -> tuple[SyncSeen, ...]:
    """Return the syncs and switchovers that the nodes and the tasks of the stores name."""
    names = {part.value.identity: name for name, part in seen.nodes.items() if part.value and part.value.identity}
    pairs: dict[tuple[str, str, str], None] = {}
    for name, part in seen.nodes.items():
        for sync, source in part.value.syncs if part.value else ():
            if source in names:
                pairs[sync, names[source], name] = None
    for each in seen.summaries():
        known = set(config.nodes)
        # Of tasks: also syncs of which both databases do not answer now.
        pairs.update(dict.fromkeys(pair for pair in each.syncs if set(pair[1:]) <= known and not _has(pairs, pair)))
    return tuple(found for pair in pairs if (found := _sync(config, *pair)) is not None)


def _has(pairs: dict[tuple[str, str, str], None], pair: tuple[str, str, str]) -> bool:
    """Return whether a sync is known, in either direction: a way back has the name of its sync."""
    sync, source, target = pair
    return any(name == sync and {first, second} == {source, target} for name, first, second in pairs)


def _sync(config: Config, sync: str, source: str, target: str) -> SyncSeen | None:
    first, second = config.nodes[source], config.nodes[target]
    status = switchover = None
    problem = ""
    try:
        status = sync_status.status(SyncRequest(first, second, Scope(sync)))
    except TrueupError as error:
        problem = mask(str(error))
    try:
        switchover = switchover_status.status(SwitchoverRequest(sync, first, second))
    except TrueupError as error:
        problem = problem or mask(str(error))
    has_pointer = switchover is not None and any(side.pointer for side in switchover.sides)
    if status is None and not has_pointer and "does not exist" in problem:
        # It was finished or dropped; only its tasks name it.
        return None
    return SyncSeen(sync, source, target, status, switchover if has_pointer else None, problem)


def read_schedule(config: Config, verbs: Sequence[str], path: Path) -> tuple[Due, ...]:
    """Return the jobs of the configuration with their last and next times; no jobs if it has none."""
    try:
        jobs = load_jobs(str(config.path), verbs=verbs)
    except TrueupError as error:
        if "has no jobs" in error.message:
            return ()
        raise
    with TaskStore(path) as store:
        return tuple(due(jobs, store))


def read_doctor(config: Config, stores: Sequence[Path]) -> tuple[Finding, ...]:
    """Return the findings of doctor; Spark is not started."""
    diagnosis = doctor(config=config, spark=False, task_db=str(stores[0]) if stores else None)
    return diagnosis.findings
