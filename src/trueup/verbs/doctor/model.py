"""What doctor checks, and its results: a finding per check, and the diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trueup.config.model import Config, Node
from trueup.config.secrets import mask
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.errors import TrueupError

Level = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True)
class DoctorRequest:
    """The nodes, tables and settings of the run to check."""

    config: Config = field(default_factory=Config)
    # The error of the configuration or of the choice of nodes; then there are no nodes to check.
    error: TrueupError | None = None
    nodes: tuple[Node, ...] = ()
    tables: tuple[str, ...] = ()
    settings: DiffSettings = field(default_factory=DiffSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    task_db: str | None = None
    start_spark: bool = True
    stats_days: int = 30
    # The two nodes of a switchover (from, to), or empty.
    switchover: tuple[str, ...] = ()
    # Unknown variables with the prefix TRUEUP_, and the suggested name.
    strays: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """The result of one check: level, name of the check, object, message, and cure."""

    level: Level
    check: str
    where: str
    message: str
    cure: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """Return 2 if a check failed, else 0; warnings do not count."""
        return 2 if self.counts["FAIL"] else 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings per level."""
        counts = Counter(finding.level for finding in self.findings)
        return {level: counts[level] for level in ("OK", "WARN", "FAIL")}

    def as_json(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON object."""
        return {
            "verdict": worst(self.findings),
            "exit_code": self.exit_code,
            "counts": self.counts,
            "seconds": round(self.seconds, 3),
            "findings": [asdict(finding) for finding in self.findings],
        }


def worst(findings: Sequence[Finding]) -> Level:
    """Return the highest level of the findings."""
    levels = {finding.level for finding in findings}
    return "FAIL" if "FAIL" in levels else "WARN" if "WARN" in levels else "OK"


def ok(check: str, where: str, message: str) -> Finding:
    """Return a finding without a problem."""
    return graded("OK", check, where, message, "")


def warn(check: str, where: str, message: str, cure: str) -> Finding:
    """Return a finding about a run that works, but slower or not always."""
    return graded("WARN", check, where, message, cure)


def fail(check: str, where: str, message: str, cure: str) -> Finding:
    """Return a finding about a run that would not work, or for which this is unknown."""
    return graded("FAIL", check, where, message, cure)


def failed(check: str, where: str, error: TrueupError) -> Finding:
    """Return an error as a finding."""
    return fail(check, where, error.message, error.cure or "fix the error, and run doctor again")


def graded(level: Level, check: str, where: str, message: str, cure: str) -> Finding:
    """Return a finding with this level."""
    # One line, even if the message of a server has several; and without passwords.
    return Finding(level, check, where, *(mask(" ".join(text.split())) for text in (message, cure)))
