"""The proof of a version log: every key collapses to one row, and that row is the one in the state table.

The ClickHouse table, or the log as DataFrames, is reduced per key to the versions whose signs do not add up to zero,
and to the rows that are left after collapsing; `judge` joins both with the state. ClickHouse exports Parquet files, so
that the driver holds only the counts and a few examples.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from trueup.db.clickhouse import identifier, names
from trueup.errors import CheckFailed
from trueup.verbs.difflog.clickhouse import ClickHouse, open_target
from trueup.verbs.difflog.judge import STANDING, Proof, judge, state_columns
from trueup.verbs.difflog.merge import col, cols
from trueup.verbs.difflog.model import SIGN, SLOW, VERSION, DiffLogConfig

EXAMPLES = 20
# The table is sorted by key and version, so that signs are added up key by key with little memory.
_IN_ORDER = "SETTINGS optimize_aggregation_in_order = 1, max_bytes_before_external_group_by = 1000000000"


def prove_clickhouse(
    session: SparkSession, difflog: DiffLogConfig, state: DataFrame | None, *, limit: int = EXAMPLES
) -> Proof:
    """Prove the ClickHouse table against the state table (None if it does not exist). List at most `limit` examples."""
    with open_target(difflog.target) as house, _folder(difflog) as folder:
        existing = house.columns()
        required = [*difflog.entity.key, SIGN, SLOW, difflog.entity.fast_version, VERSION]
        missing = [name for name in required if name not in existing]
        if missing:
            reason = f"has no columns {', '.join(missing)}" if existing else "does not exist"
            raise CheckFailed([f"the table {house.database}.{house.table} {reason}"], cure="trueup difflog run")
        columns = [name for name in state_columns(difflog, state) if name in existing]
        _export(house, difflog, columns, folder)
        net = session.read.parquet(str(folder / "net.parquet"))
        rows = session.read.parquet(str(folder / "rows.parquet"))
        return judge(difflog, net, rows, state, columns, limit)


def prove_log(
    fast_log: DataFrame,
    slow_log: DataFrame,
    difflog: DiffLogConfig,
    state: DataFrame | None,
    *,
    limit: int = EXAMPLES,
) -> Proof:
    """Prove the logs: the rows of the fast supplier (key, fast version, sign) and all rows of the slow supplier."""
    key = cols(difflog.entity.key)
    fast = col(difflog.entity.fast_version).cast("long")
    signed = fast_log.select(*key, fast.alias(VERSION), f.col(SIGN).cast("long").alias("net")).unionByName(
        slow_log.select(*key, f.col(VERSION).cast("long").alias(VERSION), f.col(SIGN).cast("long").alias("net"))
    )
    sums = signed.groupBy(*key, VERSION).agg(f.sum("net").alias("net"))
    standing = f.array_sort(f.collect_list(f.when(f.col("net") != 0, f.struct(VERSION, "net"))))
    net = sums.groupBy(*key).agg(standing.alias(STANDING))
    columns = [name for name in state_columns(difflog, state) if name in slow_log.columns]
    # A slow version has exactly one row with sign +1.
    plus = slow_log.where((f.col(SIGN) > 0) & (f.col(SLOW) > 0))
    rows = plus.select(*key, f.col(VERSION).cast("long").alias(VERSION), *cols(columns))
    return judge(difflog, net, rows.dropDuplicates([*difflog.entity.key, VERSION]), state, columns, limit)


@contextmanager
def _folder(difflog: DiffLogConfig) -> Iterator[Path]:
    """Yield a temporary folder for exports; in the work folder, which the workers of a cluster can read."""
    work = Path(difflog.work) if difflog.work else Path(tempfile.gettempdir())
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prove-", dir=work) as folder:
        yield Path(folder).absolute()


def _export(house: ClickHouse, difflog: DiffLogConfig, columns: Sequence[str], folder: Path) -> None:
    """Export, per key, the versions whose signs do not add up to zero; and the rows left after collapsing."""
    key = names(difflog.entity.key)
    sums = f"SELECT {key}, toInt64({VERSION}) AS v, toInt64(sum({SIGN})) AS n FROM {house.name}"
    sums += f" GROUP BY {key}, {VERSION}"
    standing = "arraySort(groupArrayIf(tuple(v, n), n != 0))"
    kind = f"Array(Tuple({identifier(VERSION)} Int64, net Int64))"
    by_key = (
        f"SELECT {key}, CAST({standing}, '{kind}') AS {identifier(STANDING)} FROM ({sums}) GROUP BY {key} {_IN_ORDER}"
    )
    house.export(by_key, folder / "net.parquet")
    listed = "".join(f", {identifier(name)}" for name in columns)
    final = f"SELECT {key}, toInt64({VERSION}) AS {identifier(VERSION)}{listed} FROM {house.name} FINAL"
    house.export(f"{final} WHERE {SIGN} > 0 AND {SLOW} > 0", folder / "rows.parquet")
