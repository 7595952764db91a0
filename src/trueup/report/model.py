"""The results of diff, check and rerun, for one table and for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from trueup.report.extent import Extent

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# RESOLVED is the verdict of a rerun: all keys of the earlier report are equal now; no other rows were compared.
# ACCEPTED: all rows were compared, and all differences are accepted. The tables are not equal, so it is not MATCH.
Verdict = Literal["MATCH", "ACCEPTED", "RESOLVED", "DIFFER", "INCOMPLETE"]
EXIT_CODES: dict[Verdict, int] = {"MATCH": 0, "ACCEPTED": 0, "RESOLVED": 0, "DIFFER": 1, "INCOMPLETE": 2}
# Nothing is left to do.
AGREED: tuple[Verdict, ...] = ("MATCH", "ACCEPTED", "RESOLVED")
Mode = Literal["diff", "check", "rerun"]


@dataclass(frozen=True)
class PairCounts:
    """Confirmed differences of one pair of nodes. `missing`: only on the first node.

    `in_flight`: equal at a re-check. `hot`: changed between the last two looks and still different, so not confirmed.
    `accepted`: known and wanted (`trueup accept`), not among the other numbers.
    """

    missing: int = 0
    extra: int = 0
    changed: int = 0
    in_flight: int = 0
    hot: int = 0
    limit_reached: bool = False
    accepted: int = 0

    @property
    def total(self) -> int:
        """Return the number of confirmed differences that are not accepted."""
        return self.missing + self.extra + self.changed


@dataclass(frozen=True)
class DiffResult:
    """The result of a diff, a check or a rerun of one table."""

    verdict: Verdict
    table: str
    mode: Mode
    nodes: tuple[str, ...]
    pairs: Mapping[str, PairCounts]
    rows_checked: int
    rows: Mapping[str, int]
    blocks: int
    mismatched_blocks: int
    seconds: float
    engine: str
    report: str
    task_id: str
    # For three or more nodes: number of keys on which a node differs from all others.
    alone: Mapping[str, int] = field(default_factory=dict)
    # Why the verdict is INCOMPLETE, one reason per entry.
    incomplete: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    # Paths of the HTML page and of the Parquet file with the differences, if they were requested.
    page: str = ""
    parquet: str = ""
    # How much was read at an earlier moment, before the run was resumed.
    earlier: str = ""
    # For a rerun: the earlier report, and per pair of nodes the number of keys that are resolved, remain, and are new.
    rerun_of: str = ""
    since: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # Blocks by engine, of this run; for a rerun: tasks.
    ran_on: Mapping[str, int] = field(default_factory=dict)
    # With --since-proof: the validation, the blocks and rows taken from its certificate, when they were proven, and the
    # blocks hashed now; or the reason why all rows were read.
    since_proof: Mapping[str, Any] = field(default_factory=dict)
    # With --certify and the verdict MATCH: in which validation the certificate was recorded, or why it was not.
    certified: Mapping[str, str] = field(default_factory=dict)
    # The acceptances whose differences were found: id, reason, accepted_by, accepted_at, until, number of differences.
    accepted: tuple[Mapping[str, Any], ...] = ()
    # Which rows and columns were compared.
    extent: Extent = field(default_factory=Extent)

    @property
    def exit_code(self) -> int:
        """Return 0 if equal or accepted, 1 if different, 2 if anything was not compared."""
        return EXIT_CODES[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return asdict(self)

    def to_arrow(self) -> pa.Table:
        """Return the listed differences of the report: pair, kind, hot, key, columns, and both rows.

        A check has no report, and no differences. Raises StoreError if the report cannot be read.
        """
        import pyarrow as pa

        from trueup.report.frames import batches, schema

        return pa.Table.from_batches(batches(self.report) if self.report else (), schema())

    def to_pandas(self) -> pd.DataFrame:
        """Return the listed differences of the report as a pandas frame; columns as for `to_arrow`."""
        return self.to_arrow().to_pandas()

    def differences(self, session: SparkSession | None = None) -> DataFrame:
        """Return the listed differences of the report as a frame of Spark; columns as for `to_arrow`.

        Without a session: that of this process, which is started if there is none.
        """
        from pyspark.sql import SparkSession

        return (session or SparkSession.builder.getOrCreate()).createDataFrame(self.to_arrow())


@dataclass(frozen=True)
class TableOutcome:
    """The result of one of many tables."""

    table: str
    verdict: Verdict
    # Nodes without this table, which is a difference.
    missing_on: tuple[str, ...] = ()
    rows_checked: int = 0
    # Confirmed differences of all pairs of nodes; for a check, differing blocks.
    differences: int = 0
    seconds: float = 0.0
    # Why it was not compared, or not completely.
    reason: str = ""
    task_id: str = ""
    report: str = ""
    page: str = ""
    # Accepted differences of all pairs of nodes, not among `differences`.
    accepted: int = 0
    # With --certify and the verdict MATCH: that a certificate was recorded, or why it was not.
    certificate: str = ""
    # What limits the verdict, if only a part of the rows and columns was compared; see `Extent.lines`.
    part: str = ""
    # Whether no node has a row of what was compared.
    is_empty: bool = False
    # How much was read at an earlier moment, before the run was resumed.
    earlier: str = ""


@dataclass(frozen=True)
class ManyResult:
    """The result of a diff, a check or a rerun of many tables, with one verdict; INCOMPLETE outranks DIFFER."""

    mode: Mode
    nodes: tuple[str, ...]
    tables: tuple[TableOutcome, ...]
    # Tables that match and were excluded.
    skipped: tuple[str, ...]
    seconds: float
    task_id: str
    remarks: tuple[str, ...] = ()
    # Paths of the summary of all tables, and of the page that links the pages of the tables.
    report: str = ""
    page: str = ""
    # For a rerun: the summary of the earlier run.
    rerun_of: str = ""

    @property
    def verdict(self) -> Verdict:
        """Return MATCH only if there are tables, and each of them matches; a rerun is RESOLVED if none differs.

        ACCEPTED: all differences are accepted.
        """
        verdicts = {outcome.verdict for outcome in self.tables}
        if self.mode == "rerun" and verdicts <= {"RESOLVED"}:
            return "RESOLVED"
        if not verdicts or "INCOMPLETE" in verdicts:
            return "INCOMPLETE"
        if "DIFFER" in verdicts:
            return "DIFFER"
        return "ACCEPTED" if "ACCEPTED" in verdicts else "MATCH"

    @property
    def exit_code(self) -> int:
        """Return 0 if equal, 1 if different, 2 if anything was not compared."""
        return EXIT_CODES[self.verdict]

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Return what was not compared, one reason per entry."""
        return tuple(f"{table.table}: {table.reason}" for table in self.tables if table.verdict == "INCOMPLETE")

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {"verdict": self.verdict, **asdict(self)}
