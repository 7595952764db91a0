"""Computes the states again from the chunk sets, and names the keys and columns in which the state table differs.

The chunk sets of the last runs are read, back to the first run that still has them: a run before it was pruned, or is a
migration. The states before this run are taken from its output `diff_log_0_state`, as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import reduce
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    FloatType,
    IntegerType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from trueup.engine.parquet_files import common_schema, reader_of
from trueup.verbs.difflog import chunks, input_checks
from trueup.verbs.difflog.manifest import Run, Runs
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SINCE, SLOW, DiffLogConfig, SideLog
from trueup.verbs.difflog.steps.merge import NOTHING, col, cols
from trueup.verbs.difflog_ends import key_state
from trueup.verbs.difflog_ends.key_state import KeyRules, comparison

# The column with the names of what differs.
COMPUTED = "trueup computed"
# Columns beside the key; names that no column of a user has.
_SET, _ROW, _FOUND, _BASE = "__trueup_set", "__trueup_row", "__trueup_found", "__trueup_base"
_EXPIRES, _KIND = "__trueup_expires", "__trueup_kind"
_NO_NAMES = "CAST(array() AS array<string>)"
_EPOCH = date(1970, 1, 1).toordinal()
_TIMES = (TimestampType, TimestampNTZType)


@dataclass(frozen=True)
class Recomputed:
    """The keys whose states differ (key and `COMPUTED`), and what was compared."""

    wrong: DataFrame
    # The number of keys that were computed; states without a row in these runs; keys that differ; the first run.
    keys: int
    untouched: int
    differing: int
    first: int
    # Columns that were not computed, because their rules are Spark SQL.
    skipped: tuple[str, ...]


@contextmanager
def recomputed(
    session: SparkSession, difflog: DiffLogConfig, state: DataFrame | None, last: int
) -> Iterator[Recomputed | None]:
    """Yield the comparison of the states after the run `last` with those computed again.

    Yields None if this run has not its chunk sets any more.
    """
    runs = _kept_runs(difflog, Runs(Path(difflog.work)), last)
    if state is None or not runs:
        yield None
        return
    compared = _compared(session, difflog, runs, state).persist()
    try:
        wrong = f.count(f.when(f.size(COMPUTED) > 0, 1))
        counts = {row[0]: row[1:] for row in compared.groupBy(_KIND).agg(f.count("*"), wrong).collect()}
        computed, untouched = (counts.get(kind, (0, 0)) for kind in ("computed", "untouched"))
        yield Recomputed(
            compared.where(f.size(COMPUTED) > 0).select(*cols((*difflog.entity.key, COMPUTED))),
            computed[0],
            untouched[0],
            computed[1] + untouched[1],
            runs[0].number,
            tuple(sorted(_expressions(difflog) & {*state.columns})),
        )
    finally:
        compared.unpersist()


def _kept_runs(difflog: DiffLogConfig, runs: Runs, last: int) -> list[Run]:
    """Return the last runs in the state table whose chunk sets and old states are on the disk."""
    kept: list[Run] = []
    for run in reversed([run for run in runs.all() if run.number <= last]):
        if "files" not in run.facts or run.facts.get("pruned") or not run.path("diff_log_0_state").is_dir():
            break
        sets = {name: chunks.chunk_folder(runs.work) / name for name in run.facts["chunks"]}
        if {name: input_checks.files_of_set(difflog, folder) for name, folder in sets.items()} != run.facts["files"]:
            break
        kept.append(run)
    kept.reverse()
    while lacking := [run for run in kept if not _has_late_rows(runs, run, kept[0].number)]:
        kept = kept[kept.index(lacking[-1]) + 1 :]
    return kept


def _has_late_rows(runs: Runs, run: Run, first: int) -> bool:
    """Return whether the late rows from before the run `first` that a run has joined are on the disk."""
    earlier = {number for number in run.facts["late_from"] if number < first}
    return all(
        any((other.path("late") / source).glob("*.parquet"))
        for other in runs.all()
        if other.number in earlier
        for source in other.late_sources()
    )


def _compared(session: SparkSession, difflog: DiffLogConfig, runs: Sequence[Run], state: DataFrame) -> DataFrame:
    """Return all keys with the names of what differs, and whether their state was computed."""
    key = list(difflog.entity.key)
    read = {source: _rows(session, difflog, runs, source, state.schema) for source in chunks.sources(difflog)}
    given = {source: rows for source, rows in read.items() if rows is not None}
    parts = [rows.withColumnRenamed(_ROW, _of(source)) for source, rows in given.items()]
    lists = [f.collect_list(col(_of(source))).alias(_of(source)) for source in given]
    rows = _union(parts).groupBy(*cols(key)).agg(*lists)
    states = _in_table(difflog, state)
    joined = rows.join(states, key, "left").join(_base(session, difflog, runs, state), key, "left")
    # trueup need not be installed on the executors.
    cloudpickle.register_pickle_by_value(key_state)  # type: ignore[no-untyped-call]
    rules = _rules(difflog, runs, given, state)
    compare = f.udf(comparison(rules, tuple(given)), "array<string>", useArrow=False)
    differing = compare(f.col(_BASE), f.col(_FOUND), *cols(map(_of, given)))
    expires = f.when(f.col(_EXPIRES), f.array(f.lit(EXPIRES))).otherwise(f.expr(_NO_NAMES))
    # If the log began with these runs, every state must have a row.
    unknown = f.array(f.lit(key_state.HAS_STATE)) if runs[0].number == 1 else f.expr(_NO_NAMES)
    computed = joined.select(*cols(key), f.concat(differing, expires).alias(COMPUTED), f.lit("computed").alias(_KIND))
    untouched = states.join(rows, key, "left_anti").select(
        *cols(key), f.concat(unknown, expires).alias(COMPUTED), f.lit("untouched").alias(_KIND)
    )
    return computed.unionByName(untouched)


def _of(source: str) -> str:
    return f"__trueup_rows of {source}"


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _rows(
    session: SparkSession, difflog: DiffLogConfig, runs: Sequence[Run], source: str, state: StructType
) -> DataFrame | None:
    """Return the rows of a source in all runs: the key, and the struct that `key_state` reads."""
    inputs = list(_inputs(session, difflog, runs, source))
    log = _log(difflog, source)
    order = log.order_by if log else ""
    kind = next((_kind(frame, order) for frame, _ in inputs if order in frame.columns), IntegerType())
    parts = [_plain(difflog, frame, source, state, run, order, kind) for frame, run in inputs]
    return _union(parts) if parts else None


def _inputs(
    session: SparkSession, difflog: DiffLogConfig, runs: Sequence[Run], source: str
) -> Iterator[tuple[DataFrame, Column]]:
    """Yield the rows of chunk sets, and late rows from before the first run; and the number of the run of a row."""
    work = Path(difflog.work)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        files = chunks.source_files(work, run.facts["chunks"], source)
        schema = common_schema(files) if files else None
        # Runs with the same columns are read together.
        groups.setdefault(schema.json() if schema else f"run {run.number}", []).append(run)
    for members in groups.values():
        numbers = {name: run.number for run in members for name in run.facts["chunks"]}
        frame = chunks.read_source(session, difflog, work, list(numbers), source)
        if frame is not None:
            pairs = [f.lit(part) for pair in numbers.items() for part in pair]
            yield frame.select("*", _folder_of_file().alias(_SET)), f.create_map(*pairs)[col(_SET)]
    for run in runs:
        for number in run.facts["late_from"]:
            late = chunks.read_late(session, Runs(work).path(number) / "late" / source)
            if number < runs[0].number and late is not None:
                yield late, f.lit(run.number)


def _folder_of_file() -> Column:
    """Return the name of the folder that contains the folder of the file of a row: a chunk set, or a run."""
    part = f.element_at(f.split(f.col("_metadata.file_path"), "/"), -3)
    return f.url_decode(f.regexp_replace(part, r"\+", "%2B"))


def _plain(
    difflog: DiffLogConfig,
    frame: DataFrame,
    source: str,
    state: StructType,
    run: Column,
    order: str,
    order_kind: DataType,
) -> DataFrame:
    """Return usable rows of a source in the form that `key_state` reads."""
    entity, log = difflog.entity, _log(difflog, source)
    columns = [name for name in frame.columns if name not in (_SET, *entity.key)]
    first = [name for name in (log.id if log else ()) if name in columns]
    columns = [*first, *(name for name in columns if name not in first)]
    # Rows with the same version and order are ordered by their content, as in a run.
    hashed = [name for name in columns if "map<" not in _kind(frame, name).simpleString()]
    tie = f.xxhash64(*cols(name for name in hashed if name != entity.fast_version), f.lit(0))
    marked = log is None and entity.deleted in columns
    gone = f.coalesce(col(entity.deleted).cast("boolean"), f.lit(False)) if marked else f.lit(False)
    position = col(order) if order in columns else f.lit(None).cast(order_kind)
    row = f.struct(
        run.cast("int").alias("run"),
        col(entity.fast_version).cast("long").alias("fast"),
        gone.alias("gone"),
        portable(position, order_kind).alias("position"),
        tie.alias("tie"),
        _struct(frame, [*columns, *_age_in_key(difflog)]).alias("values"),
    )
    return frame.where(chunks.unusable(difflog).isNull()).select(
        *[col(name).cast(state[name].dataType).alias(name) for name in entity.key], row.alias(_ROW)
    )


def _in_table(difflog: DiffLogConfig, state: DataFrame) -> DataFrame:
    """Return the states of the table: key, `_FOUND`, and whether their day of expiry is another one."""
    due = f.lit(None).cast("date")
    if difflog.state.ttl_days:
        name = difflog.state.ttl_column
        value = col(name) if name in state.columns else f.col(FAST).getField(name)
        due = f.date_add(f.to_date(value), difflog.state.ttl_days)
    differs = ~f.col(EXPIRES).eqNullSafe(due) if EXPIRES in state.columns else f.lit(False)
    found = _state(difflog, state, f.lit(0))
    return state.select(*cols(difflog.entity.key), found.alias(_FOUND), differs.alias(_EXPIRES))


def _base(session: SparkSession, difflog: DiffLogConfig, runs: Sequence[Run], state: DataFrame) -> DataFrame:
    """Return per key the state before the first of these runs that had one: key and `_BASE`."""
    key = difflog.entity.key
    if runs[0].number == 1:
        return state.limit(0).select(*cols(key), f.lit(None).cast("int").alias(_BASE))
    groups: dict[str, list[Path]] = {}
    for run in runs:
        folder = run.path("diff_log_0_state")
        schema = common_schema(sorted(folder.glob("*.parquet")))
        groups.setdefault(schema.json() if schema else str(folder), []).append(folder)
    parts = []
    for folders in groups.values():
        files = [file for folder in folders for file in folder.glob("*.parquet")]
        read = reader_of(session, files).parquet(*map(str, folders))
        frame = read.select("*", _folder_of_file().cast("int").alias(_SET))
        keys = [col(name).cast(state.schema[name].dataType).alias(name) for name in key]
        parts.append(frame.select(*keys, _state(difflog, frame.drop(_SET), col(_SET)).alias(_BASE)))
    first = f.min_by(_BASE, f.col(_BASE).getField("run")).alias(_BASE)
    return _union(parts).groupBy(*cols(key)).agg(first)


def _state(difflog: DiffLogConfig, frame: DataFrame, run: Column) -> Column:
    """Return states in the form that `key_state` reads."""
    skip = {*difflog.entity.key, difflog.entity.fast_version, SLOW, DELETED, FAST, EXPIRES, SINCE}
    values = [*(name for name in frame.columns if name not in skip), *_age_in_key(difflog)]
    supplied = f.lit(None).cast(f"struct<`{NOTHING}`:boolean>")
    if FAST in frame.columns:
        supplied = f.when(f.col(FAST).isNotNull(), portable(f.col(FAST), _kind(frame, FAST)))
    since = f.map_entries(SINCE) if SINCE in frame.columns else f.lit(None).cast("array<struct<key:string,value:long>>")
    return f.struct(
        run.cast("int").alias("run"),
        col(difflog.entity.fast_version).cast("long").alias("fast"),
        f.col(SLOW).cast("long").alias("slow"),
        f.col(DELETED).alias("deleted"),
        since.alias("since"),
        _struct(frame, values).alias("values"),
        supplied.alias("supplied"),
    )


def _struct(frame: DataFrame, names: Sequence[str]) -> Column:
    fields = [portable(col(name), _kind(frame, name)).alias(name) for name in names]
    return f.struct(*fields, f.lit(None).cast("boolean").alias(NOTHING))


def portable(column: Column, kind: DataType) -> Column:
    """Return a value for Python, independent of time zones: days and microseconds as numbers, maps as sorted lists."""
    if isinstance(kind, DateType):
        return f.unix_date(column)
    if isinstance(kind, TimestampType):
        return f.unix_micros(column)
    if isinstance(kind, TimestampNTZType):
        # The time zone of the session is UTC.
        return f.unix_micros(column.cast("timestamp"))
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        return f.transform(column, lambda item: portable(item, inner))
    if isinstance(kind, MapType):
        keys, values = kind.keyType, kind.valueType
        entries = f.transform(
            f.map_entries(column),
            lambda pair: f.struct(
                portable(pair.getField("key"), keys).alias("key"),
                portable(pair.getField("value"), values).alias("value"),
            ),
        )
        return f.array_sort(entries)
    if isinstance(kind, StructType):
        fields = [portable(column.getField(one.name), one.dataType).alias(one.name) for one in kind.fields]
        return f.when(column.isNotNull(), f.struct(*fields))
    is_plain = kind.typeName() not in ("variant", "calendarinterval", "daytimeinterval", "yearmonthinterval")
    return column if is_plain else column.cast("string")


def _rules(difflog: DiffLogConfig, runs: Sequence[Run], given: Mapping[str, DataFrame], state: DataFrame) -> KeyRules:
    entity, age = difflog.entity, difflog.state.ttl_column if difflog.state.ttl_days else ""
    columns = {source: _fields(rows) for source, rows in given.items()}
    return KeyRules(
        sources=tuple(chunks.sources(difflog)),
        columns={source: tuple(_state_columns(difflog, names)) for source, names in columns.items()},
        ids={log.name: log.id for log in difflog.logs},
        all_columns={source: tuple(names) for source, names in columns.items()},
        rules={name: (rule.name, rule.by) for name, rule in difflog.rules.items()},
        floats=frozenset(field.name for field in state.schema.fields if isinstance(field.dataType, FloatType)),
        supplied=(*entity.dropped, *entity.kept),
        version_name=entity.fast_version,
        deleted_name=DELETED,
        fast_name=FAST,
        has_deletions=bool(entity.deleted),
        ttl_days=difflog.state.ttl_days,
        ttl_column=age,
        ttl_is_time=isinstance(_age_kind(age, state.schema), _TIMES),
        ttl_in_key=age in entity.key,
        runs={run.number: _facts(run) for run in runs},
        skipped=frozenset({*_expressions(difflog), *_age_in_key(difflog), NOTHING}),
    )


def _facts(run: Run) -> tuple[int, bool, tuple[int, ...]]:
    day = date.fromisoformat(run.facts["today"]).toordinal() - _EPOCH
    return day, bool(run.facts["rejoin_late"]), tuple(run.facts["late_from"])


def _state_columns(difflog: DiffLogConfig, columns: Sequence[str]) -> Iterator[str]:
    """Yield the columns of a source that are part of the state: not those that identify or order rows only."""
    entity = difflog.entity
    times = {rule.by for rule in difflog.rules.values() if rule.by}
    aside = {name for log in difflog.logs for name in (*log.id, log.order_by)} - {*difflog.rules, *times}
    others = {*entity.key, entity.fast_version, *entity.dropped, entity.deleted, *_expressions(difflog)}
    yield from (name for name in columns if name not in aside and name not in others)


def _expressions(difflog: DiffLogConfig) -> set[str]:
    return {name for name, rule in difflog.rules.items() if rule.name == "expr"}


def _age_in_key(difflog: DiffLogConfig) -> list[str]:
    age = difflog.state.ttl_column
    return [age] if difflog.state.ttl_days and age in difflog.entity.key else []


def _age_kind(age: str, state: StructType) -> DataType | None:
    fast = state[FAST].dataType if FAST in state.names else StructType([])
    assert isinstance(fast, StructType)
    kinds = {one.name: one.dataType for one in (*fast.fields, *state.fields)}
    return kinds.get(age)


def _fields(rows: DataFrame) -> list[str]:
    row = _kind(rows, _ROW)
    assert isinstance(row, StructType)
    values = row["values"].dataType
    assert isinstance(values, StructType)
    return [name for name in values.names if name != NOTHING]


def _log(difflog: DiffLogConfig, source: str) -> SideLog | None:
    return next((log for log in difflog.logs if log.name == source), None)


def _kind(frame: DataFrame, name: str) -> DataType:
    return frame.schema[name].dataType
