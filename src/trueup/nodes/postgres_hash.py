"""The hashes of rows in PostgreSQL: two integers, `high` and `low`, by md5 or by `trueup.rows.lookup3`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from psycopg import sql

from trueup.nodes.base import HashBlocks
from trueup.nodes.postgres_columns import encoded
from trueup.rows.lookup3 import LONGEST, NULLS, is_number_class, seeds_of, steps_of
from trueup.rows.spec import ValueClass

# From this version on, bytes can be cast to integers, which takes less time than bits.
BYTES_SINCE = 180000
_BITS = ("('x' || md5({}))::bit(128)", "(hash::bit(64))::int8", "((hash << 64)::bit(64))::int8")
_BYTES = ("decode(md5({}), 'hex')", "substr(hash, 1, 8)::int8", "substr(hash, 9, 8)::int8")
_FIRST_BITS = 16


class RowHash(Protocol):
    """How the hashes of rows are computed. OFFSET 0 keeps values from being computed each time they are used."""

    def columns(self, values: Sequence[sql.Composable]) -> sql.Composed:
        """Return the columns that the hashes are computed of, of the values of a row."""

    def hashed(self, rows: sql.Composable, others: Sequence[str] = ()) -> sql.Composed:
        """Return rows with these columns, and other ones, as rows with the other ones, `high` and `low`."""


def block_of_hash(blocks: HashBlocks) -> sql.Composed:
    """Return the number of the block: the first bits of the column `high`."""
    assert blocks.bits <= _FIRST_BITS
    first = f"(((high >> {64 - _FIRST_BITS}) & {2**_FIRST_BITS - 1})::int4 >> {_FIRST_BITS - blocks.bits})"
    return sql.SQL(first if blocks.bits else "0").format()


@dataclass(frozen=True)
class Md5Hash:
    """The halves of the md5 of encoded rows."""

    seed: bytes
    server_version: int

    def columns(self, values: Sequence[sql.Composable]) -> sql.Composed:
        """Return the md5 of the encoded row."""
        return sql.SQL("{} AS hash").format(sql.SQL(self._parts[0]).format(encoded(values, self.seed)))

    def hashed(self, rows: sql.Composable, others: Sequence[str] = ()) -> sql.Composed:
        """Return the halves of the md5."""
        found = ", ".join([*others, f"{self._parts[1]} AS high", f"{self._parts[2]} AS low"])
        return sql.SQL(f"(SELECT {found} FROM {{}} r OFFSET 0)").format(rows)

    @property
    def _parts(self) -> tuple[str, str, str]:
        return _BYTES if self.server_version >= BYTES_SINCE else _BITS


# How a value is stored in its column, if not as it is: a number is that of the binary form.
_STORED: dict[ValueClass, str] = {
    "bool": "{}::int4::int8",
    "float": "float8send({})::int8",
    "date": "date_send({})::int4::int8",
    "timestamp": "timestamp_send({})::int8",
    "instant": "timestamptz_send({})::int8",
    "time": "time_send({})::int8",
    "uuid": "uuid_send({})",
}
_BYTES_CLASSES: tuple[ValueClass, ...] = ("bytes", "uuid")
_MIXED = "hashbyteaextended('\\x'::bytea, {})"


@dataclass(frozen=True)
class ShortHash:
    """The hashes of `trueup.rows.lookup3`, of columns of these classes."""

    kinds: Sequence[ValueClass]
    seed: bytes

    def columns(self, values: Sequence[sql.Composable]) -> sql.Composed:
        """Return the values of a row as the columns v0, v1 …"""
        named = (
            sql.SQL("{} AS {}").format(sql.SQL(_STORED.get(kind, "{}")).format(value), sql.SQL(f"v{number}"))
            for number, (kind, value) in enumerate(zip(self.kinds, values, strict=True))
        )
        return sql.SQL(", ").join(named)

    def hashed(self, rows: sql.Composable, others: Sequence[str] = ()) -> sql.Composed:
        """Return the chain of the values, and its hash."""
        kept = [*others, *(f"{self._nulls(start)} AS n{start}" for start in range(0, len(self.kinds), NULLS))]
        kept += [f"{self._value(number)} AS v{number}" for number in range(len(self.kinds))]
        first, second = seeds_of(self.seed)
        named = "".join(f"{name}, " for name in others)
        low = _MIXED.format(f"high # '{second}'::int8")
        return sql.SQL(
            f"(SELECT {named}high, {low} AS low FROM (SELECT {named}{self._chain(first)} AS high FROM"
            f" (SELECT {', '.join(kept)} FROM {{}} r OFFSET 0) r OFFSET 0) r OFFSET 0)"
        ).format(rows)

    def _chain(self, seed: int) -> str:
        # The smallest integer is none without its sign.
        state = f"'{seed}'::int8"
        is_number = False
        for step in steps_of(self.kinds):
            is_number = step.is_number
            if step.mixes:
                state = _MIXED.format(state)
            if is_number:
                state = f"({state} # {'n' if step.is_nulls else 'v'}{step.column})"
            elif self.kinds[step.column] in _BYTES_CLASSES:
                state = f"hashbyteaextended(v{step.column}, {state})"
            else:
                # The bytes of a text, whatever its collation says is equal.
                state = f'hashtextextended(v{step.column} COLLATE "pg_catalog"."C", {state})'
        return _MIXED.format(state) if is_number else state

    def _value(self, column: int) -> str:
        """Return a value in which NULL is empty, and long bytes are their md5."""
        name, kind = f"v{column}", self.kinds[column]
        empty = "0" if is_number_class(kind) else "'\\x'" if kind in _BYTES_CLASSES else "''"
        value = f"coalesce({name}, {empty})"
        if is_number_class(kind):
            return value
        seed = f"'\\x{self.seed.hex()}'::bytea"
        if kind in _BYTES_CLASSES:
            digest = f"convert_to(md5({seed} || {name}), 'UTF8')"
        else:
            digest = f"md5({seed} || convert_to({name}, 'UTF8'))"
        return f"CASE WHEN octet_length({name}) > {LONGEST} THEN {digest} ELSE {value} END"

    def _nulls(self, start: int) -> str:
        """Return which columns are NULL, as a number; mostly none is."""
        listed = range(start, min(start + NULLS, len(self.kinds)))
        names = ", ".join(f"v{number}" for number in listed)
        bits = " + ".join(f"(v{number} IS NULL)::int4 * {1 << number - start}::int8" for number in listed)
        return f"CASE WHEN num_nulls({names}) = 0 THEN 0 ELSE {bits} END"
