"""The results of doctor: a finding per check, and the diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trueup.config.secrets import mask
from trueup.errors import TrueupError

Level = Literal["OK", "WARN", "FAIL"]


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
    return _finding("OK", check, where, message, "")


def warn(check: str, where: str, message: str, cure: str) -> Finding:
    """Return a finding about a run that works, but slower or not always."""
    return _finding("WARN", check, where, message, cure)


def fail(check: str, where: str, message: str, cure: str) -> Finding:
    """Return a finding about a run that would not work, or for which this is unknown."""
    return _finding("FAIL", check, where, message, cure)


def failed(check: str, where: str, error: TrueupError) -> Finding:
    """Return an error as a finding."""
    return fail(check, where, error.message, error.cure or "fix the error, and run doctor again")


def graded(level: Level, check: str, where: str, message: str, cure: str) -> Finding:
    """Return a finding whose level depends on the configuration."""
    return _finding(level, check, where, message, cure)


def _finding(level: Level, check: str, where: str, message: str, cure: str) -> Finding:
    # One line, even if the message of a server has several; and without passwords.
    return Finding(level, check, where, *(mask(" ".join(text.split())) for text in (message, cure)))
