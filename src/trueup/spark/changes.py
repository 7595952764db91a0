"""`spark.readStream.format("trueup_changes")`: the row changes of a database as a stream, from a logical slot.

Offsets are positions of the log: a batch `[start, end)` has all transactions whose commit begins there. A slot is read
by one session, so a batch is one partition; Spark spreads the keys afterwards. The slot is advanced only when Spark
says that a batch is done and written to its own checkpoint, so a crash reads the same batch again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from trueup.capture.log.pgoutput import Change, Commit, KeyLost, Relation, decode, identity_places
from trueup.capture.log.slot import SlotLost, advance, look, lsn_number, lsn_text, peek, positions
from trueup.config.model import Node
from trueup.config.values import Setting
from trueup.config.wording import problem, suggest
from trueup.db.connection import address_of
from trueup.db.names import display_name
from trueup.db.node import connect, error_from_server
from trueup.errors import ConfigError, TrueupError
from trueup.spark.errors import errors_for_spark
from trueup.spark.nodes import find_node

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "trueup_changes"
# How the message of a table with another key than the wanted one begins.
ALTERED = "the key was altered of "
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
        # As `schema.table`; of a message, its prefix.
        StructField("table", StringType()),
        # insert, update, delete, truncate, message; with the option positions also position.
        StructField("op", StringType()),
        StructField("key", ArrayType(StringType())),
        # Where the commit begins in the log, as a number and as PostgreSQL prints it.
        StructField("position", LongType()),
        StructField("lsn", StringType()),
        StructField("xid", LongType()),
        StructField("committed_at", TimestampType()),
    ]
)


class Limit(Protocol):
    """Says how far may be read: picklable, for it travels with the source."""

    def position(self) -> int | None:
        """The position before which all may be read; None: no limit."""
        ...


class ChangesSource(DataSource):
    """Row changes of a database. See docs/datasource.md for the options."""

    # Of `trueup.register`: they travel inside of the pickled class, and so never among the options.
    nodes: ClassVar[Mapping[str, Node]] = {}
    # Of who reads for itself: how far may be read, and the key columns by table (others are left out).
    limit: ClassVar[Limit | None] = None
    keys: ClassVar[Mapping[str, tuple[str, ...]] | None] = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """The same for all tables: keys are lists of texts."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> ChangesReader:
        """The reader of the slot that the options name."""
        with errors_for_spark():
            return ChangesReader(_parsed(self.options, self.nodes), self.limit, self.keys)


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one slot; it is pickled with the address in it."""

    def __init__(
        self, options: _Options, limit: Limit | None = None, keys: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        self._options = options
        self._limit = limit
        self._keys = keys
        self._last: int | None = None
        with errors_for_spark(), _session(options.node, options.slot) as connection:
            # What libpq found in this machine's files and variables, for the executors.
            resolved = address_of(connection, application=f"{NAME} {options.slot}")
        self._node = Node(options.node.name, resolved)

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: the given position, else where the slot is."""
        with errors_for_spark(), _session(self._node, self._options.slot) as connection:
            found = _slot(connection, self._options.slot)
            start = self._options.start or found
            if start < found:
                raise _gone(self._options.slot, start, found)
        return {"position": lsn_text(start)}

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most so many bytes of the log in a batch; a transaction is never cut."""
        return ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes; that it is asked for says that all before `start` is in Spark's checkpoint."""
        begin = lsn_number(start["position"])
        self.commit(start)
        end = self._last if self._last is not None else self._end()
        if isinstance(limit, ReadMaxBytes):
            end = min(end, begin + limit.max_bytes)
        return {"position": lsn_text(max(begin, end))}

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that will be read."""
        self._last = self._end()

    def _end(self) -> int:
        with errors_for_spark(), _session(self._node, self._options.slot) as connection:
            end = positions(connection).flushed
        allowed = self._limit.position() if self._limit is not None else None
        return end if allowed is None else min(end, allowed)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One: a slot is read by one session."""
        begin, behind = lsn_number(start["position"]), lsn_number(end["position"])
        return [InputPartition((begin, behind))] if begin < behind else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a batch, a few thousand at a time."""
        begin, behind = partition.value
        options = self._options
        with errors_for_spark(), _session(self._node, options.slot) as connection:
            found = _slot(connection, options.slot)
            if found > begin:
                raise _gone(options.slot, begin, found)
            waiting: list[Change] = []
            messages = peek(connection, options.slot, options.publication, upto=behind, most=0)
            for change in decode(messages, self._places):
                if isinstance(change, Commit) or not begin <= change.lsn < behind:
                    continue
                waiting.append(change)
                if len(waiting) >= options.batch_rows:
                    yield batch_of(waiting)
                    waiting = []
            if options.positions:
                waiting.append(Change(None, "position", ("",), behind, 0, 0))
            if waiting:
                yield batch_of(waiting)

    def _places(self, relation: Relation) -> tuple[int, ...] | None:
        """Where the key stands in a row: the columns that identify it in the log, or those that are wanted."""
        if self._keys is None:
            return identity_places(relation)
        name = display_name(relation.schema, relation.table)
        wanted = self._keys.get(name)
        if wanted is None:
            return None
        if relation.identity == "n" or (relation.identity != "f" and set(relation.keys) != set(wanted)):
            raise KeyLost(f"{ALTERED}{name}: its key was ({', '.join(wanted)}) and is now ({', '.join(relation.keys)})")
        return tuple(relation.columns.index(column) for column in wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has what was before `end`: the server may forget it."""
        if self._options.advance:
            with errors_for_spark(), _session(self._node, self._options.slot) as connection:
                position = lsn_number(end["position"])
                if position > _slot(connection, self._options.slot):
                    advance(connection, self._options.slot, position)


class _Options:
    """The options of a stream, checked."""

    def __init__(self, node: Node, given: Mapping[str, str]) -> None:
        self.node = node
        self.slot = given.get("slot", "")
        self.publication = given.get("publication", "")
        if not self.slot or not self.publication:
            raise ConfigError(
                "which changes?",
                cure="give the options slot (a logical slot of the plugin pgoutput) and publication",
            )
        self.start = lsn_number(given["start"]) if given.get("start") else 0
        self.max_bytes = _number(given, "max_bytes", _MAX_BYTES)
        self.batch_rows = _number(given, "batch_rows", _BATCH_ROWS)
        self.advance = given.get("advance", "true").lower() != "false"
        # A last row of each batch that says how far it goes.
        self.positions = given.get("positions", "false").lower() == "true"


def _parsed(given: Mapping[str, str], nodes: Mapping[str, Node]) -> _Options:
    for name in given:
        if name.lower() not in OPTIONS:
            raise problem("", f'the source {NAME} has no option "{name}"', suggest(name, OPTIONS))
    options = {name.lower(): value for name, value in given.items()}
    return _Options(find_node(options, nodes), options)


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    if name not in given:
        return default
    number: int = Setting(f"option {name}", given[name], is_text=True).convert(int, {})
    if number < 1:
        raise problem(f"option {name}", "it must be at least 1", "Give a larger number.")
    return number


def batch_of(changes: Sequence[Change]) -> pa.RecordBatch:
    """Changes as an Arrow batch."""
    import pyarrow as pa

    tables = [
        display_name(each.relation.schema, each.relation.table) if each.relation else str(each.key[0])
        for each in changes
    ]
    arrays = [
        pa.array(tables, pa.string()),
        pa.array([each.op for each in changes], pa.string()),
        pa.array([list(each.key) if each.relation else [] for each in changes], pa.list_(pa.string())),
        pa.array([each.lsn for each in changes], pa.int64()),
        pa.array([lsn_text(each.lsn) for each in changes], pa.string()),
        pa.array([each.xid for each in changes], pa.int64()),
        pa.array([each.at + _EPOCH_MICROS for each in changes], pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=SCHEMA.fieldNames())


def _slot(connection: Any, slot: str) -> int:
    found = look(connection, slot)
    if found is None:
        raise SlotLost(
            f"there is no slot {slot}", cure=f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"
        )
    return found.confirmed


def _gone(slot: str, start: int, found: int) -> SlotLost:
    return SlotLost(
        f"the slot {slot} is at {lsn_text(found)}, and {lsn_text(start)} was asked for: what is between was not seen",
        cure="somebody else advanced the slot: give every reader its own, and begin anew",
    )


@contextmanager
def _session(node: Node, slot: str) -> Iterator[Any]:
    connection = connect(node, application=f"{NAME} {slot}", read_only=False)
    try:
        connection.execute("SET statement_timeout = 0")
        yield connection
    except TrueupError:
        raise
    except Exception as error:
        raise error_from_server(error, node) from None
    finally:
        connection.close()
