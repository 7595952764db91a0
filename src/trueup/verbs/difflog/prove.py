"""The proof of a version log: every key collapses to one row, and that row is what the state table holds.

In ClickHouse, or over the log itself as DataFrames: both become, by key, the versions whose signs do not add up to
nothing, and the rows that stand; then one join with the state judges every key. What ClickHouse knows comes to Spark
as Parquet files, so nothing is held in the driver but the counts and a few examples.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.db.clickhouse import identifier, names
from trueup.errors import CheckFailed
from trueup.report.model import EXIT_CODES, Verdict
from trueup.verbs.difflog.clickhouse import ClickHouse, open_target
from trueup.verbs.difflog.merge import quoted
from trueup.verbs.difflog.model import DELETED, SIGN, SLOW, VERSION, Difflog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

EXAMPLES = 20
# Columns of the state table that the log does not have: what the fast supplier said, and the day of forgetting.
_ONLY_IN_STATE = ("Fast", "Expires")
# The column of what stands; by its name no column of a user is called.
_STANDING = "trueup standing"
# Sorted by key and version as the table is, a key's rows are added up one after the other, in little memory.
_IN_ORDER = "SETTINGS optimize_aggregation_in_order = 1, max_bytes_before_external_group_by = 1000000000"

PROBLEMS = {
    "twice": "more than one row stands, or signs that do not cancel",
    "none": "no row stands",
    "deleted": "the state says deleted, but a row stands",
    "unknown": "the slow supplier's row stands, but the state does not know the key",
    "version": "the row that stands is of another version than the state",
    "state": "the row that stands has other values than the state",
}


@dataclass(frozen=True)
class Example:
    """A key that is not as it should be: what stands (version, sum of signs), and the columns that differ."""

    key: Mapping[str, Any]
    problem: str
    standing: tuple[tuple[int, int], ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Proof:
    """What was proven; the counts are of keys, and each key is counted under one problem."""

    verdict: Verdict
    keys: int
    standing_twice: int = 0
    standing_none: int = 0
    standing_deleted: int = 0
    unknown_to_state: int = 0
    differing_version: int = 0
    differing_state: int = 0
    # Of those standing twice: only because the fast supplier wrote a newer version, which the next run will cancel.
    waiting: int = 0
    # Keys of the fast supplier that the slow one has not seen yet.
    only_fast: int = 0
    examples: tuple[Example, ...] = ()
    # Why the verdict is INCOMPLETE, one reason a line.
    incomplete: tuple[str, ...] = ()
    compared_columns: tuple[str, ...] = field(default=())

    @property
    def exit_code(self) -> int:
        """As diff(1): 0 proven, 1 not as it should be, 2 not everything was looked at."""
        return EXIT_CODES[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """The proof as one JSON object."""
        return asdict(self)


def prove_clickhouse(spark: Any, difflog: Difflog, state: DataFrame | None, *, limit: int = EXAMPLES) -> Proof:
    """Prove the ClickHouse table against the state table; `None`: there is no state yet."""
    with open_target(difflog.target) as house, _folder(difflog) as folder:
        found = house.columns()
        ours = [*difflog.entity.key, SIGN, SLOW, difflog.entity.fast_version, VERSION]
        missing = [name for name in ours if name not in found]
        if missing:
            reason = f"has no columns {', '.join(missing)}" if found else "does not exist"
            raise CheckFailed([f"the table {house.database}.{house.table} {reason}"], cure="run `trueup difflog run`")
        columns = [name for name in _state_columns(difflog, state) if name in found]
        _export(house, difflog, columns, folder)
        net = spark.read.parquet(str(folder / "net.parquet"))
        rows = spark.read.parquet(str(folder / "rows.parquet"))
        return _judge(difflog, net, rows, state, columns, limit)


def prove_log(
    spark: Any,
    fast_log: DataFrame,
    slow_log: DataFrame,
    difflog: Difflog,
    state: DataFrame | None,
    *,
    limit: int = EXAMPLES,
) -> Proof:
    """Prove the log itself: the fast supplier's rows (key, fast version, sign) and all rows that the slow one wrote."""
    from pyspark.sql import functions as f

    key = _key_columns(difflog)
    fast = f.col(quoted(difflog.entity.fast_version)).cast("long")
    signed = fast_log.select(*key, fast.alias(VERSION), f.col(SIGN).cast("long").alias("net")).unionByName(
        slow_log.select(*key, f.col(VERSION).cast("long").alias(VERSION), f.col(SIGN).cast("long").alias("net"))
    )
    sums = signed.groupBy(*key, VERSION).agg(f.sum("net").alias("net"))
    standing = f.array_sort(f.collect_list(f.when(f.col("net") != 0, f.struct(VERSION, "net"))))
    net = sums.groupBy(*key).agg(standing.alias(_STANDING))
    columns = [name for name in _state_columns(difflog, state) if name in slow_log.columns]
    # A slow version gets its +1 once: where it stands, that is its row.
    plus = slow_log.where((f.col(SIGN) > 0) & (f.col(SLOW) > 0))
    rows = plus.select(*key, f.col(VERSION).cast("long").alias(VERSION), *[f.col(quoted(name)) for name in columns])
    return _judge(difflog, net, rows.dropDuplicates([*difflog.entity.key, VERSION]), state, columns, limit)


@contextmanager
def _folder(difflog: Difflog) -> Iterator[Path]:
    """A folder for what ClickHouse gives out; in the work folder, which the workers of a cluster see too."""
    work = Path(difflog.work) if difflog.work else Path(tempfile.gettempdir())
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prove-", dir=work) as folder:
        yield Path(folder).absolute()


def _export(house: ClickHouse, difflog: Difflog, columns: Sequence[str], folder: Path) -> None:
    """By key: the versions that do not add up to nothing; and the rows that are left after collapsing."""
    key = names(difflog.entity.key)
    sums = f"SELECT {key}, toInt64({VERSION}) AS v, toInt64(sum({SIGN})) AS n FROM {house.name}"
    sums += f" GROUP BY {key}, {VERSION}"
    standing = "arraySort(groupArrayIf(tuple(v, n), n != 0))"
    kind = f"Array(Tuple({identifier(VERSION)} Int64, net Int64))"
    by_key = (
        f"SELECT {key}, CAST({standing}, '{kind}') AS {identifier(_STANDING)} FROM ({sums}) GROUP BY {key} {_IN_ORDER}"
    )
    house.export(by_key, folder / "net.parquet")
    listed = "".join(f", {identifier(name)}" for name in columns)
    final = f"SELECT {key}, toInt64({VERSION}) AS {identifier(VERSION)}{listed} FROM {house.name} FINAL"
    house.export(f"{final} WHERE {SIGN} > 0 AND {SLOW} > 0", folder / "rows.parquet")


def _state_columns(difflog: Difflog, state: DataFrame | None) -> list[str]:
    """The columns of the state that the log carries."""
    entity = difflog.entity
    ours = {*entity.key, entity.fast_version, SLOW, DELETED, *_ONLY_IN_STATE}
    return [] if state is None else [name for name in state.columns if name not in ours]


def _key_columns(difflog: Difflog) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.col(quoted(name)) for name in difflog.entity.key]


def _judge(
    difflog: Difflog, net: DataFrame, rows: DataFrame, state: DataFrame | None, columns: Sequence[str], limit: int
) -> Proof:
    """Every key of the log and of the state under its problem, counted; and some examples."""
    from pyspark.sql import functions as f

    judged = _judged(difflog, net, rows, state, columns)
    counts = judged.groupBy("problem", "waiting", "only_fast").agg(f.count("*").alias("n")).collect()
    by_problem = {name: sum(row["n"] for row in counts if row["problem"] == name) for name in PROBLEMS}
    wrong = sum(by_problem.values())
    lost = [name for name in _state_columns(difflog, state) if name not in columns]
    incomplete = tuple(f"column {name} of the state is not in the log: it was not compared" for name in lost)
    return Proof(
        verdict="INCOMPLETE" if incomplete else "DIFFER" if wrong else "MATCH",
        keys=sum(row["n"] for row in counts),
        standing_twice=by_problem["twice"],
        standing_none=by_problem["none"],
        standing_deleted=by_problem["deleted"],
        unknown_to_state=by_problem["unknown"],
        differing_version=by_problem["version"],
        differing_state=by_problem["state"],
        waiting=sum(row["n"] for row in counts if row["waiting"]),
        only_fast=sum(row["n"] for row in counts if row["only_fast"]),
        examples=_examples(difflog, judged, limit) if wrong else (),
        incomplete=incomplete,
        compared_columns=tuple(columns),
    )


def _examples(difflog: Difflog, judged: DataFrame, limit: int) -> tuple[Example, ...]:
    keys = {name: f"k{number}" for number, name in enumerate(difflog.entity.key)}
    found = judged.where("problem IS NOT NULL").orderBy(*keys.values()).limit(limit).collect()
    return tuple(
        Example(
            {name: row[at] for name, at in keys.items()},
            row["problem"],
            tuple((each[VERSION], each["net"]) for each in row["standing"] or ()),
            tuple(row["differing"]) if row["problem"] == "state" else (),
        )
        for row in found
    )


def _judged(
    difflog: Difflog, net: DataFrame, rows: DataFrame, state: DataFrame | None, columns: Sequence[str]
) -> DataFrame:
    """One row a key: its problem or NULL, what stands, and which columns differ. Inside, columns go by number."""
    from pyspark.sql import functions as f

    typed = net if state is None else state
    keys = [f"k{number}" for number in range(len(difflog.entity.key))]
    only = f.get("standing", 0)
    once = f.when((f.size("standing") == 1) & (only.getField("net") == 1), only.getField(VERSION))
    log = _renamed(difflog, net, typed, f.col(quoted(_STANDING)).alias("standing")).withColumn("once", once)
    row = f.struct(*_values(rows, typed, columns)).alias("row")
    standing = _renamed(difflog, rows, typed, f.col(VERSION).alias("once"), row)
    joined = log.join(_known(difflog, log, state, columns), keys, "full_outer").join(standing, [*keys, "once"], "left")
    differing = [
        f.when(~f.col(f"row.c{at}").eqNullSafe(f.col(f"known.values.c{at}")), f.lit(name))
        for at, name in enumerate(columns)
    ]
    compared = joined.withColumn("differing", f.array_compact(f.array(f.lit(None).cast("string"), *differing)))
    problem, waiting = f.expr(_problem_sql(difflog)), f.coalesce(f.expr(_waiting_sql(difflog)), f.lit(False))
    only_fast = f.coalesce(f.expr(f"known IS NULL AND once < {difflog.multiplier}"), f.lit(False))
    return compared.select(
        *keys,
        "standing",
        "differing",
        problem.alias("problem"),
        waiting.alias("waiting"),
        only_fast.alias("only_fast"),
    )


def _renamed(difflog: Difflog, frame: DataFrame, typed: DataFrame, *more: Column) -> DataFrame:
    """The key's columns by number and with the state's types, and more."""
    from pyspark.sql import functions as f

    kinds = [(frame.schema[name].dataType, typed.schema[name].dataType) for name in difflog.entity.key]
    found = [_leaf(f.col(quoted(name)), *kind) for name, kind in zip(difflog.entity.key, kinds, strict=True)]
    return frame.select(*[column.alias(f"k{number}") for number, column in enumerate(found)], *more)


def _values(frame: DataFrame, typed: DataFrame, columns: Sequence[str]) -> list[Column]:
    """The state's columns by number, as they can be compared; a struct is never empty."""
    from pyspark.sql import functions as f

    found = [
        _comparable(f.col(quoted(name)), frame.schema[name].dataType, typed.schema[name].dataType).alias(f"c{number}")
        for number, name in enumerate(columns)
    ]
    return found or [f.lit(None).cast("boolean").alias("nothing")]


def _known(difflog: Difflog, log: DataFrame, state: DataFrame | None, columns: Sequence[str]) -> DataFrame:
    """The state by key: which version is expected to stand, whether it was deleted, its fast version, its values."""
    from pyspark.sql import functions as f

    if state is None:
        kind = "struct<expected:bigint,gone:boolean,fast:bigint,values:struct<nothing:boolean>>"
        keys = [name for name in log.columns if name not in ("standing", "once")]
        return log.where("false").select(*keys, f.lit(None).cast(kind).alias("known"))
    fast = f.col(quoted(difflog.entity.fast_version)).cast("long")
    gone = f.coalesce(f.col(DELETED).cast("boolean"), f.lit(False)) if DELETED in state.columns else f.lit(False)
    known = f.struct(
        (f.lit(difflog.multiplier).cast("long") * f.col(SLOW).cast("long") + fast).alias("expected"),
        gone.alias("gone"),
        fast.alias("fast"),
        f.struct(*_values(state, state, columns)).alias("values"),
    )
    return _renamed(difflog, state, state, known.alias("known"))


def _problem_sql(difflog: Difflog) -> str:
    """The problem of a key. States past their time are forgotten: then an unknown key says nothing."""
    forgets = "true" if difflog.state.ttl_days else "false"
    return f"""CASE
        WHEN coalesce(size(standing), 0) > 0 AND once IS NULL THEN 'twice'
        WHEN known.gone AND once IS NOT NULL THEN 'deleted'
        WHEN once IS NULL AND (NOT known.gone OR known IS NULL AND NOT {forgets}) THEN 'none'
        WHEN known IS NULL AND once >= {difflog.multiplier} AND NOT {forgets} THEN 'unknown'
        WHEN once <> known.expected THEN 'version'
        WHEN known IS NOT NULL AND once IS NOT NULL AND (row IS NULL OR size(differing) > 0) THEN 'state'
    END"""


def _waiting_sql(difflog: Difflog) -> str:
    """Whether a key stands twice only because the fast supplier went on: it cancelled F, and F' > F stands."""
    cancelled = f"get(standing, 0).{VERSION} = known.fast AND get(standing, 0).net = -1"
    newer = f"get(standing, 1).{VERSION} < {difflog.multiplier} AND get(standing, 1).net = 1"
    ours = f"get(standing, 2).{VERSION} = known.expected AND get(standing, 2).net = 1"
    rest = f"IF(known.gone, size(standing) = 2, size(standing) = 3 AND {ours})"
    return f"known IS NOT NULL AND {cancelled} AND {newer} AND {rest}"


def _comparable(column: Column, found: DataType, wanted: DataType) -> Column:
    """A value as both sides have it: ClickHouse knows no NULL arrays, maps or structs, and maps have no order."""
    from pyspark.sql import functions as f

    kind = wanted.typeName()
    have: Any = found
    want: Any = wanted
    if kind == "array":
        inner = f.transform(column, lambda each: _comparable(each, have.elementType, want.elementType))
        return f.coalesce(inner, f.array())
    if kind == "map":
        inner = f.transform(
            f.map_entries(column),
            lambda each: f.struct(
                _comparable(each.getField("key"), have.keyType, want.keyType).alias("key"),
                _comparable(each.getField("value"), have.valueType, want.valueType).alias("value"),
            ),
        )
        return f.coalesce(f.array_sort(inner), f.array())
    if kind == "struct":
        fields = [(each.name, have[each.name].dataType, each.dataType) for each in want.fields]
        return f.struct(*[_comparable(column.getField(name), *kinds).alias(name) for name, *kinds in fields])
    return _leaf(column, found, wanted)


def _leaf(column: Column, found: DataType, wanted: DataType) -> Column:
    """A plain value with the state's type; times without a zone are UTC in ClickHouse, whatever the session's zone."""
    from pyspark.sql import functions as f

    if (found.typeName(), wanted.typeName()) == ("timestamp", "timestamp_ntz"):
        since = f.unix_micros(column) * f.expr("INTERVAL '0.000001' SECOND")
        return f.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'") + since
    return column if found == wanted else column.cast(wanted)
