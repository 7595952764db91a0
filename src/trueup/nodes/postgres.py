"""A PostgreSQL table, view or foreign table as a node of a comparison by canonical rows."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from trueup.config.model import Node
from trueup.config.settings import DiffSettings, ExpressionSettings
from trueup.db import catalog, reader
from trueup.db.arrow import View, stream
from trueup.db.catalog import Table
from trueup.db.expressions import Expression, examine
from trueup.db.names import display_name, table_spellings
from trueup.db.node import ALLOW_VIEWS, error_from_server
from trueup.db.reader import Reader, borrow
from trueup.db.snapshot import Control
from trueup.engine.slots import Share, cores_here
from trueup.errors import CheckFailed
from trueup.nodes import postgres_columns as columns
from trueup.nodes.base import (
    EMPTY,
    CanonicalDigest,
    KeyBlocks,
    Moment,
    NodeColumn,
    NodeTable,
    Plan,
    check_null_keys,
    merged,
)
from trueup.nodes.postgres_query import QUERY, check_query, read_query, with_expressions
from trueup.nodes.probe import SAMPLES, expected
from trueup.rows.canonical import decode_row, text_of
from trueup.rows.comparable import filter_of
from trueup.rows.encode import base_value
from trueup.rows.keys import source, where
from trueup.rows.pages import on_pages, page_count
from trueup.rows.spec import TableSpec, ValueClass
from trueup.task.connections import as_connected, check_free

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Pages per statement: short enough to be distributed evenly, long enough to be cheap.
_PAGES = 8192
_RANGES_PER_STATEMENT = 16
_BATCH_BYTES = 4 * 1024 * 1024
# Above this share of differing blocks, one pass over the table is faster than ranges of an index.
_DENSE = 0.3
# Blocks of equal width are used if the largest has at most this many times the rows of an average one.
_UNEVEN = 16
_SAMPLE = 2000
Conditions = Sequence[sql.Composable]


@dataclass(frozen=True)
class Options:
    """How the node is read."""

    settings: DiffSettings
    expressions: ExpressionSettings
    filter: str = ""
    # A query instead of a table; expressions of the user instead of columns, by name.
    query: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    # Whether the query is of trueup itself, and was checked.
    is_checked: bool = False


class PostgresNode:
    """One relation of a PostgreSQL database."""

    kind = "postgresql"

    def __init__(self, node: Node, table: str, options: Options, application: str) -> None:
        self.name = node.name
        self._table_name = table
        self._options = options
        self._application = application
        reader.allow(application)
        self._control = Control(node, application=application)
        self._table: Table | None = None
        self._filter = ("", "")
        self._query = ""

    @property
    def control(self) -> Control:
        """The session of the driver, which holds the snapshot."""
        return self._control

    def describe(self) -> NodeTable:
        """Return columns and keys; raise CheckFailed if the role cannot read the relation."""
        self._query = self._options.query
        table = self._table = self._found() if not self._query else None
        if table is None or self._is_view:
            self._allow_views()
        if table is not None and self._options.columns:
            self._query = with_expressions(table, self._options.columns)
        keys = tuple(key for key in table.keys if not {*key.columns} & {*self._options.columns}) if table else ()
        if table is None or self._query:
            table = self._table = replace(self._found_query(), keys=keys)
        self._filter = self._checked_filter(table)
        shown = "query" if self._query else display_name(table.schema, table.name)
        described = tuple(
            NodeColumn(column.name, column.type, columns.class_of(column), also=columns.other_classes(column))
            for column in table.columns
        )
        names = tuple(key.columns for key in table.keys)
        return NodeTable(shown, described, names, catalog.estimate_rows(self._control.connection, self._source()))

    def begin(self) -> Moment:
        """Take and export a snapshot."""
        table = self._known
        named = ("", "") if self._is_view else (table.schema, table.name)
        position = self._control.begin(*named, export=self._options.settings.snapshot)
        if not self._options.settings.snapshot:
            self._control.end()
        facts = {name: fact for name, fact in asdict(position).items() if name != "node"}
        # A foreign table is read on another server, which has its own snapshot.
        held = self._options.settings.snapshot and table.kind != "f"
        return Moment(self.name, self.kind, held, facts)

    def probe(self, kinds: Sequence[ValueClass], seed: bytes) -> Mapping[ValueClass, Sequence[str]]:
        """Compute the samples with the expressions that the digests use."""
        computed: dict[ValueClass, list[str]] = {}
        has_all = catalog.read_server(self._control.connection).encoding == "UTF8"
        for kind in kinds:
            # Another encoding of the database may lack characters of a sample: its values have none of them.
            results = dict(enumerate(expected(kind, seed)))
            known = [
                (number, sample)
                for number, sample in enumerate((*SAMPLES[kind], None))
                if has_all or not isinstance(sample, str) or sample.isascii()
            ]
            spec = columns.literal_spec(kind)
            hashed = sql.SQL("md5({})").format(columns.encoded([columns.value(spec, kind, kind)], seed))
            lines = sql.SQL(", ").join(
                sql.SQL("({}, {})").format(sql.Literal(number), columns.literal(kind, sample))
                for number, sample in known
            )
            query = sql.SQL("SELECT number, {} FROM (VALUES {}) t(number, value)").format(hashed, lines)
            results |= {number: str(text) for number, text in self._execute(query)}
            computed[kind] = list(results.values())
        return computed

    def key_blocks(self, plan: Plan, unit: int) -> KeyBlocks | None:
        """Return blocks by ranges of the first key column, if it is an integer whose values are spread evenly."""
        if not plan.key or plan.columns[0].kind != "int" or self._native(plan, 0) != "int":
            return None
        key = self._value(plan, 0)
        ends = sql.SQL("SELECT min({key}), max({key}) FROM {source}{where}").format(
            key=key, source=self._source(), where=where(self._spec)
        )
        low, high = self._execute(ends)[0]
        rows = catalog.estimate_rows(self._control.connection, self._source())
        if low is None or high - low >= 2**62:
            return None
        count = max(1, round(rows / unit))
        width = -(-(high - low + 1) // count)
        blocks = KeyBlocks(plan.columns[0].name, low, width, -(-(high - low + 1) // width))
        return blocks if self._is_even(blocks, key, rows) else None

    def digests(self, plan: Plan) -> Mapping[int, CanonicalDigest]:
        """Scan the table in parts of its pages, on several sessions of the same snapshot."""
        parts = self._page_parts()

        def digest(conditions: Conditions) -> list[tuple[Any, ...]]:
            query = self._digest_query(plan, conditions)
            # Only the session of the driver may read views.
            return self._execute(query) if self._is_view else self._read(lambda it: it.rows(query))

        sums: dict[int, CanonicalDigest] = {}
        slots = self._slots(len(parts))
        with ThreadPoolExecutor(slots, thread_name_prefix=f"trueup-{self.name}") as pool:
            for rows in pool.map(digest, parts):
                for block, count, without_key, high, low in rows:
                    check_null_keys(self.name, plan, without_key)
                    sums[block] = sums.get(block, EMPTY) + CanonicalDigest.of(count, int(high), int(low))
        return sums

    def rows(self, session: SparkSession, plan: Plan, blocks: Collection[int]) -> DataFrame:
        """Read the blocks by ranges of their keys or, if they are many or not by key, by pages."""
        by_key = plan.blocks if isinstance(plan.blocks, KeyBlocks) else None
        if by_key is not None and len(blocks) <= by_key.count * _DENSE:
            parts = self._range_parts(plan, by_key, blocks)
            queries = [self._rows_query(plan, conditions) for conditions in parts]
        else:
            queries = [self._rows_query(plan, conditions, blocks) for conditions in self._page_parts()]
        return self._frame(session, queries)

    def rows_of(self, session: SparkSession, plan: Plan, keys: DataFrame) -> DataFrame:
        """Read the current rows of the keys of each partition of the frame."""
        work = _ReadKeys(self._source_of_tasks(None), self._key_query(plan))
        return keys.select("k").mapInArrow(_Packed.of(work), "k binary, v binary")

    def changed(self) -> str:
        """Return that the snapshot was lost, if the session that holds it was."""
        if not self._control.is_alive():
            return "the connection that holds the snapshot was lost"
        return ""

    def stop(self) -> None:
        """Cancel the running queries."""
        reader.stop_all(self._application)
        self._control.cancel()

    def end(self) -> None:
        """End the snapshot."""
        if self._control.snapshot_id is not None:
            self._control.snapshot_id = None
            self._control.end()

    def close(self) -> None:
        """Stop the sessions of tasks, and close the one of the driver."""
        reader.stop_all(self._application)
        self._control.close()

    # The relation.

    @property
    def _known(self) -> Table:
        assert self._table is not None, "describe comes first"
        return self._table

    @property
    def _is_view(self) -> bool:
        return self._known.kind in ("v", "f", QUERY)

    @property
    def _spec(self) -> TableSpec:
        text, guard = self._filter
        return TableSpec(self._known.schema, self._known.name, (), (), filter=text, filter_guard=guard)

    def _source(self, sample: sql.Composable | None = None) -> sql.Composed:
        if not self._query:
            return source(self._spec, sample)
        # On its own line, because it may end with a comment.
        return sql.SQL("(\n{}\n) AS query").format(sql.SQL(self._query))

    def _found_query(self) -> Table:
        connection, node = self._control.connection, self._control.node
        if not self._options.is_checked:
            check_query(connection, node, self._query, self._options.expressions)
        return read_query(connection, node, self._query)

    def _found(self) -> Table:
        connection = self._control.connection
        spellings = table_spellings(self._table_name)
        table = next((read for pair in spellings if (read := catalog.read_table(connection, *pair))), None)
        shown = display_name(*((table.schema, table.name) if table else spellings[0]))
        reason = ""
        if table is None:
            reason = f"there is no table {shown}{catalog.nearest_table(connection, shown)}"
        elif table.kind not in {*catalog.READABLE_KINDS, "v", "f"}:
            reason = f"{shown} is not a table but a {catalog.OTHER_KINDS.get(table.kind, table.kind)}"
        elif not table.usage:
            reason = f"the role has no USAGE privilege on the schema of {shown}: GRANT USAGE ON SCHEMA to it"
        elif table.secured:
            reason = f"row security hides rows of {shown}; use its owner or a role with BYPASSRLS"
        elif catalog.read_server(connection).encoding == "SQL_ASCII":
            reason = "with the encoding SQL_ASCII of the database the characters of a text are unknown"
        if reason or table is None:
            raise CheckFailed([f"node {self.name}: {reason}"], cure="name a readable table for this node")
        return table

    def _checked_filter(self, table: Table) -> tuple[str, str]:
        text = self._options.filter
        if not text:
            return "", ""
        spec = TableSpec(table.schema, table.name, (), (), filter=text)
        filter = Expression("filter", text, self._source()) if self._query else filter_of(spec)
        examined = examine(self._control.connection, self._control.node, filter, self._options.expressions)
        if examined.reason:
            cure = "change the filter, or allow its functions with --allow-functions"
            raise CheckFailed([f"node {self.name}: {examined.reason}"], cure=cure)
        return text, examined.guard

    def _allow_views(self) -> None:
        try:
            self._control.connection.execute(ALLOW_VIEWS)
        except psycopg.Error:
            # Older servers do not have the setting.
            return

    # Statements.

    def _native(self, plan: Plan, number: int) -> ValueClass:
        native = plan.columns[number].on[self.name].kind
        assert native is not None
        return native

    def _value(self, plan: Plan, number: int) -> sql.Composable:
        compared = plan.columns[number]
        column = self._known.column(compared.on[self.name].name)
        assert column is not None
        return columns.value(columns.spec_of(column), self._native(plan, number), compared.kind)

    def _indexed(self, plan: Plan) -> sql.Composable:
        """Return the first key column itself: an index of an integer is not used for its value as a bigint."""
        column = self._known.column(plan.columns[0].on[self.name].name)
        assert column is not None
        return base_value(columns.spec_of(column))

    def _encoded(self, plan: Plan) -> tuple[sql.Composed, sql.Composed]:
        values = [self._value(plan, number) for number in range(len(plan.columns))]
        row = columns.encoded(values, plan.seed)
        return (columns.encoded(values[: plan.key]) if plan.key else row), row

    def _digest_query(self, plan: Plan, conditions: Conditions) -> sql.Composed:
        key = self._value(plan, 0) if isinstance(plan.blocks, KeyBlocks) else None
        # Of the first key column, computed below; of the hash, above: OFFSET 0 keeps it from being computed twice.
        by_key = isinstance(plan.blocks, KeyBlocks)
        block = columns.block_of(plan.blocks, key)
        return sql.SQL(
            "SELECT {outer} AS block, count(*), count(*) FILTER (WHERE lacks_key), sum((hash::bit(64))::int8)::text,"
            " sum(((hash << 64)::bit(64))::int8)::text"
            " FROM (SELECT {inner}{lacks_key} AS lacks_key, {hash} AS hash FROM {source}{where} OFFSET 0) rows"
            " GROUP BY 1"
        ).format(
            outer=sql.SQL("block") if by_key else block,
            inner=sql.SQL("{} AS block, ").format(block) if by_key else sql.SQL(""),
            lacks_key=self._lacks_key(plan),
            hash=columns.hash_bits(self._encoded(plan)[1]),
            source=self._source(),
            where=where(self._spec, *conditions),
        )

    def _lacks_key(self, plan: Plan) -> sql.Composable:
        columns_of_key = [self._known.column(column.on[self.name].name) for column in plan.columns[: plan.key]]
        tests = [
            sql.SQL("{} IS NULL").format(sql.Identifier(column.name))
            for column in columns_of_key
            if column is not None and not column.not_null
        ]
        return sql.SQL("({})").format(sql.SQL(" OR ").join(tests)) if tests else sql.SQL("false")

    def _rows_query(self, plan: Plan, conditions: Conditions, blocks: Collection[int] | None = None) -> str:
        key, row = self._encoded(plan)
        if blocks is None:
            query = sql.SQL("SELECT {} AS k, {} AS v FROM {}{}").format(
                key, row, self._source(), where(self._spec, *conditions)
            )
            return query.as_string(None)
        listed = sql.SQL("ANY({}::int4[])").format(sql.Literal("{" + ",".join(map(str, sorted(blocks))) + "}"))
        if isinstance(plan.blocks, KeyBlocks):
            condition = sql.SQL("{} = {}").format(columns.block_of(plan.blocks, self._value(plan, 0)), listed)
            return self._rows_query(plan, [*conditions, condition])
        query = sql.SQL(
            "SELECT k, v FROM (SELECT k, v, {hash} AS hash FROM"
            " (SELECT {key} AS k, {row} AS v FROM {source}{where} OFFSET 0) r OFFSET 0) rows WHERE {block} = {listed}"
        ).format(
            hash=columns.hash_bits(sql.SQL("v")),
            key=key,
            row=row,
            source=self._source(),
            where=where(self._spec, *conditions),
            block=columns.block_of(plan.blocks, None),
            listed=listed,
        )
        return query.as_string(None)

    def _key_query(self, plan: Plan) -> _KeyQuery:
        """Return the query of the rows whose encoded key is in a list."""
        key, row = self._encoded(plan)
        rows = sql.SQL("SELECT {} AS k, {} AS v FROM {}{}").format(
            key, row, self._source(), where(self._spec, sql.SQL("true"))
        )
        first, kind = "", plan.columns[0].kind
        if plan.key and kind == self._native(plan, 0) and kind in _ARRAYS:
            first = self._indexed(plan).as_string(None)
        return _KeyQuery(rows.as_string(None), key.as_string(None), first, kind)

    def _page_parts(self) -> list[Conditions]:
        """Return conditions that select the rows of parts of the table; one part without a snapshot or pages."""
        table, connection = self._known, self._control.connection
        has_pages = table.kind in catalog.READABLE_KINDS and self._control.snapshot_id is not None
        if not has_pages or connection.info.server_version < 140000:
            return [()]
        pages = page_count(connection, self._spec)
        # At least a few parts per session, so that all end at about the same time.
        size = max(64, min(_PAGES, pages // (4 * self._slots(pages)) + 1))
        edges = list(range(size, pages, size))
        return [on_pages(first, end) for first, end in zip([0, *edges], [*edges, None], strict=True)]

    def _range_parts(self, plan: Plan, by_key: KeyBlocks, blocks: Collection[int]) -> list[Conditions]:
        key = self._indexed(plan)
        ranges: list[sql.Composable] = []
        for first, last in merged(blocks):
            start, end = by_key.range_of(first)[0], by_key.range_of(last)[1]
            tests: list[sql.Composable] = [sql.SQL("true")]
            if start is not None:
                tests.append(sql.SQL("{} >= {}").format(key, sql.Literal(start)))
            if end is not None:
                tests.append(sql.SQL("{} < {}").format(key, sql.Literal(end)))
            ranges.append(sql.SQL("({})").format(sql.SQL(" AND ").join(tests)))
        batches = [
            ranges[number : number + _RANGES_PER_STATEMENT] for number in range(0, len(ranges), _RANGES_PER_STATEMENT)
        ]
        return [[sql.SQL("({})").format(sql.SQL(" OR ").join(batch))] for batch in batches]

    def _is_even(self, blocks: KeyBlocks, key: sql.Composable, rows: int) -> bool:
        """Return whether no block has far more rows than others, by a sample."""
        table = self._known
        if blocks.count == 1 or table.kind not in catalog.READABLE_KINDS:
            return True
        percent = min(100.0, 100.0 * max(_SAMPLE, 4 * blocks.count) / max(rows, 1))
        sample = sql.SQL("TABLESAMPLE SYSTEM ({})" if table.kind != "m" else "").format(sql.Literal(percent))
        query = sql.SQL("SELECT count(*) FROM {}{} GROUP BY {} ORDER BY 1 DESC").format(
            self._source(sample), where(self._spec), columns.block_of(blocks, key)
        )
        counts = [int(row[0]) for row in self._execute(query)]
        return not counts or counts[0] <= _UNEVEN * max(1.0, sum(counts) / blocks.count)

    # Sessions.

    def _execute(self, query: sql.Composed) -> list[tuple[Any, ...]]:
        try:
            # Binary results use the extended protocol, which accepts one statement only.
            return self._control.connection.execute(query, binary=True).fetchall()
        except Exception as error:
            raise error_from_server(error, self._control.node) from None

    def _read(self, ask: Callable[[Reader], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        settings = self._options.settings
        snapshot = self._control.snapshot_id
        with borrow(self._control.node, snapshot, application=self._application, retries=settings.retries) as session:
            return ask(session)

    def _slots(self, most: int) -> int:
        settings = self._options.settings
        wanted = Share(settings.concurrency_factor, settings.max_connections).of(cores_here())
        return max(1, min(wanted, most))

    def check_connections(self) -> None:
        """Raise CheckFailed if the server has too few free connections."""
        check_free([self._control], self._slots(1_000_000))

    def _source_of_tasks(self, snapshot: str | None) -> _TaskSource:
        shown = "query" if self._query else display_name(self._known.schema, self._known.name)
        view = View(snapshot, "SELECT 1", "SELECT 0::int8") if snapshot else None
        return _TaskSource(as_connected(self._control), view, shown, self._is_view)

    def _frame(self, session: SparkSession, queries: Sequence[str]) -> DataFrame:
        work = _ReadParts(self._source_of_tasks(self._control.snapshot_id), tuple(queries))
        parts = min(len(queries), 4 * self._slots(len(queries)))
        numbers = session.range(0, len(queries), 1, parts)
        return numbers.mapInArrow(_Packed.of(work), "k binary, v binary")


# Classes for which an index of the first key column can be used.
_ARRAYS: dict[ValueClass, str] = {"int": "int8[]", "text": "text[]", "uuid": "uuid[]"}


class _Packed:
    """Work of a Python worker of Spark, compressed: no address is readable where Spark shows or logs a function."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @classmethod
    def of(cls, work: object) -> _Packed:
        return cls(zlib.compress(pickle.dumps(work, pickle.HIGHEST_PROTOCOL), 1))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work = pickle.loads(zlib.decompress(self._data))
        return work.run(batches)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _TaskSource:
    node: Node
    view: View | None
    table: str
    is_view: bool

    def rows(self, query: str) -> Iterator[pa.RecordBatch]:
        yield from stream(
            self.node,
            query,
            view=self.view,
            table=self.table,
            block="",
            batch_bytes=_BATCH_BYTES,
            allow_views=self.is_view,
        )


@dataclass(frozen=True)
class _ReadParts:
    source: _TaskSource
    queries: tuple[str, ...]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.source.rows(self.queries[number])


@dataclass(frozen=True)
class _KeyQuery:
    """The rows of a relation, and the expressions of the encoded key and of its first column ('': no index)."""

    rows: str
    key: str
    first: str
    kind: ValueClass

    def among(self, keys: Sequence[bytes]) -> str:
        """Return the query of the rows with these keys."""
        conditions = [f"{self.key} = ANY({_array(f'{_HEX}{key.hex()}' for key in keys)}::bytea[])"]
        if self.first:
            # Selects all rows with these keys, perhaps more, by an index.
            firsts = {text_of(self.kind, first) for key in keys if (first := decode_row(key)[0]) is not None}
            # PostgreSQL has no such character.
            listed = _array(sorted(text for text in firsts if "\0" not in text))
            conditions.insert(0, f"{self.first} = ANY({listed}::{_ARRAYS[self.kind]})")
        return " AND ".join([self.rows, *conditions])


_HEX = "\\x"


def _array(texts: Iterable[str]) -> str:
    quoted = ('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts)
    return sql.Literal("{" + ",".join(quoted) + "}").as_string(None)


@dataclass(frozen=True)
class _ReadKeys:
    source: _TaskSource
    query: _KeyQuery

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = [bytes(key) for key in batch.column(0).to_pylist()]
            if keys:
                yield from self.source.rows(self.query.among(keys))
