"""The demo of the version log: a fast supplier, three side logs that come late, two runs, and the proof."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from trueup.api.difflog import join_logs, prove_log_table, run_log, spark_session
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Progress
from trueup.errors import ConfigError
from trueup.verbs.difflog.clickhouse import ClickHouse, open_target
from trueup.verbs.difflog.config import load_difflog
from trueup.verbs.difflog.model import Difflog
from trueup.verbs.difflog.prove import Proof
from trueup.verbs.difflog.run import RunResult

_WIDE = (
    "VisitID bigint, Sign tinyint, SlowVersion bigint, y_VisitVersion bigint, Version bigint, Duration int,"
    " Goals array<int>, Revenue double, Score int, UserAgent string"
)
_VISIT = (
    "VisitID", "{fast}L AS y_VisitVersion", "{gone} AS IsDeleted",
    "concat('Browser ', VisitID % 7, '.{fast}') AS UserAgent", "CAST(30 * {fast} + VisitID % 60 AS INT) AS Duration",
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """What the demo has to show."""

    runs: tuple[RunResult, ...]
    signed_rows: int
    sample: tuple[tuple[Any, ...], ...]
    proof: Proof


def run(*, visits: int, folder: Path, progress: Progress) -> Shown:
    """Two rounds of both suppliers on `visits` visits; then the table as it collapses, and its proof."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"the folder {folder} is not empty", cure="remove it, or choose another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "difflog.toml"
    config.write_bytes(resources.files("trueup.demo").joinpath("difflog.toml").read_bytes())
    log = load_difflog(str(config))
    with spark_session(SparkSettings()) as session:
        runs = tuple(_round(session, log, number, visits, progress) for number in (1, 2))
        with open_target(log.target) as house:
            signed = house.rows(f"SELECT count() FROM {house.name}")[0][0]
            columns = "VisitID, Version, Duration, Goals, Revenue, Score, UserAgent"
            sample = house.rows(
                f"SELECT {columns} FROM {house.name} FINAL WHERE VisitID IN (1, 10, 20, 21, 30) ORDER BY VisitID"
            )
        return Shown(runs, int(signed), tuple(map(tuple, sample)), prove_log_table(log))


def _round(session: Any, log: Difflog, number: int, visits: int, progress: Progress) -> RunResult:
    """The fast supplier writes, side rows come in, and a run patches them in."""
    raw = Path(log.work) / "raw" / str(number)
    _write_raw(session, raw, number, visits)
    with open_target(log.target) as house:
        _write_fast(session, house, log, raw, number)
    logs = {name: [raw / name] for name in ("conversions", "money", "scores")}
    join_logs(log, visits=[raw / "visit"], logs=logs)
    return run_log(log, progress=progress)


def _write_raw(session: Any, raw: Path, number: int, visits: int) -> None:
    """Round 1: all visits and some side rows. Round 2: a tenth in a new version, some deleted, more side rows."""
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


def _write_fast(session: Any, house: ClickHouse, log: Difflog, raw: Path, number: int) -> None:
    """The fast supplier's own rows: plus the new version, minus the one before."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(_WIDE)
    assert isinstance(schema, StructType)
    house.ensure_table(schema, key=log.entity.key, fast_version=log.entity.fast_version)
    new = session.read.parquet(str(raw / "visit"))
    # A deleted visit gets a new version from nobody: its tombstone speaks of the last one.
    signs: list[tuple[int, int]] = [(1, number)] if number == 1 else [(1, number), (-1, number - 1)]
    place = raw / "fast"
    for sign, fast in signs:
        columns = [column.format(fast=fast, gone="false") for column in _VISIT if "IsDeleted" not in column]
        rows = new.select("VisitID").selectExpr(
            *columns, f"CAST({sign} AS TINYINT) AS Sign", "0L AS SlowVersion", f"{fast}L AS Version"
        )
        rows.coalesce(1).write.mode("append").parquet(str(place))
    for file in sorted(place.glob("*.parquet")):
        house.insert_parquet(file)
