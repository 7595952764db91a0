"""The statements over one relation of a PostgreSQL node: digests of its blocks, its encoded rows, and parts of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from psycopg import sql

from trueup.db.catalog import READABLE_KINDS, Column, Table
from trueup.nodes import postgres_columns as columns
from trueup.nodes.base import Blocks, KeyBlocks, Plan, merged
from trueup.nodes.postgres_digests import DIGESTS
from trueup.nodes.postgres_hash import Md5Hash, RowHash, ShortHash, block_of_hash
from trueup.nodes.postgres_query import QUERY
from trueup.nodes.postgres_rows import ARRAYS, KeyQuery
from trueup.rows.encode import base_value
from trueup.rows.keys import has_null, source, where
from trueup.rows.spec import TableSpec, ValueClass

Conditions = Sequence[sql.Composable]
_RANGES_PER_STATEMENT = 16


@dataclass(frozen=True)
class Statements:
    """The statements of one node over its relation; `query`: a query instead of a table."""

    node: str
    table: Table
    query: str = ""
    # The condition of the user, and the one that guards it.
    filter: tuple[str, str] = ("", "")
    server_version: int = 0

    @property
    def is_view(self) -> bool:
        """Whether the relation has no pages of its own, or not only."""
        return self.table.kind in ("v", "f", QUERY) or self.table.has_foreign

    @property
    def has_pages(self) -> bool:
        """Whether the relation can be read in parts of its pages."""
        return self.table.kind in READABLE_KINDS and not self.table.has_foreign

    @property
    def spec(self) -> TableSpec:
        """The relation and its filter."""
        text, guard = self.filter
        return TableSpec(self.table.schema, self.table.name, (), (), filter=text, filter_guard=guard)

    def source(self, sample: sql.Composable | None = None) -> sql.Composed:
        """Return the FROM clause."""
        relation = source(self.spec, sample)
        if self.query:
            # On its own line, because it may end with a comment.
            relation = sql.SQL("(\n{}\n) AS query").format(sql.SQL(self.query))
        if self.table.has_foreign and self.table.kind != "f":
            # A foreign partition may have rows outside of its bounds: no condition may decide that it is not read.
            relation = sql.SQL("(SELECT * FROM {} OFFSET 0) AS fenced").format(relation)
        return relation

    def where(self, *conditions: sql.Composable) -> sql.Composed:
        """Return the WHERE clause of the filter and these conditions."""
        return where(self.spec, *conditions)

    def native(self, plan: Plan, number: int) -> ValueClass:
        """Return the class of a column on this node."""
        native = plan.columns[number].on[self.node].kind
        assert native is not None
        return native

    def value(self, plan: Plan, number: int) -> sql.Composable:
        """Return a column as a value of the type whose binary form is canonical."""
        spec = columns.spec_of(self._column(plan, number))
        return columns.value(spec, self.native(plan, number), plan.columns[number].kind)

    def key(self, plan: Plan) -> sql.Composable:
        """Return the value of the first key column of which blocks by key are computed."""
        kind = plan.columns[0].kind
        if kind == "decimal" != self.native(plan, 0):
            # An integer that is a decimal elsewhere: floor() of an integer is a double.
            return sql.SQL("{}::numeric").format(self.indexed(plan))
        return self.value(plan, 0) if kind == "int" else self.indexed(plan)

    def digests(self, plan: Plan, conditions: Conditions) -> sql.Composed:
        """Return the statement of the digests in one row of arrays: see `digests_of_arrays`."""
        by_key = isinstance(plan.blocks, KeyBlocks)
        block, hash = self._block(plan), self._hash(plan)
        lacks_key = self._lacks_key(plan)
        # Of the first key column, computed below; of the hash, above.
        rows = sql.SQL("(SELECT {inner}{lacks_key}{columns} FROM {source}{where} OFFSET 0)").format(
            inner=sql.SQL("{} AS block, ").format(block) if by_key else sql.SQL(""),
            lacks_key=sql.SQL("{} AS lacks_key, ").format(lacks_key) if lacks_key else sql.SQL(""),
            columns=hash.columns(self._values(plan)),
            source=self.source(),
            where=self.where(*conditions),
        )
        others = [*(["block"] if by_key else []), *(["lacks_key"] if lacks_key else [])]
        return sql.SQL(DIGESTS).format(
            block=sql.SQL("block") if by_key else block,
            without_key=sql.SQL("count(*) FILTER (WHERE lacks_key)" if lacks_key else "0::int8"),
            rows=hash.hashed(rows, others),
        )

    def rows(self, plan: Plan, conditions: Conditions, blocks: Collection[int] | None = None) -> str:
        """Return the statement of the encoded keys and rows, of these blocks only if they are given."""
        key, row = self._encoded(plan)
        if blocks is None:
            query = sql.SQL("SELECT {} AS k, {} AS v FROM {}{}").format(
                key, row, self.source(), self.where(*conditions)
            )
            return query.as_string(None)
        # A bit per block: the search in a list takes longer.
        bits = sql.SQL("'\\x{}'::bytea").format(sql.SQL(_bits(plan.blocks, blocks).hex()))
        listed = sql.SQL("get_bit({}, {}) = 1").format(bits, self._block(plan))
        if isinstance(plan.blocks, KeyBlocks):
            return self.rows(plan, [*conditions, listed])
        hash = self._hash(plan)
        rows = sql.SQL("(SELECT {key} AS k, {row} AS v, {columns} FROM {source}{where} OFFSET 0)").format(
            key=key,
            row=row,
            columns=hash.columns(self._values(plan)),
            source=self.source(),
            where=self.where(*conditions),
        )
        rows = hash.hashed(rows, ["k", "v"])
        query = sql.SQL("SELECT k, v FROM {} rows WHERE {}").format(rows, listed)
        return query.as_string(None)

    def rows_of_keys(self, plan: Plan) -> KeyQuery:
        """Return the query of the rows whose encoded key is in a list."""
        key, row = self._encoded(plan)
        rows = sql.SQL("SELECT {} AS k, {} AS v FROM {}{}").format(key, row, self.source(), self.where(sql.SQL("true")))
        first, kind, native = "", plan.columns[0].kind, self.native(plan, 0)
        if plan.key and native in ARRAYS and (kind == native or (kind, native) == ("decimal", "int")):
            first = self.indexed(plan).as_string(None)
        return KeyQuery(rows.as_string(None), key.as_string(None), first, kind, native)

    def ranges(self, plan: Plan, by_key: KeyBlocks, blocks: Collection[int]) -> list[Conditions]:
        """Return conditions on the first key column that select the rows of blocks, a few ranges each."""
        key = self.indexed(plan)
        ranges: list[sql.Composable] = []
        for first, last in merged(blocks):
            start, end = by_key.range_of(first)[0], by_key.range_of(last)[1]
            tests: list[sql.Composable] = [sql.SQL("true")]
            if start is not None:
                tests.append(sql.SQL("{} >= {}").format(key, columns.key_literal(by_key.kind, start)))
            if end is not None:
                tests.append(sql.SQL("{} < {}").format(key, columns.key_literal(by_key.kind, end)))
            ranges.append(sql.SQL("({})").format(sql.SQL(" AND ").join(tests)))
        batches = [
            ranges[number : number + _RANGES_PER_STATEMENT] for number in range(0, len(ranges), _RANGES_PER_STATEMENT)
        ]
        return [[sql.SQL("({})").format(sql.SQL(" OR ").join(batch))] for batch in batches]

    def _block(self, plan: Plan) -> sql.Composed:
        """Return the number of the block of a row, of its first key column or of the column `high`."""
        if isinstance(plan.blocks, KeyBlocks):
            return columns.block_of(plan.blocks, self.key(plan))
        return block_of_hash(plan.blocks)

    def _hash(self, plan: Plan) -> RowHash:
        if not plan.is_short:
            return Md5Hash(plan.seed, self.server_version)
        return ShortHash(plan.kinds, plan.seed)

    def _column(self, plan: Plan, number: int) -> Column:
        column = self.table.column(plan.columns[number].on[self.node].name)
        assert column is not None
        return column

    def indexed(self, plan: Plan) -> sql.Composable:
        """Return the first key column itself: an index of an integer is not used for its value as a bigint."""
        return base_value(columns.spec_of(self._column(plan, 0)))

    def _encoded(self, plan: Plan) -> tuple[sql.Composed, sql.Composed]:
        values = self._values(plan)
        row = columns.encoded(values, plan.seed)
        return (columns.encoded(values[: plan.key]) if plan.key else row), row

    def _values(self, plan: Plan) -> list[sql.Composable]:
        return [self.value(plan, number) for number in range(len(plan.columns))]

    def _lacks_key(self, plan: Plan) -> sql.Composable | None:
        """Return whether a row has NULL in its key; None without a key."""
        # Even a primary key does not exclude it: a table that inherits from this one, perhaps a foreign one, has none.
        names = [self._column(plan, number).name for number in range(plan.key)]
        return has_null(names) if names else None


def _bits(all_blocks: Blocks, blocks: Collection[int]) -> bytes:
    """Return the numbers of blocks as bits, as `get_bit` counts them."""
    # There is a block on each side of those by key.
    bits = bytearray((all_blocks.count + 2) // 8 + 1)
    for number in blocks:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)
