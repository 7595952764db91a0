"""The proof of a version log: every key collapses to one row, and that row is the one in the state table.

The ClickHouse table, or the log as DataFrames, is reduced per key to the versions whose signs do not add up to zero,
to the columns in which rows of one version differ, and to the rows that are left after collapsing; `judge` joins them
with the state. ClickHouse exports Parquet files, so that the driver holds only the counts and a few examples. The
states are computed again from the chunk sets by `recompute`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from trueup.config.files import PartFile
from trueup.config.wording import counted
from trueup.db.clickhouse import identifier, literal, names
from trueup.engine.scratch import ScratchFolder
from trueup.errors import CheckFailed, ConfigError
from trueup.verbs.difflog.chunks import is_small
from trueup.verbs.difflog.clickhouse import ClickHouse, open_target
from trueup.verbs.difflog.model import SIGN, SLOW, VERSION, DiffLogConfig
from trueup.verbs.difflog.steps.merge import col, cols
from trueup.verbs.difflog_ends.judge import STANDING, UNEQUAL, Judged, Proof, comparable, compared_state, state_columns
from trueup.verbs.difflog_ends.recompute import Recomputed

EXAMPLES = 20
# The table is sorted by key and version, so that signs are added up key by key with little memory.
_IN_ORDER = "SETTINGS optimize_aggregation_in_order = 1, max_bytes_before_external_group_by = 1000000000"

# A new Java needs less processor time without its optimizing compiler up to here: 40 s instead of 59 s with 23 MB of
# Parquet files (430,000 keys), and 120 s instead of 135 s with 84 MB.
SMALL_PROOF_BYTES = 40_000_000


def is_small_proof(difflog: DiffLogConfig, fast_log: Sequence[str]) -> bool:
    """Return whether the files of the log and of its state, and these ones, have few bytes."""
    folders = [place for place in (difflog.work, difflog.state.path, *fast_log) if Path(place).is_dir()]
    others = [Path(place) for place in fast_log if place not in folders]
    found = (file for folder in folders for file in Path(folder).rglob("*.parquet"))
    return is_small(chain(others, found), SMALL_PROOF_BYTES)


def prove_clickhouse(
    session: SparkSession,
    difflog: DiffLogConfig,
    state: DataFrame | None,
    *,
    limit: int = EXAMPLES,
    to: Path | None = None,
    computed: Recomputed | None = None,
) -> Proof:
    """Prove the ClickHouse table against the state table (None if it does not exist).

    The proof has at most `limit` examples; every key with a problem is written to the file `to`. `computed` is the
    comparison of the states with those that were computed again.
    """
    with open_target(difflog.target) as house, _folder(difflog) as folder:
        existing = house.columns()
        required = [*difflog.entity.key, SIGN, SLOW, difflog.entity.fast_version, VERSION]
        missing = [name for name in required if name not in existing]
        if missing:
            reason = f"has no columns {', '.join(missing)}" if existing else "does not exist"
            raise CheckFailed([f"the table {house.database}.{house.table} {reason}"], cure="trueup difflog run")
        state = None if state is None else compared_state(state)
        columns = [name for name in state_columns(difflog, state) if name in existing]
        _export(house, difflog, columns, [name for name in existing if name not in (*required, *columns)], folder)
        net = session.read.parquet(str(folder / "net.parquet"))
        rows = session.read.parquet(str(folder / "rows.parquet"))
        return _proof(Judged(difflog, net, rows, state, columns, _wrong(computed)), limit, to)


def prove_log(
    fast_log: DataFrame,
    slow_log: DataFrame,
    difflog: DiffLogConfig,
    state: DataFrame | None,
    *,
    limit: int = EXAMPLES,
    to: Path | None = None,
    computed: Recomputed | None = None,
) -> Proof:
    """Prove the logs: the rows of the fast supplier (key, fast version, sign) and all rows of the slow supplier."""
    state = None if state is None else compared_state(state)
    key = cols(difflog.entity.key)
    net = _net(fast_log, slow_log, difflog)
    columns = [name for name in state_columns(difflog, state) if name in slow_log.columns]
    # A slow version has exactly one row with sign +1.
    plus = slow_log.where((f.col(SIGN) > 0) & (f.col(VERSION) >= difflog.multiplier))
    rows = plus.select(*key, f.col(VERSION).cast("long").alias(VERSION), *cols(columns))
    rows = rows.dropDuplicates([*difflog.entity.key, VERSION])
    return _proof(Judged(difflog, net, rows, state, columns, _wrong(computed)), limit, to)


def with_computed(proof: Proof, computed: Recomputed | None, *, why_not: str) -> Proof:
    """Return the proof with what was computed again, and what was not; `why_not` is the reason if nothing was."""
    if computed is None:
        return replace(proof, unchecked=(f"the states were not computed again from the chunk sets: {why_not}",))
    unchecked = [f"column {name} was not computed again: its rule is an expression" for name in computed.skipped]
    if computed.first > 1:
        unchecked.append(
            f"the chunk sets before run {computed.first} are removed, or are from before a migration: its old states"
            f" were taken as they are, and {counted(computed.untouched, 'key')} were not computed again"
        )
    return replace(proof, computed=computed.keys, unchecked=tuple(unchecked))


def _wrong(computed: Recomputed | None) -> DataFrame | None:
    return computed.wrong if computed and computed.differing else None


def _net(fast_log: DataFrame, slow_log: DataFrame, difflog: DiffLogConfig) -> DataFrame:
    """Return per key the versions whose signs do not add up to zero, and the columns in which rows are unequal."""
    key, fast = cols(difflog.entity.key), col(difflog.entity.fast_version).cast("long")
    version, slow = f.col(VERSION).cast("long"), f.col(SLOW).cast("long")
    skip = {*difflog.entity.key, SIGN, VERSION}
    values = {
        name: f.xxhash64(comparable(col(name), slow_log.schema[name].dataType, slow_log.schema[name].dataType))
        for name in slow_log.columns
        if name not in skip
    }
    hashes = [value.alias(f"h{number}") for number, value in enumerate(values.values())]
    fits = version.isin(*[multiplier * slow + fast for multiplier in difflog.multipliers]).alias("fits")
    sign = f.col(SIGN).cast("long").alias("net")
    signed = slow_log.select(*key, version.alias(VERSION), sign, fits, *hashes).unionByName(
        fast_log.select(*key, fast.alias(VERSION), sign), allowMissingColumns=True
    )
    differs = [f.when(f.min(f"h{number}") != f.max(f"h{number}"), f.lit(name)) for number, name in enumerate(values)]
    numbers = f.when(~f.min("fits"), f.array(f.lit(SLOW), f.lit(difflog.entity.fast_version)))
    sums = signed.groupBy(*key, VERSION).agg(
        f.sum("net").alias("net"),
        f.array_compact(f.array(f.lit(None).cast("string"), *differs)).alias("differs"),
        numbers.alias("numbers"),
    )
    standing = f.array_sort(f.collect_list(f.when(f.col("net") != 0, f.struct(VERSION, "net"))))
    # Rows of the fast supplier have columns of their own: only rows of the slow supplier must be equal.
    unequal = f.concat(
        f.when(f.col(VERSION) >= difflog.multiplier, f.col("differs")).otherwise(f.array()),
        f.coalesce("numbers", f.array()),
    )
    every = f.array_distinct(f.flatten(f.collect_list(unequal)))
    return sums.groupBy(*key).agg(standing.alias(STANDING), every.alias(UNEQUAL))


def _proof(judged: Judged, limit: int, to: Path | None) -> Proof:
    """Return the proof, and write every key with a problem to a file, one JSON object per line."""
    if to is None:
        return judged.proof(limit)
    try:
        part = PartFile(to)
    except OSError as error:
        raise ConfigError(f"cannot write {to}: {error.strerror}", cure="name another file") from None
    try:
        proof = judged.proof(limit)
        for example in judged.problems() if proof.verdict != "MATCH" else ():
            part.file.write(json.dumps(asdict(example), default=str).encode() + b"\n")
        part.keep()
    finally:
        part.discard()
    return proof


@contextmanager
def _folder(difflog: DiffLogConfig) -> Iterator[Path]:
    """Yield a temporary folder for exports; in the work folder, which the workers of a cluster can read."""
    work = Path(difflog.work) if difflog.work else Path(tempfile.gettempdir())
    work.mkdir(parents=True, exist_ok=True)
    with ScratchFolder("prove-", work.absolute()) as folder:
        yield folder


def _export(
    house: ClickHouse, difflog: DiffLogConfig, columns: Sequence[str], others: Sequence[str], folder: Path
) -> None:
    """Export, per key, the versions whose signs do not add up to zero; and the rows left after collapsing."""
    key, fast = names(difflog.entity.key), difflog.entity.fast_version
    fits = " OR ".join(f"{VERSION} = {number} * {SLOW} + {identifier(fast)}" for number in difflog.multipliers)
    numbers = f"if(min({fits}), [], [{literal(SLOW)}, {literal(fast)}])"
    # Rows of the fast supplier have columns of their own: only rows of the slow supplier must be equal.
    hashes = {name: f"sipHash64(tuple({identifier(name)}))" for name in (*columns, *others)}
    differs = "".join(f", if(min({value}) != max({value}), {literal(name)}, '')" for name, value in hashes.items())
    unequal = f"arrayConcat({numbers}, if(v >= {difflog.multiplier}, arrayFilter(x -> x != '', [''{differs}]), []))"
    sums = f"SELECT {key}, toInt64({VERSION}) AS v, toInt64(sum({SIGN})) AS n, {unequal} AS u FROM {house.name}"
    sums += f" GROUP BY {key}, {VERSION}"
    standing = "arraySort(groupArrayIf(tuple(v, n), n != 0))"
    kind = f"Array(Tuple({identifier(VERSION)} Int64, net Int64))"
    by_key = (
        f"SELECT {key}, CAST({standing}, '{kind}') AS {identifier(STANDING)},"
        f" arraySort(groupUniqArrayArray(u)) AS {identifier(UNEQUAL)} FROM ({sums}) GROUP BY {key} {_IN_ORDER}"
    )
    house.export(by_key, folder / "net.parquet")
    listed = "".join(f", {identifier(name)}" for name in columns)
    final = f"SELECT {key}, toInt64({VERSION}) AS {identifier(VERSION)}{listed} FROM {house.name} FINAL"
    house.export(f"{final} WHERE {SIGN} > 0 AND {VERSION} >= {difflog.multiplier}", folder / "rows.parquet")
