"""Checks of values before a run is recorded, in Spark; a value that cannot be used is named with its file and key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, DateType, MapType, StructType, TimestampNTZType, TimestampType

from trueup.errors import CheckFailed, StoreError
from trueup.verbs.difflog.frame import RunFrame
from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.steps.merge import col, cols, quoted
from trueup.verbs.difflog.stored import StoredFrame, store_frame

# What every version of ClickHouse stores as Date32 and DateTime64(6).
_FIRST, _END = "1900-01-01", "2300-01-01"
_LONGEST = 2**63 - 1
_CURE = "nothing was written; correct the value or the rule of the column, then run again"
_FILE = "file of the value"


def _raise_wrong_versions(difflog: DiffLogConfig, updates: Mapping[str, DataFrame]) -> None:
    """Raise CheckFailed: fast versions that are negative, or reach the multiplier, would be read as slow versions."""
    name = difflog.entity.fast_version
    wrong = (col(name).cast("long") >= difflog.multiplier) | (col(name).cast("long") < 0)
    examples = [_example(difflog, frame, name, wrong) for frame in updates.values()]
    raise CheckFailed(
        [f"{example} is not from 0 to below the multiplier {difflog.multiplier}" for example in examples if example],
        cure="nothing was written; correct the versions, or set a larger multiplier and run trueup difflog migrate",
    )


def check_values(difflog: DiffLogConfig, updates: Mapping[str, DataFrame], frame: RunFrame) -> StoredFrame:
    """Compute the frame, store and count its rows, and raise CheckFailed for a value out of range.

    That is the range of ClickHouse, or of Spark.
    """
    tested = _tested(frame) if difflog.target.table else {}
    try:
        stored = store_frame(frame, Path(difflog.work), tested)
    except PySparkException as error:
        raise _overflow(difflog, updates, frame, error) or error from None
    counts = stored.counts
    if counts.has_wrong_version:
        _raise_wrong_versions(difflog, frame.usable)
    slow = counts.highest_slow
    if slow > (_LONGEST - difflog.multiplier) // difflog.multiplier:
        raise CheckFailed(
            [f"slow version {slow} times the multiplier {difflog.multiplier} is too large for a version"],
            cure="nothing was written; start a new log with a smaller multiplier",
        )
    if counts.wrong_columns:
        wrong = counts.wrong_columns[:5]
        reasons = [_out_of_range(difflog, updates, frame, column, tested[column]) for column in wrong]
        raise CheckFailed(list(dict.fromkeys(reasons)), cure=_CURE)
    return stored


def _tested(frame: RunFrame) -> dict[str, Column]:
    """Return the columns of the frame with dates or times, and whether a value is one that ClickHouse refuses."""
    tests = {field.name: _is_far(col(field.name), field.dataType) for field in frame.data.schema.fields}
    return {name: condition for name, condition in tests.items() if condition is not None}


def _is_far(value: Column, kind: DataType) -> Column | None:
    """Return whether a value contains a date or a time that ClickHouse refuses; None if its type has none."""
    if isinstance(kind, (DateType, TimestampType, TimestampNTZType)):
        if isinstance(kind, TimestampType):
            return (value < _utc(_FIRST)) | (value >= _utc(_END))
        return (value < f.lit(_FIRST).cast(kind)) | (value >= f.lit(_END).cast(kind))
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        return f.exists(value, lambda item: _far(item, inner)) if _is_far(value, inner) is not None else None
    if isinstance(kind, MapType):
        parts = [(f.map_keys(value), kind.keyType), (f.map_values(value), kind.valueType)]
        return _any(_is_far(items, ArrayType(inner)) for items, inner in parts)
    if isinstance(kind, StructType):
        return _any(_is_far(value.getField(one.name), one.dataType) for one in kind.fields)
    return None


def _far(value: Column, kind: DataType) -> Column:
    condition = _is_far(value, kind)
    return f.lit(False) if condition is None else f.coalesce(condition, f.lit(False))


def _any(conditions: Iterator[Column | None]) -> Column | None:
    present = [f.coalesce(condition, f.lit(False)) for condition in conditions if condition is not None]
    return reduce(lambda one, other: one | other, present) if present else None


def _utc(day: str) -> Column:
    return f.lit(f"{day} 00:00:00Z").cast("timestamp")


def _out_of_range(
    difflog: DiffLogConfig, updates: Mapping[str, DataFrame], frame: RunFrame, column: str, far: Column
) -> str:
    """Return where a value that ClickHouse refuses comes from: a file, or else a rule."""
    what = f"is not from {_FIRST} to before {_END}, which ClickHouse can store"
    for source in updates.values():
        for field in source.schema.fields:
            if column == field.name or column.startswith(f"{field.name} "):
                condition = _is_far(col(field.name), field.dataType)
                if condition is not None and source.where(condition).limit(1).count():
                    return f"{_example(difflog, source, field.name, condition)} {what}"
    row = frame.data.where(far).select(*cols(difflog.entity.key), col(column).cast("string").alias(_FILE)).first()
    assert row is not None
    return f"{_key_text(difflog, row)}: {column} {row[_FILE]} {what}"


def _overflow(
    difflog: DiffLogConfig, updates: Mapping[str, DataFrame], frame: RunFrame, error: PySparkException
) -> CheckFailed | None:
    """Return which sum is too large for the type of its column; None if none is."""
    if not re.search("OVERFLOW|OUT_OF_RANGE", str(error.getCondition())):
        return None
    key = cols(difflog.entity.key)
    for name in [name for name, rule in difflog.rules.items() if rule.name == "sum"]:
        parts = [(one, one.schema[name].dataType.simpleString()) for one in updates.values() if name in one.columns]
        if not parts or parts[0][1] in ("float", "double"):
            continue
        values = [one.select(*key, col(name).cast("decimal(38,9)").alias(name)) for one, _ in parts]
        if name in frame.first.columns:
            old = col(frame.first.columns[name])
            # Only the old values are needed: the sums are not computed again.
            values.append(frame.data.select(*key, old.cast("decimal(38,9)").alias(name)))
        sums = reduce(lambda one, other: one.union(other), values).groupBy(*key).agg(f.sum(quoted(name)).alias(name))
        row = sums.where(f.expr(f"try_cast({quoted(name)} AS {parts[0][1]})").isNull() & col(name).isNotNull()).first()
        if row is not None:
            total = f"{row[name]:f}".rstrip("0").rstrip(".")
            return CheckFailed(
                [f"{_key_text(difflog, row)}: the sum of {name} is {total}, too large for the type {parts[0][1]}"],
                cure="nothing was written; correct the values, or start a new log with a larger type",
            )
    return None


def _example(difflog: DiffLogConfig, frame: DataFrame, column: str, condition: Column) -> str:
    """Return a row that fulfils a condition: its file, its key and its value; '' if there is none."""
    key = cols(difflog.entity.key)
    value = col(column).cast("string").alias(column if column not in difflog.entity.key else _FILE + " ")
    row = frame.where(condition).select(f.input_file_name().alias(_FILE), *key, value).first()
    return "" if row is None else f"{_path(row[0])}: {_key_text(difflog, row)}: {column} {row[-1]}"


def _key_text(difflog: DiffLogConfig, row: Mapping[str, object] | object) -> str:
    return ", ".join(f"{name} {row[name]}" for name in difflog.entity.key)  # type: ignore[index]


def _path(address: str) -> str:
    return unquote(urlsplit(address).path) if address.startswith("file:") else address


def _cure_for(run: Run | None) -> str:
    if run and run.is_recorded:
        return "correct the input and run again, or give up the run: trueup difflog run --abandon"
    return "nothing was written; correct the file, the value or the rule of the column, then run again"


@contextmanager
def input_errors(run: Run | None) -> Iterator[None]:
    """Raise errors of Spark about the input as CheckFailed: a damaged file, a wrong rule, a value out of range."""
    try:
        yield
    except Exception as error:
        # Errors of a job are not always raised as those of PySpark; their text is the same.
        of_spark = type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
        found = re.search(r"\[([A-Z][A-Z_.]+)\] (.*?)\s*SQLSTATE: \w+", str(error) if of_spark else "", re.DOTALL)
        if found is None or found[1].startswith(("INTERNAL", "JOB", "CONNECT")):
            raise
        text = " ".join(found[2].split())
        if found[1] == "TASK_WRITE_FAILED":
            reason = "No space left on device" if "No space left on device" in str(error) else text
            cure = "free disk space, or fix the permissions of the folder, then run again"
            raise StoreError(f"cannot write files into the work folder: {reason}", cure=cure) from None
        path = re.search(r"file:\S+?\.parquet", text)
        if "READ_FILE" in found[1] and path:
            text = f"{_path(path[0])}: the file is damaged, or was removed"
        else:
            text = f"the input cannot be processed: {text} ({found[1]})"
        raise CheckFailed([text], cure=_cure_for(run)) from None
