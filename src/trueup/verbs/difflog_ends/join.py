"""Joins raw visits and raw side logs into the chunks of a run, so that every row of a side log is applied exactly once.

There are four cases for a row of a side log. Its visit is new: the row is merged into the newest row of the visit. Its
visit is known: the row becomes a separate update with the newest fast version. Its visit is unknown: the row is pending
and input of the next join. It has no key: it is refused, with a reason. A row whose id was used by an earlier join is a
duplicate, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from trueup.config.wording import suggest
from trueup.errors import CheckFailed
from trueup.verbs.difflog.chunks import INTEGERS, fits
from trueup.verbs.difflog.model import DiffLogConfig, Rule, SideLog, StepOptions
from trueup.verbs.difflog.steps.merge import col, cols, merge_updates, plus_sql, quoted

# Additional columns; the configuration rejects names with this prefix.
KNOWN, NEWEST, IS_DELETED, RANK, MERGE = (
    f"__trueup_{word}" for word in ("known", "newest", "deleted", "rank", "merge")
)
REASON = "reason"


@dataclass(frozen=True)
class Joined:
    """The result of a join: `visits` and `logs` for a run, `pending` for the next join, and `refused` rows.

    `pending` has the columns of the raw log. The keys of `refused` are names of logs, or of the entity.
    """

    visits: DataFrame
    logs: dict[str, DataFrame] = field(default_factory=dict)
    pending: dict[str, DataFrame] = field(default_factory=dict)
    refused: dict[str, DataFrame] = field(default_factory=dict)
    # Key and id of the rows that are not pending, of logs that have an id: later joins leave them out.
    applied: dict[str, DataFrame] = field(default_factory=dict)


def join(
    session: SparkSession,
    difflog: DiffLogConfig,
    *,
    visits: DataFrame,
    logs: Mapping[str, DataFrame],
    known: DataFrame,
    pending: Mapping[str, DataFrame],
    applied: Mapping[str, DataFrame] | None = None,
) -> Joined:
    """Return the joined chunks as lazy, deterministic DataFrames. Raises CheckFailed that lists all wrong columns.

    `known` has one row per known visit: the key and the fast version. `pending` comes from the previous join, `applied`
    from all earlier ones.
    """
    applied = applied or {}
    raw = {log.name: _both(log.name, logs, pending) for log in difflog.logs}
    present = {name: frame for name, frame in raw.items() if frame is not None}
    _check(difflog, visits, logs, known, pending, present)
    _check_ids(difflog, present, applied)
    usable, no_visits = _visits(difflog, visits, known)
    places = _places(difflog, usable)
    keys = _known(difflog, known)
    rows, refused = {}, {difflog.entity.name: no_visits}
    for log in (log for log in difflog.logs if log.name in present):
        rows[log.name], refused[log.name] = _rows(difflog, log, present[log.name], known)
        if log.name in applied:
            rows[log.name] = _unused(difflog, log, rows[log.name], applied[log.name])
    placed = {
        name: frame.join(keys, _key(difflog), "left").join(places, _key(difflog), "left")
        for name, frame in rows.items()
    }
    return Joined(
        visits=_joined_visits(difflog, usable.join(keys, _key(difflog), "left"), rows),
        logs={log.name: _updates(difflog, log, placed[log.name]) for log in difflog.logs if log.name in placed},
        pending={name: _pending(frame, present[name]) for name, frame in placed.items()},
        refused=refused,
        applied={
            log.name: _used(difflog, log, placed[log.name]) for log in difflog.logs if log.id and log.name in placed
        },
    )


def _both(name: str, logs: Mapping[str, DataFrame], pending: Mapping[str, DataFrame]) -> DataFrame | None:
    """Return the new and the pending rows of a log; new rows may have more columns."""
    frames = [source[name] for source in (logs, pending) if name in source]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames) if frames else None


def _key(difflog: DiffLogConfig) -> list[str]:
    """Return internal names of the key columns: a log may use the names of the entity's key for other columns."""
    return [f"__trueup_key_{number}" for number in range(len(difflog.entity.key))]


def _keys(difflog: DiffLogConfig, columns: Sequence[str], known: DataFrame) -> list[Column]:
    """Return the key of a frame, cast to the types of the state: its buckets depend on the type."""
    kinds = [known.schema[name].dataType for name in difflog.entity.key]
    return [
        col(column).cast(kind).alias(internal)
        for column, kind, internal in zip(columns, kinds, _key(difflog), strict=True)
    ]


def _named_key(difflog: DiffLogConfig) -> list[Column]:
    return [f.col(internal).alias(name) for internal, name in zip(_key(difflog), difflog.entity.key, strict=True)]


def _known(difflog: DiffLogConfig, known: DataFrame) -> DataFrame:
    fast = col(difflog.entity.fast_version).cast("long").alias(KNOWN)
    return known.select(*_keys(difflog, difflog.entity.key, known), fast)


def _visits(difflog: DiffLogConfig, visits: DataFrame, known: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return one row per key and fast version, with `RANK` 1 for the newest of its key; and the unusable rows."""
    entity = difflog.entity
    columns = _visit_columns(difflog)
    reason = _reason([*entity.key, entity.fast_version])
    fast = col(entity.fast_version).cast("long")
    deleted = f.coalesce(col(entity.deleted).cast("boolean"), f.lit(False)) if entity.deleted else f.lit(False)
    marked = visits.where(reason.isNull()).select(
        *_keys(difflog, entity.key, known),
        fast.alias(NEWEST),
        deleted.alias(IS_DELETED),
        *cols(columns),
    )
    # If a version occurs twice, the deletion wins.
    distinct = _once(
        marked,
        _key(difflog),
        [f.col(NEWEST).desc()],
        [NEWEST],
        [f.col(IS_DELETED).desc(), _content_order(marked, columns)],
    )
    names = cols((*entity.key, entity.fast_version, *columns))
    return distinct, visits.where(reason.isNotNull()).select(*names, reason.alias(REASON))


def _visit_columns(difflog: DiffLogConfig) -> list[str]:
    """Return the columns of a raw visit that are used, besides the key and the fast version."""
    entity = difflog.entity
    marks = [entity.deleted] if entity.deleted else []
    return list(dict.fromkeys([*marks, *entity.dropped, *_with_times(entity.kept)]))


def _with_times(rules: Mapping[str, Rule]) -> list[str]:
    """Return the columns of these rules and their time columns."""
    return list(dict.fromkeys([*rules, *(rule.by for rule in rules.values() if rule.by)]))


def _reason(columns: Sequence[str]) -> Column:
    """Return the reason why a row cannot be used, or NULL."""
    reasons = [f.when(col(name).isNull(), f.lit(f"{name} is NULL")) for name in columns]
    return f.coalesce(*reasons)


def _content_order(frame: DataFrame, columns: Sequence[str]) -> Column:
    """Return an order that depends only on the content of a row, so that the choice is deterministic."""
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    plain = cols(name for name in columns if "map<" not in kinds[name] and "variant" not in kinds[name])
    return f.xxhash64(*plain) if plain else f.lit(0)


def _once(
    frame: DataFrame, key: Sequence[str], order: Sequence[Column], same: Sequence[str], prefer: Sequence[Column]
) -> DataFrame:
    """Return the first row by `prefer` of those with equal key and `same`, sorted by `order`; one shuffle, by key."""
    window = Window.partitionBy(*key).orderBy(*order, *prefer)
    identity = f.struct(*cols(same))
    ranked = frame.select("*", f.row_number().over(window).alias(RANK), f.lag(identity).over(window).alias(MERGE))
    # Rows with a NULL in their identity are all different.
    has_null = reduce(lambda one, other: one | other, [col(name).isNull() for name in same])
    return ranked.where(has_null | ~f.col(MERGE).eqNullSafe(identity)).drop(MERGE)


def _places(difflog: DiffLogConfig, usable: DataFrame) -> DataFrame:
    """Return the newest visit per key of this join."""
    return usable.where(f"{RANK} = 1").select(*_key(difflog), NEWEST, IS_DELETED)


def _rows(difflog: DiffLogConfig, log: SideLog, raw: DataFrame, known: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the rows of a log without duplicates, with the key; and the rows without a key."""
    columns = [log.key[name] for name in difflog.entity.key]
    reason = _reason(columns)
    usable = raw.where(reason.isNull()).select("*", *_keys(difflog, columns, known))
    if log.id:
        row_id = cols(log.id)
        usable = _once(usable, _key(difflog), row_id, log.id, [_content_order(raw, raw.columns)]).drop(RANK)
    shown = list(dict.fromkeys([*columns, *_row_columns(log)]))
    refused = raw.where(reason.isNotNull()).select(*cols(shown), reason.alias(REASON))
    return usable, refused


def _unused(difflog: DiffLogConfig, log: SideLog, rows: DataFrame, applied: DataFrame) -> DataFrame:
    """Return the rows whose id no earlier join has used; rows with a NULL in their id are all different."""
    ids = {name: f"__trueup_id_{number}" for number, name in enumerate(log.id)}
    used = applied.select(*_key(difflog), *[col(name).alias(internal) for name, internal in ids.items()])
    same = [rows[name] == used[name] for name in _key(difflog)]
    same += [rows[quoted(name)] == used[internal] for name, internal in ids.items()]
    return rows.join(used, same, "left_anti")


def _used(difflog: DiffLogConfig, log: SideLog, placed: DataFrame) -> DataFrame:
    """Return key and id of the rows that are merged into a visit or are updates."""
    return placed.where(f"{KNOWN} IS NOT NULL OR {NEWEST} IS NOT NULL").select(*_key(difflog), *cols(log.id))


def _check_ids(difflog: DiffLogConfig, present: Mapping[str, DataFrame], applied: Mapping[str, DataFrame]) -> None:
    """Raise CheckFailed if an id has another type than in earlier joins: its rows would count again."""
    wrong = []
    for log in (log for log in difflog.logs if log.name in present and log.name in applied):
        for name in log.id:
            kinds = [frame.schema[name].dataType.simpleString() for frame in (present[log.name], applied[log.name])]
            if kinds[0] != kinds[1]:
                wrong.append(f"{log.name}: id {name} has the type {kinds[0]}, but {kinds[1]} in earlier joins")
    if wrong:
        raise CheckFailed(wrong, cure="cast the column in the raw files")


def _row_columns(log: SideLog) -> list[str]:
    """Return the columns of a row of a log: values, identity and order."""
    order = [log.order_by] if log.order_by else []
    return list(dict.fromkeys([*_with_times(log.columns), *log.id, *order]))


def _joined_visits(difflog: DiffLogConfig, usable: DataFrame, rows: Mapping[str, DataFrame]) -> DataFrame:
    """Return the visits with the columns of all logs, which are merged into the newest row of each new visit."""
    entity = difflog.entity
    # A tombstone has no state: rows of its logs become updates, which a run reports as late.
    merge = f.expr(f"{RANK} = 1 AND {KNOWN} IS NULL AND NOT {IS_DELETED}")
    state = _with_times(entity.kept)
    rest = [name for name in _visit_columns(difflog) if name not in state]
    frame = usable.select(
        *_key(difflog),
        f.col(NEWEST),
        merge.alias(MERGE),
        f.struct(*cols(rest), f.lit(0).alias(RANK)).alias("rest"),
        f.struct(*cols(state), f.lit(0).alias(RANK)).alias("old"),
    )
    for log in (log for log in difflog.logs if log.name in rows):
        frame = _with_log(difflog, log, frame, rows[log.name], state)
        state = list(dict.fromkeys([*state, *_with_times(log.columns)]))
    return frame.select(
        *_named_key(difflog),
        f.col(NEWEST).alias(entity.fast_version),
        *[f.col("rest").getField(name).alias(name) for name in rest],
        *[f.col("old").getField(name).alias(name) for name in state],
    )


def _with_log(
    difflog: DiffLogConfig, log: SideLog, frame: DataFrame, rows: DataFrame, state: Sequence[str]
) -> DataFrame:
    """Return the frame with the values of one log merged into the struct `old`."""
    columns = _with_times(log.columns)
    options = StepOptions(tuple(_key(difflog)), RANK, rules=log.columns, order_by=log.order_by)
    merged = merge_updates(rows.withColumn(RANK, f.lit(0)), columns, options)
    new = merged.select(*_key(difflog), f.struct(*cols(columns)).alias("new"))
    both = frame.join(new, _key(difflog), "left").withColumn("new", f.when(f.col(MERGE), f.col("new")))
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    fields = []
    for name in dict.fromkeys([*state, *columns]):
        value = f.col("new").getField(name) if name in columns else f.col("old").getField(name)
        if name in columns and name in state:
            # A visit without rows in the log keeps its value, even if the rule is an expression.
            plus = f.expr(plus_sql(name, kinds[name], options))
            value = f.when(f.col("new").isNull(), f.col("old").getField(name)).otherwise(plus)
        fields.append(value.alias(name))
    return both.select(*_key(difflog), NEWEST, MERGE, "rest", f.struct(*fields).alias("old"))


def _updates(difflog: DiffLogConfig, log: SideLog, placed: DataFrame) -> DataFrame:
    """Return the rows of a log that are updates of known visits, with the newest fast version."""
    entity = difflog.entity
    taken = {*entity.key, entity.fast_version}
    columns = cols(name for name in _row_columns(log) if name not in taken)
    newest = f.greatest(KNOWN, NEWEST).alias(entity.fast_version)
    return placed.where(f"{KNOWN} IS NOT NULL OR {IS_DELETED}").select(*_named_key(difflog), newest, *columns)


def _pending(placed: DataFrame, raw: DataFrame) -> DataFrame:
    """Return the rows of a log whose visit is unknown, unchanged."""
    waiting = placed.where(f"{KNOWN} IS NULL AND {NEWEST} IS NULL")
    return waiting.select(*cols(raw.columns))


def _check(
    difflog: DiffLogConfig,
    visits: DataFrame,
    logs: Mapping[str, DataFrame],
    known: DataFrame,
    pending: Mapping[str, DataFrame],
    present: Mapping[str, DataFrame],
) -> None:
    """Raise CheckFailed that lists all columns that are missing or have the wrong type."""
    entity = difflog.entity
    names = [log.name for log in difflog.logs]
    wrong = [f"unknown side log {name}. {suggest(name, names)}" for name in {*logs, *pending} - set(names)]
    version = [*entity.key, entity.fast_version]
    required = {entity.name: (visits, [*version, *_visit_columns(difflog)]), "the state": (known, version)}
    for log in (log for log in difflog.logs if log.name in present):
        required[log.name] = (present[log.name], [*log.key.values(), *_row_columns(log)])
    for source, (frame, columns) in required.items():
        missing = [name for name in columns if name not in frame.columns]
        wrong += [f"{source} has no column {name}. {suggest(name, frame.columns)}" for name in dict.fromkeys(missing)]
    if not wrong:
        wrong = [*_wrong_keys(difflog, visits, known, present), *_wrong_kinds(difflog, visits, present)]
    if wrong:
        raise CheckFailed(wrong, cure="correct difflog.toml, or the columns of the input files")


def _wrong_keys(
    difflog: DiffLogConfig, visits: DataFrame, known: DataFrame, present: Mapping[str, DataFrame]
) -> list[str]:
    """Return errors of key types (the type of the state, or a narrower integer) and version types (integers)."""
    entity, wrong = difflog.entity, []
    for source, frame in ((entity.name, visits), ("the state", known)):
        kind = frame.schema[entity.fast_version].dataType.simpleString()
        if kind not in INTEGERS:
            wrong.append(f"{source}: {entity.fast_version} has the type {kind}, but a version must be an integer")
    sources = [(entity.name, visits, {name: name for name in entity.key})]
    sources += [(log.name, present[log.name], dict(log.key)) for log in difflog.logs if log.name in present]
    for source, frame, key in sources:
        for name in entity.key:
            state = known.schema[name].dataType.simpleString()
            kind = frame.schema[key[name]].dataType.simpleString()
            if kind != state and not fits(kind, state):
                wrong.append(f"{source}: {key[name]} has the type {kind}, but key {name} of the state has {state}")
    return wrong


def _wrong_kinds(difflog: DiffLogConfig, visits: DataFrame, present: Mapping[str, DataFrame]) -> list[str]:
    """Return errors of columns that have different types in two logs."""
    first = {name: (difflog.entity.name, visits.schema[name].dataType) for name in _with_times(difflog.entity.kept)}
    wrong = []
    for log in (log for log in difflog.logs if log.name in present):
        for name in _with_times(log.columns):
            kind = present[log.name].schema[name].dataType
            source, other = first.setdefault(name, (log.name, kind))
            if other.simpleString() != kind.simpleString():
                wrong.append(f"{name} is {other.simpleString()} in {source} and {kind.simpleString()} in {log.name}")
    return wrong
