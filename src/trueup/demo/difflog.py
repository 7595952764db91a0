"""The demo of the version log: a fast supplier, three late side logs, two runs, and the proof."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from trueup.api.difflog import DiffLog
from trueup.engine.bulk_session import spark_session
from trueup.engine.progress import Progress
from trueup.errors import ConfigError
from trueup.verbs.difflog.clickhouse import ClickHouse, open_target
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.result import RunResult
from trueup.verbs.difflog_ends.judge import Proof

_WIDE = (
    "VisitID bigint, Sign tinyint, SlowVersion bigint, y_VisitVersion bigint, Version bigint, Duration int,"
    " Goals array<int>, Revenue double, Score int, UserAgent string"
)
_VISIT = (
    "VisitID", "{fast}L AS y_VisitVersion", "{gone} AS IsDeleted",
    "concat('Browser ', VisitID % 7, '.{fast}') AS UserAgent", "CAST(30 * {fast} + VisitID % 60 AS INT) AS Duration",
)  # fmt: skip

# For up to this number, a Java that compiles less needs less time.
_SMALL_VISITS = 100_000


@dataclass(frozen=True)
class Shown:
    """The results of the demo."""

    runs: tuple[RunResult, ...]
    signed_rows: int
    sample: tuple[tuple[Any, ...], ...]
    proof: Proof


def run(*, visits: int, folder: Path, progress: Progress) -> Shown:
    """Run two rounds of both suppliers on `visits` visits; return a sample of the collapsed table and the proof."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"the folder {folder} is not empty", cure="remove it, or name another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "difflog.toml"
    config.write_bytes(resources.files("trueup.demo").joinpath("difflog.toml").read_bytes())
    log = DiffLog(config)
    with spark_session(small=visits <= _SMALL_VISITS) as session:
        runs = tuple(_round(session, log, number, visits, progress) for number in (1, 2))
        with open_target(log.config.target) as house:
            signed = house.rows(f"SELECT count() FROM {house.name}")[0][0]
            columns = "VisitID, Version, Duration, Goals, Revenue, Score, UserAgent"
            sample = house.rows(
                f"SELECT {columns} FROM {house.name} FINAL WHERE VisitID IN (1, 10, 20, 21, 30) ORDER BY VisitID"
            )
        return Shown(runs, int(signed), tuple(map(tuple, sample)), log.prove())


def _round(session: SparkSession, log: DiffLog, number: int, visits: int, progress: Progress) -> RunResult:
    """Write the rows of the fast supplier and raw side rows, join them, and run."""
    raw = Path(log.config.work) / "raw" / str(number)
    _write_raw(session, raw, number, visits)
    with open_target(log.config.target) as house:
        _write_fast(session, house, log.config, raw, number)
    logs = {name: [raw / name] for name in ("conversions", "money", "scores")}
    log.join(visits=[raw / "visit"], logs=logs)
    return log.run(progress=progress)


def _write_raw(session: SparkSession, raw: Path, number: int, visits: int) -> None:
    """Write raw files: in round 1 all visits; in round 2 new versions of a tenth, deletions, more side rows."""
    every = session.range(1, visits + 1).withColumnRenamed("id", "VisitID")

    def put(name: str, where: str, *columns: str) -> None:
        every.where(where).selectExpr(*columns).write.parquet(str(raw / name))

    def visit(fast: int, gone: str) -> list[str]:
        return [column.format(fast=fast, gone=gone) for column in _VISIT]

    if number == 1:
        put("visit", "true", *visit(1, "false"))
    else:
        put("visit", "VisitID % 10 = 0", *visit(2, "VisitID % 30 = 0"))
    step = {1: 4, 2: 3}[number]
    event = f"concat('{number}-', VisitID)"
    put("conversions", f"VisitID % {step} = 0", "VisitID", f"{event} AS EventID", f"{number}L AS EventTime",
        f"array({number}, CAST(VisitID % 9 AS INT)) AS Goals")  # fmt: skip
    put("money", f"VisitID % {step + 2} = 0", "VisitID", f"{event} AS PaymentID", f"{number} * 9.5D AS Revenue")
    put("scores", f"VisitID % {step + 3} = 0", "VisitID", "CAST(VisitID % 100 AS INT) AS Score")


def _write_fast(session: SparkSession, house: ClickHouse, log: DiffLogConfig, raw: Path, number: int) -> None:
    """Insert the rows of the fast supplier: sign +1 for the new version, -1 for the previous one."""
    schema = StructType.fromDDL(_WIDE)
    assert isinstance(schema, StructType)
    house.ensure_table(schema, key=log.entity.key, fast_version=log.entity.fast_version)
    new = session.read.parquet(str(raw / "visit"))
    # A deleted visit gets no new version: its tombstone has the last one.
    signs: list[tuple[int, int]] = [(1, number)] if number == 1 else [(1, number), (-1, number - 1)]
    folder = raw / "fast"
    for sign, fast in signs:
        columns = [column.format(fast=fast, gone="false") for column in _VISIT if "IsDeleted" not in column]
        rows = new.select("VisitID").selectExpr(
            *columns, f"CAST({sign} AS TINYINT) AS Sign", "0L AS SlowVersion", f"{fast}L AS Version"
        )
        rows.coalesce(1).write.mode("append").parquet(str(folder))
    for file in sorted(folder.glob("*.parquet")):
        house.insert_parquet(file)
