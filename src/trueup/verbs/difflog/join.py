"""Joins raw visits and raw side logs into the chunks of a run, so that every row of a side log is applied exactly once.

A row of a side log goes one of four ways. Its visit is seen for the first time: it is merged into that visit's newest
row. Its visit is known: it becomes an update of its own, at the newest fast version. Its visit is nowhere: it is
pending, to be given again to the next call. It has no key: it is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from trueup.config.wording import suggest
from trueup.errors import CheckFailed
from trueup.verbs.difflog.merge import merge_updates, plus_sql, quoted
from trueup.verbs.difflog.model import Difflog, Rule, SideLog, StepOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Our own columns beside those of the user; the configuration refuses names that begin like this.
KNOWN, NEWEST, GONE, RANK, GLUED = (f"__trueup_{word}" for word in ("known", "newest", "gone", "rank", "glued"))
REASON = "reason"
_WHOLE = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True)
class Joined:
    """What a run reads (`visits`, `logs`), what the next join gets again (`pending`), and what is `refused`.

    `pending` has the columns of the raw log. `refused` is by the name of the log, or of the entity.
    """

    visits: DataFrame
    logs: dict[str, DataFrame] = field(default_factory=dict)
    pending: dict[str, DataFrame] = field(default_factory=dict)
    refused: dict[str, DataFrame] = field(default_factory=dict)


def join(
    session: SparkSession,
    difflog: Difflog,
    *,
    visits: DataFrame,
    logs: Mapping[str, DataFrame],
    known: DataFrame,
    pending: Mapping[str, DataFrame],
) -> Joined:
    """The joined chunks; lazy, and the same whenever they are computed.

    `known` has one row a key of the state table: the key and the fast version. `pending` is what the call before gave.
    """
    raw = {log.name: _both(log.name, logs, pending) for log in difflog.logs}
    given = {name: frame for name, frame in raw.items() if frame is not None}
    _check(difflog, visits, logs, known, pending, given)
    usable, no_visits = _visits(difflog, visits, known)
    places = _places(difflog, usable)
    keys = _known(difflog, known)
    rows, refused = {}, {difflog.entity.name: no_visits}
    for log in (each for each in difflog.logs if each.name in given):
        rows[log.name], refused[log.name] = _rows(difflog, log, given[log.name], known)
    placed = {
        name: frame.join(keys, _key(difflog), "left").join(places, _key(difflog), "left")
        for name, frame in rows.items()
    }
    return Joined(
        visits=_joined_visits(difflog, usable.join(keys, _key(difflog), "left"), rows),
        logs={log.name: _updates(difflog, log, placed[log.name]) for log in difflog.logs if log.name in placed},
        pending={name: _pending(frame, given[name]) for name, frame in placed.items()},
        refused=refused,
    )


def _both(name: str, logs: Mapping[str, DataFrame], pending: Mapping[str, DataFrame]) -> DataFrame | None:
    """The rows that waited and the new ones; a log may have gained columns meanwhile."""
    frames = [each[name] for each in (logs, pending) if name in each]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames) if frames else None


def _key(difflog: Difflog) -> list[str]:
    """The key under names of ours, for a log may have other columns by the names of the entity's."""
    return [f"__trueup_key_{number}" for number in range(len(difflog.entity.key))]


def _keys(difflog: Difflog, columns: Sequence[str], known: DataFrame) -> list[Column]:
    """The key of a frame, as the type that the state has: the buckets of the state hash it."""
    from pyspark.sql import functions as f

    kinds = [known.schema[name].dataType for name in difflog.entity.key]
    return [
        f.col(quoted(column)).cast(kind).alias(ours)
        for column, kind, ours in zip(columns, kinds, _key(difflog), strict=True)
    ]


def _named_key(difflog: Difflog) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.col(ours).alias(name) for ours, name in zip(_key(difflog), difflog.entity.key, strict=True)]


def _known(difflog: Difflog, known: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    fast = f.col(quoted(difflog.entity.fast_version)).cast("long").alias(KNOWN)
    return known.select(*_keys(difflog, difflog.entity.key, known), fast)


def _visits(difflog: Difflog, visits: DataFrame, known: DataFrame) -> tuple[DataFrame, DataFrame]:
    """One row a key and fast version, `RANK` 1 being the newest of its key; and the rows that cannot be used."""
    from pyspark.sql import functions as f

    entity = difflog.entity
    columns = _visit_columns(difflog)
    reason = _reason([*entity.key, entity.fast_version])
    fast = f.col(quoted(entity.fast_version)).cast("long")
    gone = f.coalesce(f.col(quoted(entity.deleted)).cast("boolean"), f.lit(False)) if entity.deleted else f.lit(False)
    marked = visits.where(reason.isNull()).select(
        *_keys(difflog, entity.key, known),
        fast.alias(NEWEST),
        gone.alias(GONE),
        *[f.col(quoted(name)) for name in columns],
    )
    # Where one version was told twice, the deletion counts.
    told = _once(marked, _key(difflog), [f.col(NEWEST).desc()], [NEWEST], [f.col(GONE).desc(), _any(marked, columns)])
    names = [f.col(quoted(name)) for name in (*entity.key, entity.fast_version, *columns)]
    return told, visits.where(reason.isNotNull()).select(*names, reason.alias(REASON))


def _visit_columns(difflog: Difflog) -> list[str]:
    """What is taken from a raw visit beside the key and the fast version."""
    entity = difflog.entity
    marks = [entity.deleted] if entity.deleted else []
    return list(dict.fromkeys([*marks, *entity.dropped, *_with_times(entity.kept)]))


def _with_times(rules: Mapping[str, Rule]) -> list[str]:
    """The columns of these rules, and the times that they go by."""
    return list(dict.fromkeys([*rules, *(rule.by for rule in rules.values() if rule.by)]))


def _reason(columns: Sequence[str]) -> Column:
    """Why a row cannot be used, or NULL."""
    from pyspark.sql import functions as f

    reasons = [f.when(f.col(quoted(name)).isNull(), f.lit(f"{name} is NULL")) for name in columns]
    return f.coalesce(*reasons)


def _any(frame: DataFrame, columns: Sequence[str]) -> Column:
    """An order that depends on what is in a row and on nothing else, so that a repetition chooses the same one."""
    from pyspark.sql import functions as f

    kinds = {each.name: each.dataType.simpleString() for each in frame.schema.fields}
    plain = [f.col(quoted(name)) for name in columns if "map<" not in kinds[name] and "variant" not in kinds[name]]
    return f.xxhash64(*plain) if plain else f.lit(0)


def _once(
    frame: DataFrame, key: Sequence[str], order: Sequence[Column], same: Sequence[str], prefer: Sequence[Column]
) -> DataFrame:
    """Of the rows of a key that agree in `same`, which `order` sorts, the first by `prefer`; one shuffle, by key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    window = Window.partitionBy(*key).orderBy(*order, *prefer)
    mine = f.struct(*[f.col(quoted(name)) for name in same])
    ranked = frame.select("*", f.row_number().over(window).alias(RANK), f.lag(mine).over(window).alias(GLUED))
    # A NULL in what names a row names nothing: such rows are all different.
    nameless = reduce(lambda one, other: one | other, [f.col(quoted(name)).isNull() for name in same])
    return ranked.where(nameless | ~f.col(GLUED).eqNullSafe(mine)).drop(GLUED)


def _places(difflog: Difflog, usable: DataFrame) -> DataFrame:
    """The newest visit of each key in this call."""
    return usable.where(f"{RANK} = 1").select(*_key(difflog), NEWEST, GONE)


def _rows(difflog: Difflog, log: SideLog, raw: DataFrame, known: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The rows of a log, each once, with the key; and those without one."""
    from pyspark.sql import functions as f

    columns = [log.key[name] for name in difflog.entity.key]
    reason = _reason(columns)
    usable = raw.where(reason.isNull()).select("*", *_keys(difflog, columns, known))
    if log.id:
        named = [f.col(quoted(name)) for name in log.id]
        usable = _once(usable, _key(difflog), named, log.id, [_any(raw, raw.columns)]).drop(RANK)
    wanted = list(dict.fromkeys([*columns, *_row_columns(log)]))
    refused = raw.where(reason.isNotNull()).select(*[f.col(quoted(name)) for name in wanted], reason.alias(REASON))
    return usable, refused


def _row_columns(log: SideLog) -> list[str]:
    """What a row of a log says, what names it and what orders it."""
    order = [log.order_by] if log.order_by else []
    return list(dict.fromkeys([*_with_times(log.columns), *log.id, *order]))


def _joined_visits(difflog: Difflog, usable: DataFrame, rows: Mapping[str, DataFrame]) -> DataFrame:
    """The visits with the columns of all logs, which only the newest row of a visit never seen before gets."""
    from pyspark.sql import functions as f

    entity = difflog.entity
    # A tombstone has no state: what the logs say of it goes the other way, and is told as kept aside.
    glue = f.expr(f"{RANK} = 1 AND {KNOWN} IS NULL AND NOT {GONE}")
    state = _with_times(entity.kept)
    rest = [name for name in _visit_columns(difflog) if name not in state]
    frame = usable.select(
        *_key(difflog),
        f.col(NEWEST),
        glue.alias(GLUED),
        f.struct(*[f.col(quoted(name)) for name in rest], f.lit(0).alias(RANK)).alias("rest"),
        f.struct(*[f.col(quoted(name)) for name in state], f.lit(0).alias(RANK)).alias("old"),
    )
    for log in (each for each in difflog.logs if each.name in rows):
        frame = _glued(difflog, log, frame, rows[log.name], state)
        state = list(dict.fromkeys([*state, *_with_times(log.columns)]))
    return frame.select(
        *_named_key(difflog),
        f.col(NEWEST).alias(entity.fast_version),
        *[f.col("rest").getField(name).alias(name) for name in rest],
        *[f.col("old").getField(name).alias(name) for name in state],
    )


def _glued(difflog: Difflog, log: SideLog, frame: DataFrame, rows: DataFrame, state: Sequence[str]) -> DataFrame:
    """The struct `old` of a visit plus what one log says of it."""
    from pyspark.sql import functions as f

    columns = _with_times(log.columns)
    options = StepOptions(tuple(_key(difflog)), RANK, rules=log.columns, order_by=log.order_by)
    merged = merge_updates(rows.withColumn(RANK, f.lit(0)), columns, options)
    new = merged.select(*_key(difflog), f.struct(*[f.col(quoted(name)) for name in columns]).alias("new"))
    both = frame.join(new, _key(difflog), "left").withColumn("new", f.when(f.col(GLUED), f.col("new")))
    kinds = {each.name: each.dataType.simpleString() for each in rows.schema.fields}
    fields = []
    for name in dict.fromkeys([*state, *columns]):
        value = f.col("new").getField(name) if name in columns else f.col("old").getField(name)
        if name in columns and name in state:
            # Of a visit that the log does not speak of, the value stays, whatever an expression makes of NULL.
            plus = f.expr(plus_sql(name, kinds[name], options))
            value = f.when(f.col("new").isNull(), f.col("old").getField(name)).otherwise(plus)
        fields.append(value.alias(name))
    return both.select(*_key(difflog), NEWEST, GLUED, "rest", f.struct(*fields).alias("old"))


def _updates(difflog: Difflog, log: SideLog, placed: DataFrame) -> DataFrame:
    """The rows of a log as updates of visits that are known, at their newest fast version."""
    from pyspark.sql import functions as f

    entity = difflog.entity
    taken = {*entity.key, entity.fast_version}
    columns = [f.col(quoted(name)) for name in _row_columns(log) if name not in taken]
    newest = f.greatest(KNOWN, NEWEST).alias(entity.fast_version)
    return placed.where(f"{KNOWN} IS NOT NULL OR {GONE}").select(*_named_key(difflog), newest, *columns)


def _pending(placed: DataFrame, raw: DataFrame) -> DataFrame:
    """The rows of a log whose visit has not come, as they were."""
    from pyspark.sql import functions as f

    waiting = placed.where(f"{KNOWN} IS NULL AND {NEWEST} IS NULL")
    return waiting.select(*[f.col(quoted(name)) for name in raw.columns])


def _check(
    difflog: Difflog,
    visits: DataFrame,
    logs: Mapping[str, DataFrame],
    known: DataFrame,
    pending: Mapping[str, DataFrame],
    given: Mapping[str, DataFrame],
) -> None:
    """Refuse frames that do not have what the configuration says; all that is wrong at once."""
    entity = difflog.entity
    names = [log.name for log in difflog.logs]
    wrong = [f"there is no side log {name}. {suggest(name, names)}" for name in {*logs, *pending} - set(names)]
    own = [*entity.key, entity.fast_version]
    wanted = {entity.name: (visits, [*own, *_visit_columns(difflog)]), "the state": (known, own)}
    for log in (each for each in difflog.logs if each.name in given):
        wanted[log.name] = (given[log.name], [*log.key.values(), *_row_columns(log)])
    for place, (frame, columns) in wanted.items():
        lacking = [name for name in columns if name not in frame.columns]
        wrong += [f"{place} has no column {name}. {suggest(name, frame.columns)}" for name in dict.fromkeys(lacking)]
    if not wrong:
        wrong = [*_wrong_keys(difflog, visits, known, given), *_wrong_kinds(difflog, visits, given)]
    if wrong:
        raise CheckFailed(wrong, cure="correct difflog.toml, or the columns of the input")


def _wrong_keys(difflog: Difflog, visits: DataFrame, known: DataFrame, given: Mapping[str, DataFrame]) -> list[str]:
    """Keys must have the type that they have in the state, or a narrower whole number; versions are whole numbers."""
    entity, wrong = difflog.entity, []
    for place, frame in ((entity.name, visits), ("the state", known)):
        kind = frame.schema[entity.fast_version].dataType.simpleString()
        if kind not in _WHOLE:
            wrong.append(f"{place}: {entity.fast_version} is {kind}, but a version is a whole number")
    sources = [(entity.name, visits, {name: name for name in entity.key})]
    sources += [(log.name, given[log.name], dict(log.key)) for log in difflog.logs if log.name in given]
    for place, frame, key in sources:
        for name in entity.key:
            state = known.schema[name].dataType.simpleString()
            mine = frame.schema[key[name]].dataType.simpleString()
            narrower = mine in _WHOLE and state in _WHOLE and _WHOLE.index(mine) <= _WHOLE.index(state)
            if mine != state and not narrower:
                wrong.append(f"{place}: {key[name]} is {mine}, but the key {name} of the state is {state}")
    return wrong


def _wrong_kinds(difflog: Difflog, visits: DataFrame, given: Mapping[str, DataFrame]) -> list[str]:
    """A column of the state has one type, whoever brings it."""
    first = {name: (difflog.entity.name, visits.schema[name].dataType) for name in _with_times(difflog.entity.kept)}
    wrong = []
    for log in (each for each in difflog.logs if each.name in given):
        for name in _with_times(log.columns):
            mine = given[log.name].schema[name].dataType
            place, kind = first.setdefault(name, (log.name, mine))
            if kind.simpleString() != mine.simpleString():
                wrong.append(f"{name} is {kind.simpleString()} in {place} and {mine.simpleString()} in {log.name}")
    return wrong
