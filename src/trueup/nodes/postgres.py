"""A PostgreSQL table, view or foreign table as a node of a comparison by canonical rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from trueup.config.model import Node
from trueup.config.settings import DiffSettings, ExpressionSettings
from trueup.db import catalog, reader
from trueup.db.arrow import View
from trueup.db.catalog import Table
from trueup.db.expressions import Expression, examine
from trueup.db.names import display_name, table_spellings
from trueup.db.node import ALLOW_VIEWS, error_from_server
from trueup.db.reader import Reader, borrow
from trueup.db.snapshot import Control
from trueup.engine.slots import Share, cores_here
from trueup.errors import CheckFailed, Interrupted
from trueup.nodes import postgres_columns as columns
from trueup.nodes.base import KeyBlocks, Moment, NodeColumn, NodeTable, Plan, check_null_keys, merged
from trueup.nodes.block_digests import BlockDigests
from trueup.nodes.key_numbers import LIMITS, is_possible
from trueup.nodes.postgres_digests import digests_of_arrays
from trueup.nodes.postgres_hash import BYTES_SINCE, ShortHash
from trueup.nodes.postgres_query import check_query, read_query, with_expressions
from trueup.nodes.postgres_rows import Packed, ReadKeys, ReadParts, TaskSource, read_at_once
from trueup.nodes.postgres_statements import Conditions, Statements
from trueup.nodes.probe import SAMPLES, expected
from trueup.rows.canonical import encode
from trueup.rows.comparable import filter_of
from trueup.rows.lookup3 import hash_row
from trueup.rows.pages import on_pages, page_count
from trueup.rows.spec import TableSpec, ValueClass
from trueup.task.connections import as_connected, check_free

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trueup.nodes.base import EncodedRows

# Pages per statement: short enough to be distributed evenly, long enough to be cheap.
_PAGES = 8192
# With more ranges than this, or above this share of differing blocks, one pass over the table is faster than ranges of
# an index.
_MOST_RANGES = 400
_DENSE = 0.3
# Keys per statement of a re-check.
_KEYS = 1000
# Blocks of equal width are used if the largest has at most this many times the rows of an average one.
_UNEVEN = 16
_SAMPLE = 2000
_SAMPLED_BLOCKS = 100
# Bytes of all lengths of the last step of the short hash, and of one whose md5 is hashed.
_LENGTHS = (*(bytes(range(200, 200 + length)) for length in range(26)), bytes(3000))


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
        self._relation: Statements | None = None
        self._is_stopped = False

    @property
    def control(self) -> Control:
        """The session of the driver, which holds the snapshot."""
        return self._control

    def describe(self) -> NodeTable:
        """Return columns and keys; raise CheckFailed if the role cannot read the relation."""
        query = self._options.query
        table = self._found() if not query else None
        if table is None or table.kind in ("v", "f") or table.has_foreign:
            self._allow_views()
        if table is not None and self._options.columns:
            query = with_expressions(table, self._options.columns)
        keys = tuple(key for key in table.keys if not {*key.columns} & {*self._options.columns}) if table else ()
        if table is None or query:
            has_foreign = table is not None and table.has_foreign
            table = replace(self._found_query(query), keys=keys, has_foreign=has_foreign)
        version = self._control.connection.info.server_version
        relation = Statements(self.name, table, query, server_version=version)
        relation = self._relation = replace(relation, filter=self._checked_filter(relation))
        shown = "query" if query else display_name(table.schema, table.name)
        described = tuple(
            NodeColumn(column.name, column.type, columns.class_of(column), also=columns.other_classes(column))
            for column in table.columns
        )
        names = tuple(key.columns for key in table.keys)
        return NodeTable(shown, described, names, catalog.estimate_rows(self._control.connection, relation.source()))

    def begin(self) -> Moment:
        """Take and export a snapshot."""
        relation = self._known
        named = ("", "") if relation.is_view else (relation.table.schema, relation.table.name)
        position = self._control.begin(*named, export=self._options.settings.snapshot)
        if relation.is_view:
            # Locks the tables of a view or a query: after a TRUNCATE, the snapshot would show no rows.
            self._execute(sql.SQL("SELECT FROM {} LIMIT 0").format(relation.source()))
        if not self._options.settings.snapshot:
            self._control.end()
        facts = {name: fact for name, fact in asdict(position).items() if name != "node"}
        # A foreign table is read on another server, which has its own snapshot.
        held = self._options.settings.snapshot and not relation.table.has_foreign
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

    def has_short_hash(self, plan: Plan) -> bool:
        """Return whether the server hashes rows as `trueup.rows.lookup3`.

        Before version 18 it has no such functions, on processors of another byte order another result, and with another
        encoding texts have other bytes.
        """
        connection = self._control.connection
        if connection.info.server_version < BYTES_SINCE:
            return False
        if catalog.read_server(connection).encoding != "UTF8":
            return False
        return all(self._hashes_as_reference(kind, plan.seed) for kind in {*plan.kinds, "bytes", "text"})

    def _hashes_as_reference(self, kind: ValueClass, seed: bytes) -> bool:
        samples = [*SAMPLES[kind], *(_LENGTHS if kind == "bytes" else ()), None]
        short = ShortHash([kind], seed)
        spec = columns.literal_spec(kind)
        rows = sql.SQL("(SELECT {} FROM (VALUES {}) t(value))").format(
            short.columns([columns.value(spec, kind, kind)]),
            sql.SQL(", ").join(sql.SQL("({})").format(columns.literal(kind, sample)) for sample in samples),
        )
        reference = [hash_row([kind], [None if sample is None else encode(kind, sample)], seed) for sample in samples]
        computed = self._execute(sql.SQL("SELECT high, low FROM {} rows").format(short.hashed(rows)))
        return [(high % 2**64, low % 2**64) for high, low in computed] == reference

    def key_blocks(self, plan: Plan, unit: int) -> KeyBlocks | None:
        """Return blocks by ranges of the first key column, if it has numbers that are spread evenly."""
        relation, kind = self._known, plan.columns[0].kind
        natives = (kind, "int") if kind == "decimal" else (kind,)
        if not plan.key or kind not in LIMITS or relation.native(plan, 0) not in natives:
            return None
        ends = self._ends(relation, plan)
        rows = catalog.estimate_rows(self._control.connection, relation.source())
        if ends is None or ends[1] - ends[0] >= 2**62:
            return None
        low, high = ends
        count = max(1, round(rows / unit))
        width = -(-(high - low + 1) // count)
        blocks = KeyBlocks(plan.columns[0].name, low, width, -(-(high - low + 1) // width), kind)
        if not is_possible(kind, low, blocks.end) or rows > _UNEVEN * unit * blocks.count:
            return None
        return blocks if self._is_even(blocks, relation.key(plan), rows) else None

    def _ends(self, relation: Statements, plan: Plan) -> tuple[int, int] | None:
        """Return the smallest and the largest number of the first key column; None without any, or if one has none."""
        kind, key = plan.columns[0].kind, relation.key(plan)
        # In the order of an index. PostgreSQL has no largest uuid before version 18.
        conditions = [sql.SQL("{} IS NOT NULL").format(key)]
        if kind == "decimal":
            limit = sql.Literal(LIMITS[kind])
            conditions.append(sql.SQL("{key} >= -{limit} AND {key} < {limit}").format(key=key, limit=limit))
        queries = [
            sql.SQL("(SELECT {} FROM {}{} ORDER BY {} LIMIT 1)").format(
                columns.key_number(kind, key),
                relation.source(),
                relation.where(*conditions),
                sql.SQL("{} {}").format(relation.indexed(plan), order),
            )
            for order in (sql.SQL("ASC"), sql.SQL("DESC"))
        ]
        low, high = self._execute(sql.SQL("SELECT {}, {}").format(*queries))[0]
        return None if low is None or high is None else (int(low), int(high))

    def digests(self, plan: Plan) -> BlockDigests:
        """Scan the table in parts of its pages, on several sessions of the same snapshot."""
        relation, parts = self._known, self._page_parts()

        def digest(conditions: Conditions) -> BlockDigests:
            query = relation.digests(plan, conditions)
            # Only the session of the driver may read views.
            lines = self._execute(query) if relation.is_view else self._read(lambda it: it.rows(query))
            without_key, *arrays = lines[0]
            check_null_keys(self.name, plan, without_key)
            return digests_of_arrays(arrays)

        slots = self._slots(len(parts))
        with ThreadPoolExecutor(slots, thread_name_prefix=f"trueup-{self.name}") as pool:
            return BlockDigests.merged(list(pool.map(digest, parts)))

    def rows(self, session: SparkSession, plan: Plan, blocks: Collection[int]) -> DataFrame:
        """Read the blocks by ranges of their keys or, if they are many or not by key, by pages."""
        queries = self._row_queries(plan, blocks)
        work = ReadParts(self._source_of_tasks(self._control.snapshot_id), tuple(queries))
        parts = min(len(queries), 4 * self._slots(len(queries)))
        return session.range(0, len(queries), 1, parts).mapInArrow(Packed.of(work), "k binary, v binary")

    def local_rows(self, plan: Plan, blocks: Collection[int]) -> Iterator[EncodedRows]:
        """Read the blocks in this process."""
        source = self._source_of_tasks(self._control.snapshot_id)
        queries = self._row_queries(plan, blocks)
        # Views and queries are read in one session.
        slots = 1 if self._known.is_view else self._slots(len(queries))
        for batch in read_at_once(source, queries, slots):
            self._check_stop()
            yield batch.column(0), batch.column(1)

    def rows_of(self, session: SparkSession, plan: Plan, keys: DataFrame) -> DataFrame:
        """Read the current rows of the keys of each partition of the frame."""
        work = ReadKeys(self._source_of_tasks(None), self._known.rows_of_keys(plan))
        return keys.select("k").mapInArrow(Packed.of(work), "k binary, v binary")

    def local_rows_of(self, plan: Plan, keys: Sequence[bytes]) -> Iterator[EncodedRows]:
        """Read the current rows of the keys in this process."""
        source, query = self._source_of_tasks(None), self._known.rows_of_keys(plan)
        for start in range(0, len(keys), _KEYS):
            for batch in source.rows(query.among(keys[start : start + _KEYS])):
                self._check_stop()
                yield batch.column(0), batch.column(1)

    def changed(self) -> str:
        """Return that the snapshot was lost, if the session that holds it was."""
        if not self._control.is_alive():
            return "the connection that holds the snapshot was lost"
        return ""

    def stop(self) -> None:
        """Cancel the running queries."""
        self._is_stopped = True
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

    def _check_stop(self) -> None:
        if self._is_stopped:
            raise Interrupted("the run was stopped", node=self.name)

    # The relation.

    @property
    def _known(self) -> Statements:
        assert self._relation is not None, "describe comes first"
        return self._relation

    def _found_query(self, query: str) -> Table:
        connection, node = self._control.connection, self._control.node
        if not self._options.is_checked:
            check_query(connection, node, query, self._options.expressions)
        return read_query(connection, node, query)

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

    def _checked_filter(self, relation: Statements) -> tuple[str, str]:
        text, table = self._options.filter, relation.table
        if not text:
            return "", ""
        spec = TableSpec(table.schema, table.name, (), (), filter=text)
        filter = Expression("filter", text, relation.source()) if relation.query else filter_of(spec)
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

    # Parts.

    def _row_queries(self, plan: Plan, blocks: Collection[int]) -> list[str]:
        relation = self._known
        by_key = plan.blocks if isinstance(plan.blocks, KeyBlocks) else None
        if by_key and len(blocks) <= by_key.count * _DENSE and len(merged(blocks)) <= _MOST_RANGES:
            return [relation.rows(plan, conditions) for conditions in relation.ranges(plan, by_key, blocks)]
        return [relation.rows(plan, conditions, blocks) for conditions in self._page_parts()]

    def _page_parts(self) -> list[Conditions]:
        """Return conditions that select the rows of parts of the table; one part without a snapshot or pages."""
        relation, connection = self._known, self._control.connection
        has_pages = relation.has_pages and self._control.snapshot_id is not None
        if not has_pages or connection.info.server_version < 140000:
            return [()]
        pages = page_count(connection, relation.spec)
        # At least a few parts per session, so that all end at about the same time.
        size = max(64, min(_PAGES, pages // (4 * self._slots(pages)) + 1))
        edges = list(range(size, pages, size))
        return [on_pages(first, end) for first, end in zip([0, *edges], [*edges, None], strict=True)]

    def _is_even(self, blocks: KeyBlocks, key: sql.Composable, rows: int) -> bool:
        """Return whether no block has far more rows than others, by a sample of rows in coarse blocks."""
        relation = self._known
        if blocks.count == 1 or not relation.has_pages:
            return True
        # A sample of pages shows nothing about blocks with few rows: larger ones of the same range.
        share = -(-blocks.count // min(blocks.count, _SAMPLED_BLOCKS))
        coarse = replace(blocks, width=blocks.width * share, count=-(-blocks.count // share))
        percent = min(100.0, 100.0 * max(_SAMPLE, 40 * coarse.count) / max(rows, 1))
        sample = sql.SQL("TABLESAMPLE SYSTEM ({})" if relation.table.kind != "m" else "").format(sql.Literal(percent))
        query = sql.SQL("SELECT count(*) FROM {}{} GROUP BY {} ORDER BY 1 DESC").format(
            relation.source(sample), relation.where(), columns.block_of(coarse, key)
        )
        counts = [int(row[0]) for row in self._execute(query)]
        return not counts or counts[0] <= _UNEVEN * max(1.0, sum(counts) / coarse.count)

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

    def _source_of_tasks(self, snapshot: str | None) -> TaskSource:
        relation = self._known
        shown = "query" if relation.query else display_name(relation.table.schema, relation.table.name)
        # The session of the driver has locked the table.
        view = View(snapshot, "SELECT 1", "SELECT 0::int8") if snapshot else None
        return TaskSource(as_connected(self._control), view, shown, relation.is_view)
