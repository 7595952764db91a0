"""Judges every key of a log: whether one row is left after collapsing, and whether it is the one in the state table.

The values of the row, its two version columns and its dropped columns are compared with the state. The rows of a
version, which cancel each other, are compared with one another. `recompute` adds the keys whose state is not the one
that their rows in the chunk sets imply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.types import DataType

from trueup.engine.local_rows import local_rows
from trueup.report.difflog import PROBLEM_TEXTS
from trueup.report.model import EXIT_CODES, Verdict
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SINCE, SLOW, VERSION, DiffLogConfig
from trueup.verbs.difflog.steps.merge import col, cols
from trueup.verbs.difflog_ends.recompute import COMPUTED

# The columns with the versions left after collapsing, and with the columns in which rows of one version differ; names
# that no column of a user has.
STANDING, UNEQUAL = "trueup standing", "trueup unequal"

PROBLEMS = tuple(PROBLEM_TEXTS)
# The column of judged keys that names what differs, per problem.
_LISTED = {"state": "differing", "rows": "unequal", "computed": "computed"}


@dataclass(frozen=True)
class Example:
    """A key with a problem: the versions left, each with its sum of signs, and the columns that differ.

    `waiting` means that the next run resolves it.
    """

    key: Mapping[str, Any]
    problem: str
    standing: tuple[tuple[int, int], ...] = ()
    columns: tuple[str, ...] = ()
    waiting: bool = False


@dataclass(frozen=True)
class Proof:
    """The result of a proof, as counts of keys; a key is counted under one problem only."""

    verdict: Verdict
    keys: int
    standing_twice: int = 0
    standing_none: int = 0
    standing_deleted: int = 0
    unknown_to_state: int = 0
    differing_version: int = 0
    differing_state: int = 0
    differing_rows: int = 0
    differing_computed: int = 0
    # Keys of `standing_twice` whose fast supplier wrote a newer version, which the next run cancels.
    waiting: int = 0
    # Keys of the fast supplier that no run has processed yet.
    only_fast: int = 0
    # Keys of the slow supplier that have no state because states expire: only their signs were checked.
    expired: int = 0
    # Keys with a problem: first those that the next run does not resolve.
    examples: tuple[Example, ...] = ()
    # Files of the state table that are not as a run has written them.
    altered_files: tuple[str, ...] = ()
    # Keys whose states were computed again from the chunk sets; and what the proof cannot check any more.
    computed: int = 0
    unchecked: tuple[str, ...] = ()
    # The reasons for the verdict INCOMPLETE.
    incomplete: tuple[str, ...] = ()
    compared_columns: tuple[str, ...] = field(default=())

    @property
    def exit_code(self) -> int:
        """Return 0 if proven, 1 if keys have problems, 2 if not everything was checked."""
        return EXIT_CODES[self.verdict]

    def with_altered(self, files: Sequence[str]) -> Proof:
        """Return the proof with these altered files: then it is none, also if the log agrees with the state."""
        verdict: Verdict = "DIFFER" if files and self.verdict == "MATCH" else self.verdict
        return replace(self, altered_files=tuple(files), verdict=verdict)

    def as_json(self) -> dict[str, Any]:
        """Return the proof as a JSON object."""
        return asdict(self)


def compared_state(state: DataFrame) -> DataFrame:
    """Return the state with the columns that are also in the log: the dropped columns are fields of `Fast`."""
    kind: Any = state.schema[FAST].dataType if FAST in state.columns else None
    fields = [] if kind is None else [field.name for field in kind.fields if field.name != "nothing"]
    dropped = [name for name in fields if name not in state.columns]
    return state.select(
        *cols(name for name in state.columns if name not in (FAST, EXPIRES, SINCE)),
        *[f.col(FAST).getField(name).alias(name) for name in dropped],
    )


def state_columns(difflog: DiffLogConfig, state: DataFrame | None) -> list[str]:
    """Return the columns of a `compared_state` that are also in the log."""
    reserved = {*difflog.entity.key, DELETED}
    return [] if state is None else [name for name in state.columns if name not in reserved]


class Judged:
    """The judged keys of a log."""

    def __init__(
        self,
        difflog: DiffLogConfig,
        net: DataFrame,
        rows: DataFrame,
        state: DataFrame | None,
        columns: Sequence[str],
        computed: DataFrame | None = None,
    ) -> None:
        """Judge every key of the log and of the state.

        `net` has the versions left per key and the columns in which rows of a version differ, `rows` the rows left
        after collapsing, `state` is a `compared_state`, `columns` are those to compare. `computed` has the keys whose
        states differ from those that were computed again.
        """
        self._difflog, self._columns = difflog, columns
        self._missing = [name for name in state_columns(difflog, state) if name not in columns]
        self._keys = _judged(difflog, net, rows, state, columns, computed)

    def proof(self, limit: int) -> Proof:
        """Count the keys by problem, and collect at most `limit` examples."""
        every = f.count("*").alias("n")
        counts = self._keys.groupBy("problem", "waiting", "only_fast", "expired").agg(every).collect()
        by_problem = {name: sum(row["n"] for row in counts if row["problem"] == name) for name in PROBLEMS}
        wrong = sum(by_problem.values())
        missing = [f"column {name} of the state is not in the log and was not compared" for name in self._missing]
        return Proof(
            verdict="INCOMPLETE" if missing else "DIFFER" if wrong else "MATCH",
            keys=sum(row["n"] for row in counts),
            standing_twice=by_problem["twice"],
            standing_none=by_problem["none"],
            standing_deleted=by_problem["deleted"],
            unknown_to_state=by_problem["unknown"],
            differing_version=by_problem["version"],
            differing_state=by_problem["state"],
            differing_rows=by_problem["rows"],
            differing_computed=by_problem["computed"],
            waiting=sum(row["n"] for row in counts if row["waiting"]),
            only_fast=sum(row["n"] for row in counts if row["only_fast"]),
            expired=sum(row["n"] for row in counts if row["expired"]),
            examples=tuple(self._example(row) for row in self._wrong().limit(limit).collect()) if wrong else (),
            incomplete=tuple(missing),
            compared_columns=tuple(self._columns),
        )

    def problems(self) -> Iterator[Example]:
        """Yield every key with a problem, in the order of the examples; the driver holds one partition at a time."""
        return map(self._example, local_rows(self._wrong()))

    def _wrong(self) -> DataFrame:
        keys = [f"k{number}" for number in range(len(self._difflog.entity.key))]
        return self._keys.where("problem IS NOT NULL").orderBy("waiting", *keys)

    def _example(self, row: Row) -> Example:
        return Example(
            {name: row[f"k{number}"] for number, name in enumerate(self._difflog.entity.key)},
            row["problem"],
            tuple((version[VERSION], version["net"]) for version in row["standing"] or ()),
            tuple(row[_LISTED[row["problem"]]] or ()) if row["problem"] in _LISTED else (),
            row["waiting"],
        )


def _judged(
    difflog: DiffLogConfig,
    net: DataFrame,
    rows: DataFrame,
    state: DataFrame | None,
    columns: Sequence[str],
    computed: DataFrame | None,
) -> DataFrame:
    """Return one row per key: its problem or NULL, the versions left, and the columns that differ.

    Internally, columns are named by number: `k0` for the key, `c0` for the state.
    """
    typed = net if state is None else state
    keys = [f"k{number}" for number in range(len(difflog.entity.key))]
    only = f.get("standing", 0)
    once = f.when((f.size("standing") == 1) & (only.getField("net") == 1), only.getField(VERSION))
    more = (col(STANDING).alias("standing"), col(UNEQUAL).alias("unequal"))
    log = _renamed(difflog, net, typed, *more).withColumn("once", once)
    row = f.struct(*_values(rows, typed, columns)).alias("row")
    standing = _renamed(difflog, rows, typed, f.col(VERSION).alias("once"), row)
    joined = log.join(_known(difflog, log, state, columns), keys, "full_outer").join(standing, [*keys, "once"], "left")
    if computed is None:
        joined = joined.withColumn("computed", f.lit(None).cast("array<string>"))
    else:
        joined = joined.join(_renamed(difflog, computed, typed, col(COMPUTED).alias("computed")), keys, "full_outer")
    differing = [
        f.when(~f.col(f"row.c{number}").eqNullSafe(f.col(f"known.values.c{number}")), f.lit(name))
        for number, name in enumerate(columns)
    ]
    compared = joined.withColumn("differing", f.array_compact(f.array(f.lit(None).cast("string"), *differing)))
    problem, waiting = f.expr(_problem_sql(difflog)), f.coalesce(f.expr(_waiting_sql(difflog)), f.lit(False))
    only_fast = f.coalesce(f.expr(f"known IS NULL AND once < {difflog.multiplier}"), f.lit(False))
    judged = compared.select(
        *keys,
        "standing",
        "differing",
        "unequal",
        "computed",
        problem.alias("problem"),
        waiting.alias("waiting"),
        only_fast.alias("only_fast"),
        f.col("known").isNull().alias("no_state"),
    )
    expired = f.expr(f"no_state AND problem IS NULL AND NOT only_fast AND {difflog.states_expire}")
    return judged.withColumn("expired", expired)


def _renamed(difflog: DiffLogConfig, frame: DataFrame, typed: DataFrame, *more: Column) -> DataFrame:
    """Select the key by number, with the types of the state, and more columns."""
    kinds = [(frame.schema[name].dataType, typed.schema[name].dataType) for name in difflog.entity.key]
    key = [_scalar(col(name), *kind) for name, kind in zip(difflog.entity.key, kinds, strict=True)]
    return frame.select(*[column.alias(f"k{number}") for number, column in enumerate(key)], *more)


def _values(frame: DataFrame, typed: DataFrame, columns: Sequence[str]) -> list[Column]:
    """Return the columns of the state by number, in comparable form; never empty, because a struct must not be."""
    values = [
        comparable(col(name), frame.schema[name].dataType, typed.schema[name].dataType).alias(f"c{number}")
        for number, name in enumerate(columns)
    ]
    return values or [f.lit(None).cast("boolean").alias("nothing")]


def _known(difflog: DiffLogConfig, log: DataFrame, state: DataFrame | None, columns: Sequence[str]) -> DataFrame:
    """Return the state by key: the expected version, whether it is deleted, its fast version, its values."""
    if state is None:
        kind = "struct<expected:bigint,gone:boolean,fast:bigint,values:struct<nothing:boolean>>"
        keys = [name for name in log.columns if name not in ("standing", "once", "unequal")]
        return log.where("false").select(*keys, f.lit(None).cast(kind).alias("known"))
    fast = col(difflog.entity.fast_version).cast("long")
    gone = f.coalesce(f.col(DELETED).cast("boolean"), f.lit(False)) if DELETED in state.columns else f.lit(False)
    known = f.struct(
        (f.lit(difflog.multiplier).cast("long") * f.col(SLOW).cast("long") + fast).alias("expected"),
        gone.alias("gone"),
        fast.alias("fast"),
        f.struct(*_values(state, state, columns)).alias("values"),
    )
    return _renamed(difflog, state, state, known.alias("known"))


def _problem_sql(difflog: DiffLogConfig) -> str:
    """Return Spark SQL for the problem of a key. If states expire, a key without a state is not a problem."""
    expires = "true" if difflog.states_expire else "false"
    return f"""CASE
        WHEN coalesce(size(standing), 0) > 0 AND once IS NULL THEN 'twice'
        WHEN known.gone AND once IS NOT NULL THEN 'deleted'
        WHEN once IS NULL AND (NOT known.gone OR known IS NULL AND NOT {expires}) THEN 'none'
        WHEN known IS NULL AND once >= {difflog.multiplier} AND NOT {expires} THEN 'unknown'
        WHEN once <> known.expected THEN 'version'
        WHEN known IS NOT NULL AND once IS NOT NULL AND (row IS NULL OR size(differing) > 0) THEN 'state'
        WHEN size(unequal) > 0 THEN 'rows'
        WHEN size(computed) > 0 THEN 'computed'
    END"""


def _waiting_sql(difflog: DiffLogConfig) -> str:
    """Return Spark SQL for: two versions are left only because the fast supplier cancelled F and wrote F' > F."""
    cancelled = f"get(standing, 0).{VERSION} = known.fast AND get(standing, 0).net = -1"
    newer = f"get(standing, 1).{VERSION} < {difflog.multiplier} AND get(standing, 1).net = 1"
    corrected = f"get(standing, 2).{VERSION} = known.expected AND get(standing, 2).net = 1"
    rest = f"IF(known.gone, size(standing) = 2, size(standing) = 3 AND {corrected})"
    return f"known IS NOT NULL AND {cancelled} AND {newer} AND {rest}"


def comparable(column: Column, actual: DataType, target: DataType) -> Column:
    """Return a value in comparable form: ClickHouse has no NULL arrays, maps or structs, and maps have no order."""
    kind = target.typeName()
    have: Any = actual
    want: Any = target
    if kind == "array":
        inner = f.transform(column, lambda item: comparable(item, have.elementType, want.elementType))
        return f.coalesce(inner, f.array())
    if kind == "map":
        inner = f.transform(
            f.map_entries(column),
            lambda entry: f.struct(
                comparable(entry.getField("key"), have.keyType, want.keyType).alias("key"),
                comparable(entry.getField("value"), have.valueType, want.valueType).alias("value"),
            ),
        )
        return f.coalesce(f.array_sort(inner), f.array())
    if kind == "struct":
        fields = [(field.name, have[field.name].dataType, field.dataType) for field in want.fields]
        return f.struct(*[comparable(column.getField(name), *kinds).alias(name) for name, *kinds in fields])
    return _scalar(column, actual, target)


def _scalar(column: Column, actual: DataType, target: DataType) -> Column:
    """Return a scalar with the type of the state; ClickHouse stores times without a zone as UTC."""
    if (actual.typeName(), target.typeName()) == ("timestamp", "timestamp_ntz"):
        since = f.unix_micros(column) * f.expr("INTERVAL '0.000001' SECOND")
        return f.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'") + since
    return column if actual == target else column.cast(target)
