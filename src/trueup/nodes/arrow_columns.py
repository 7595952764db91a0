"""Canonical bytes with the functions of Arrow, for local files: no Spark, and no Python per value.

Supports the types for which a file says without doubt what Spark reads; `class_of` returns None for others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trueup.errors import CheckFailed
from trueup.nodes.arrow_hash import Hashes
from trueup.nodes.base import Blocks, HashBlocks, KeyBlocks
from trueup.rows.canonical import EPOCH_DAYS, EPOCH_MICROS, FORMS, NAN, SEED
from trueup.rows.lookup3 import LONGEST, NULLS, seeds_of, shortened, steps_of
from trueup.rows.spec import ValueClass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.uint8]

try:
    # Of Python itself: OpenSSL's takes longer to start than a short row to hash.
    from _md5 import md5 as _md5  # type: ignore[import-not-found]
except ImportError:
    _md5 = partial(hashlib.md5, usedforsecurity=False)

_NAN = np.int64(int.from_bytes(NAN, "big"))
_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
# What a column of a class can be compared as here; texts of other classes have one form.
_TARGETS: dict[ValueClass, tuple[ValueClass, ...]] = {
    "bool": ("bool", "int", "decimal", "text"),
    "int": ("int", "decimal", "text"),
    "decimal": ("decimal",),
    "float": ("float",),
    "text": ("text", "char", "json"),
    "bytes": ("bytes",),
    "date": ("date",),
    "timestamp": ("timestamp",),
    "instant": ("instant", "timestamp"),
}


def class_of(kind: pa.DataType) -> ValueClass | None:
    """Return the class of the values of an Arrow type as Spark reads them, or None if it is left to Spark."""
    name = str(kind)
    if name in _INTS:
        return "int"
    if name in ("bool", "float", "double"):
        return "bool" if name == "bool" else "float"
    if name in ("string", "large_string"):
        return "text"
    if name in ("binary", "large_binary"):
        return "bytes"
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return "decimal"
    if pa.types.is_date32(kind):
        return "date"
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ms"):
        return "instant" if kind.tz else "timestamp"
    return None


def is_possible(native: ValueClass, target: ValueClass) -> bool:
    """Return whether a column of a class can be compared as another here."""
    return target in _TARGETS.get(native, ())


def _numbers(column: pa.Array, kind: pa.DataType) -> Any:
    """Return the values as an array of numpy; NULL is zero."""
    return column.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)


def _matrix(values: Any, size: int) -> Matrix:
    """Return big-endian numbers as bytes, one row each."""
    data: Matrix = np.ascontiguousarray(values).view(np.uint8).reshape(-1, size)
    return data


def _int64(column: pa.Array) -> Any:
    return _numbers(column, pa.int64())


def _bool(column: pa.Array) -> Any:
    return _numbers(column, pa.uint8()).astype(np.int64)


def _float_bits(column: pa.Array) -> Any:
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    # All NaN have the same bytes.
    return np.where(np.isnan(values), _NAN, values.view(np.int64))


def _date(column: pa.Array) -> Any:
    days = _numbers(column.cast(pa.int32()), pa.int64()) - EPOCH_DAYS
    if len(days) and days.min() < -(2**31):
        raise CheckFailed(["a date is out of the range of canonical dates"], cure="leave the column out")
    return days


def _micros(column: pa.Array) -> Any:
    """Return times in microseconds since the first day of the canonical calendar."""
    if column.type.unit != "us":
        # Raises ArrowInvalid for a time that is out of range.
        column = column.cast(pa.timestamp("us", column.type.tz))
    micros = _numbers(column.cast(pa.int64()), pa.int64())
    if len(micros) and micros.min() < -(2**63) + EPOCH_MICROS:
        raise CheckFailed(["a time is out of the range of canonical times"], cure="leave the column out")
    return micros - EPOCH_MICROS


# The classes whose form is a number: their values as an array of numpy.
_FIXED: dict[ValueClass, Any] = {
    **{"bool": _bool, "int": _int64, "float": _float_bits, "date": _date, "timestamp": _micros, "instant": _micros},
}


def _decimal(column: pa.Array) -> pa.Array:
    if not pa.types.is_decimal(column.type):
        kind = pa.int64() if pa.types.is_boolean(column.type) else column.type
        return column.cast(kind).cast(pa.string())
    printed = column.cast(pa.string())
    # Arrow writes small numbers with an exponent.
    odd = pc.fill_null(pc.match_substring(printed, "E"), False)
    if pc.any(odd).as_py():
        texts = [f"{value:f}" for value in column.filter(odd).to_pylist()]
        printed = pc.replace_with_mask(printed, odd, pa.array(texts, pa.string()))
    if not column.type.scale:
        return printed
    return pc.ascii_rtrim(pc.ascii_rtrim(printed, "0"), ".")


def _bytes(column: pa.Array, target: ValueClass) -> pa.Array:
    """Return values of a class without a fixed size as bytes; NULL stays NULL."""
    if target == "decimal":
        column = _decimal(column)
    elif target == "char":
        column = pc.ascii_rtrim(column, " ")
    elif target == "text" and not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        # Of integers and booleans.
        column = column.cast(pa.string())
    return column.cast(pa.binary())


def _head(fields: int, seed: bytes | None) -> bytes:
    head = fields.to_bytes(4, "big")
    return head if seed is None else head + SEED.number.to_bytes(4, "big") + len(seed).to_bytes(4, "big") + seed


def md5_hashes(rows: pa.Array) -> tuple[Any, Any]:
    """Return both halves of the md5 of each row."""
    digests = b"".join([_md5(line).digest() for line in rows.to_pylist()])
    halves = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    return halves[:, 0], halves[:, 1]


def short_hashes(kinds: Sequence[ValueClass], values: Sequence[pa.Array], size: int, seed: bytes) -> tuple[Any, Any]:
    """Return both hashes of `lookup3` of the rows of a batch."""
    first, second = seeds_of(seed)
    hashes = Hashes(size, first)
    is_number = False
    for step in steps_of(kinds):
        is_number = step.is_number
        if step.mixes:
            hashes.mix()
        if step.is_nulls:
            _add_nulls(hashes, values[step.column : step.column + NULLS])
            continue
        kind, column = kinds[step.column], values[step.column]
        if is_number:
            numbers = _FIXED[kind](column)
            hashes.add_numbers(np.where(_valid(column), numbers, 0) if column.null_count else numbers)
        else:
            hashes.add_bytes(*buffers(_shortened(_bytes(column, kind), seed)))
    if is_number:
        hashes.mix()
    high = hashes.found().copy()
    hashes.add_numbers(np.full(size, second))
    hashes.mix()
    return high, hashes.found()


def _valid(column: pa.Array) -> Any:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _add_nulls(hashes: Hashes, values: Sequence[pa.Array]) -> None:
    if any(column.null_count for column in values):
        hashes.add_numbers(sum(~_valid(column) * np.int64(1 << place) for place, column in enumerate(values)))


def _shortened(data: pa.Array, seed: bytes) -> pa.Array:
    """Return bytes in which NULL is empty, and a long value is its md5."""
    if data.null_count:
        data = data.fill_null(b"")
    is_long = pc.greater(pc.binary_length(data), LONGEST)
    if not pc.any(is_long).as_py():
        return data
    digests = [shortened(value, seed) for value in data.filter(is_long).to_pylist()]
    return pc.replace_with_mask(data, is_long, pa.array(digests, pa.binary()))


def buffers(data: pa.Array) -> tuple[Any, Any]:
    """Return the bytes of an array, and where its values begin and end."""
    _, offsets, stored = data.buffers()
    width = np.int64 if pa.types.is_large_binary(data.type) else np.int32
    places = np.frombuffer(offsets, width)[data.offset : data.offset + len(data) + 1]
    return np.frombuffer(stored if stored is not None else b"", np.uint8), places


def rows(
    kinds: Sequence[ValueClass],
    values: Sequence[pa.Array],
    size: int,
    seed: bytes | None = None,
) -> pa.Array:
    """Return columns of a batch of this many rows as encoded rows, an array of bytes."""
    head = np.frombuffer(_head(len(values) + (seed is not None), seed), np.uint8)
    # Bytes of a fixed size per row that follow each other are written at once.
    pieces: list[pa.Array] = []
    waiting = [np.broadcast_to(head, (size, len(head)))]
    for kind, column in zip(kinds, values, strict=True):
        form = FORMS[kind]
        number = np.frombuffer(form.number.to_bytes(4, "big"), np.uint8)
        waiting.append(np.broadcast_to(number, (size, 4)))
        fixed = _matrix(_FIXED[kind](column).astype(f">i{form.size}"), form.size) if form.size else None
        if fixed is not None and not column.null_count:
            length = np.frombuffer(form.size.to_bytes(4, "big"), np.uint8)
            waiting += [np.broadcast_to(length, (size, 4)), fixed]
            continue
        data = _bytes(column, kind) if fixed is None else _binary(fixed)
        valid = _valid(column)
        lengths = pc.binary_length(data).fill_null(0).to_numpy(zero_copy_only=False)
        waiting.append(_matrix(np.where(valid, lengths, -1).astype(">i4"), 4))
        if column.null_count:
            data = pc.if_else(pa.array(valid), data, pa.scalar(b"", pa.binary()))
        pieces += [_binary(np.concatenate(waiting, axis=1)), data]
        waiting = []
    if waiting:
        pieces.append(_binary(np.concatenate(waiting, axis=1)))
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def _binary(matrix: Matrix) -> pa.Array:
    size, width = matrix.shape
    data = np.ascontiguousarray(matrix)
    offsets = np.arange(size + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), size, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def block_numbers(blocks: Blocks, key: pa.Array | None, high: Any) -> Any:
    """Return the number of the block of each row, of its first key column and the first half of its hash."""
    if isinstance(blocks, HashBlocks):
        return (high >> np.uint64(64 - blocks.bits)).astype(np.int64) if blocks.bits else np.zeros(len(high), np.int64)
    assert key is not None
    values, last = key_numbers(key, blocks), min(blocks.end, 2**63) - 1
    inside = (np.clip(values, blocks.low, last) - blocks.low) // blocks.width + 1
    return np.where(values < blocks.low, 0, np.where(values > last, blocks.count + 1, inside))


def key_numbers(key: pa.Array, blocks: KeyBlocks) -> Any:
    """Return the numbers of values of the first key column: those outside of the blocks may be others."""
    if blocks.kind == "int":
        return _numbers(key, pa.int64())
    if blocks.kind == "date":
        return _numbers(key.cast(pa.int32()), pa.int64()) - EPOCH_DAYS
    if blocks.kind == "decimal":
        # Of more digits than any decimal of a file: the next smaller integer may have one more.
        wide, whole = pa.decimal256(76, key.type.scale), pa.decimal256(76, 0)
        low, end = (pa.scalar(Decimal(number), whole) for number in (blocks.low - 1, blocks.end))
        # A decimal may be larger than any number.
        near = pc.min_element_wise(pc.max_element_wise(pc.floor(key.cast(wide)).cast(whole), low), end)
        return _numbers(near, pa.int64())
    return _micros(key)
