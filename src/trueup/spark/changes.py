"""`spark.readStream.format("trueup_changes")`: the row changes of a database as a stream, from a logical slot.

Offsets are positions of the log: a batch `[start, end)` contains all transactions whose commit record starts in this
range. A slot is read by one session, so a batch is one partition; Spark distributes the keys afterwards. The slot is
advanced only after Spark has written a batch to its own checkpoint, so that after a crash the batch is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import psycopg
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from trueup.capture.log.pgoutput import Change, KeyLost, Relation, identity_places
from trueup.capture.log.reader import SlotReader
from trueup.capture.log.slot import flushed_position, lsn_number, lsn_text
from trueup.config.model import Node
from trueup.config.values import Setting
from trueup.config.wording import problem, suggest
from trueup.db.connection import address_of
from trueup.db.names import display_name
from trueup.db.node import connect, error_from_server
from trueup.db.server_identity import ServerPosition, server_position
from trueup.engine.garbage import freeze_imports
from trueup.engine.stalls import beat, beating
from trueup.errors import CheckFailed, ConfigError
from trueup.spark.errors import errors_for_spark
from trueup.spark.nodes import find_node

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "trueup_changes"
# Start of the message about a table whose key differs from the expected one; followed by the table and the reason.
KEY_CHANGED = "key changed of "
OPTIONS = (
    "address",
    "node",
    "config",
    "slot",
    "publication",
    "start",
    "max_bytes",
    "advance",
    "batch_rows",
    "positions",
)
_MAX_BYTES = 256 * 1024 * 1024
_BATCH_ROWS = 10_000
_EPOCH_MICROS = 946_684_800_000_000
SCHEMA = StructType(
    [
        # `schema.table`; for a message, its prefix.
        StructField("table", StringType()),
        # insert, update, delete, truncate, message; with the option positions also position.
        StructField("op", StringType()),
        StructField("key", ArrayType(StringType())),
        # The start of the commit record, as a number and as text.
        StructField("position", LongType()),
        StructField("lsn", StringType()),
        StructField("xid", LongType()),
        StructField("committed_at", TimestampType()),
    ]
)


Keys = Mapping[int, tuple[str, tuple[str, ...]]]
Keyless = tuple[Mapping[int, str], frozenset[str]]


class Limit(Protocol):
    """An upper limit for reading; picklable, because it is sent to the process that plans the batches."""

    def position(self) -> int | None:
        """Return the position before which changes may be read; None for no limit."""
        ...


class ChangesSource(DataSource):
    """The format `trueup_changes`. Its options are described in docs/datasource.md."""

    # Set by `trueup.register`: pickled with the class, so that addresses are not among the options.
    nodes: ClassVar[Mapping[str, Node]] = {}
    # Set by a validation: the limit, and per OID the name and the key columns of a table (changes of other tables are
    # left out).
    limit: ClassVar[Limit | None] = None
    keys: ClassVar[Keys | None] = None
    # Tables whose changes are returned without keys: their names by OID, as far as they are known, and all names.
    keyless: ClassVar[Keyless] = ({}, frozenset())
    # Where it is recorded that the log is being read; '': nowhere.
    file: ClassVar[str] = ""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema, which is the same for all tables: keys are lists of texts."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> ChangesReader:
        """Return a reader of the slot in the options."""
        with errors_for_spark():
            return ChangesReader(_parsed(self.options, self.nodes), self.limit, self.keys, self.keyless, self.file)


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one slot; it is pickled together with the address of the node."""

    def __init__(
        self,
        options: _Options,
        limit: Limit | None = None,
        keys: Keys | None = None,
        keyless: Keyless = ({}, frozenset()),
        file: str = "",
    ) -> None:
        self._options = options
        self._file = file
        self._limit = limit
        self._keys = keys
        names, self._keyless = keyless
        # A table that was renamed keeps the name of the validation.
        self._names = {**names, **{oid: name for oid, (name, _) in (keys or {}).items()}}
        self._last: int | None = None
        self._node = options.node
        with self._slot() as slot:
            # The address as libpq resolved it on this machine, because executors may have other files and variables.
            self._node = Node(options.node.name, address_of(slot.connection, application=f"{NAME} {options.slot}"))

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query: the option `start`, else the position of the slot."""
        with self._slot() as slot:
            start = self._options.start or slot.state().confirmed
            slot.check_start(start)
            return _offset(start, server_position(slot.connection))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Limit a batch to a number of bytes of the log; transactions are not split."""
        return ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch. Spark calls this when everything before `start` is in its checkpoint."""
        first = lsn_number(start["position"])
        with self._slot() as slot:
            server = self._same_server(start, server_position(slot.connection))
            self._release(slot, start)
            end = self._last if self._last is not None else self._end(slot)
        if isinstance(limit, ReadMaxBytes):
            end = min(end, first + limit.max_bytes)
        return _offset(max(first, end), server)

    def _same_server(self, start: Mapping[str, Any], server: ServerPosition) -> ServerPosition:
        """Return the server; raise CheckFailed if the offset is a position of another history of the log."""
        before = ServerPosition(
            start.get("system", server.system), start.get("timeline", server.timeline), lsn_number(start["position"])
        )
        reason = server.why_other(before)
        if reason:
            with errors_for_spark():
                raise CheckFailed(
                    [f"the source {reason}; changes after {start['position']} were not seen"],
                    cure="compare all rows, and start the stream with a new slot and a new checkpoint",
                    node=self._node.name,
                )
        return server

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only what exists now."""
        with self._slot() as slot:
            self._last = self._end(slot)

    def _end(self, slot: SlotReader) -> int:
        end = flushed_position(slot.connection)
        limit = self._limit.position() if self._limit is not None else None
        return end if limit is None else min(end, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition, because a slot is read by one session."""
        first, behind = lsn_number(start["position"]), lsn_number(end["position"])
        return [InputPartition((first, behind))] if first < behind else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a batch, `batch_rows` at a time."""
        freeze_imports()
        start, end = partition.value
        count = 0
        with self._slot() as slot:
            rows: list[Change] = []
            # The server decodes everything, and a large transaction takes long, before it returns the first change.
            with beating(self._file):
                changes = iter(slot.changes(start, end, self._places))
                first = next(changes, None)
            for change in chain(() if first is None else (first,), changes):
                rows.append(change)
                if len(rows) >= self._options.batch_rows:
                    count += len(rows)
                    beat(self._file)
                    yield batch_of(rows, self._names)
                    rows = []
            if self._options.positions:
                rows.append(Change(None, "position", (lsn_text(start),), end, count + len(rows), 0))
            if rows:
                yield batch_of(rows, self._names)

    def _places(self, relation: Relation) -> tuple[int, ...] | None:
        """Return the places of the key: of the expected columns, else of those that identify a row in the log."""
        if self._keys is None:
            return identity_places(relation)
        shown = display_name(relation.schema, relation.table)
        if relation.id not in self._keys:
            if any(shown == name for name, _ in self._keys.values()):
                raise KeyLost(f"{KEY_CHANGED}{shown}: another table had its name")
            return () if self._names.get(relation.id, shown) in self._keyless else None
        name, key = self._keys[relation.id]
        is_other = relation.identity != "f" and set(relation.keys) != set(key)
        if relation.identity == "n" or is_other or not set(key) <= set(relation.columns):
            now = f"({', '.join(relation.keys)})" if relation.keys and relation.identity != "n" else "none"
            raise KeyLost(f"{KEY_CHANGED}{name}: its key in the log was ({', '.join(key)}) and is now {now}")
        return tuple(relation.columns.index(column) for column in key)

    def commit(self, end: dict[str, Any]) -> None:
        """Let the server discard what was committed before `end`."""
        if self._options.advance:
            with self._slot() as slot:
                self._release(slot, end)

    def _release(self, slot: SlotReader, end: Mapping[str, Any]) -> None:
        position = lsn_number(end["position"])
        if self._options.advance and position > slot.state().confirmed:
            slot.advance(position)

    @contextmanager
    def _slot(self) -> Iterator[SlotReader]:
        """Open a session that reads the slot."""
        slot = self._options.slot
        with errors_for_spark():
            connection = connect(self._node, application=f"{NAME} {slot}", read_only=False)
            try:
                connection.execute("SET statement_timeout = 0")
                yield SlotReader(connection, self._node, slot, self._options.publication)
            except psycopg.Error as error:
                raise error_from_server(error, self._node) from None
            finally:
                connection.close()


def _offset(position: int, server: ServerPosition) -> dict[str, Any]:
    return {"position": lsn_text(position), "system": server.system, "timeline": server.timeline}


class _Options:
    """The checked options of a stream."""

    def __init__(self, node: Node, options: Mapping[str, str]) -> None:
        self.node = node
        self.slot = options.get("slot", "")
        self.publication = options.get("publication", "")
        if not self.slot or not self.publication:
            raise ConfigError(
                "the options slot and publication are missing",
                cure="give the options slot (a logical slot of the plugin pgoutput) and publication",
            )
        self.start = lsn_number(options["start"]) if options.get("start") else 0
        self.max_bytes = _number(options, "max_bytes", _MAX_BYTES)
        self.batch_rows = _number(options, "batch_rows", _BATCH_ROWS)
        self.advance = options.get("advance", "true").lower() != "false"
        # Adds a last row to each batch, with its end position, its start as table, and the number of its other rows as
        # xid.
        self.positions = options.get("positions", "false").lower() == "true"


def _parsed(raw: Mapping[str, str], nodes: Mapping[str, Node]) -> _Options:
    for name in raw:
        if name.lower() not in OPTIONS:
            raise problem("", f'the format {NAME} has no option "{name}"', suggest(name, OPTIONS))
    options = {name.lower(): value for name, value in raw.items()}
    return _Options(find_node(options, nodes), options)


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    if name not in options:
        return default
    number: int = Setting(f"option {name}", options[name], is_text=True).convert(int, {})
    if number < 1:
        raise problem(f"option {name}", "it must be at least 1", "Use a larger number.")
    return number


def batch_of(changes: Sequence[Change], names: Mapping[int, str]) -> pa.RecordBatch:
    """Convert changes to an Arrow batch of `SCHEMA`; `names` (by OID) replace the names of tables in the log."""
    import pyarrow as pa

    tables = [
        names.get(change.relation.id) or display_name(change.relation.schema, change.relation.table)
        if change.relation
        else str(change.key[0])
        for change in changes
    ]
    arrays = [
        pa.array(tables, pa.string()),
        pa.array([change.op for change in changes], pa.string()),
        pa.array([list(change.key) if change.relation else [] for change in changes], pa.list_(pa.string())),
        pa.array([change.lsn for change in changes], pa.int64()),
        pa.array([lsn_text(change.lsn) for change in changes], pa.string()),
        pa.array([change.xid for change in changes], pa.int64()),
        pa.array([change.at + _EPOCH_MICROS for change in changes], pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=SCHEMA.fieldNames())
