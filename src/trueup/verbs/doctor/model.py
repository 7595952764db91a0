"""What the doctor finds: a finding for each check, and the diagnosis they add up to."""

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
    """One check: how it went, what was looked at, where, what was found, and what to do about it."""

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
        """2 where a check failed; warnings do not fail."""
        return 2 if self.counts["FAIL"] else 0

    @property
    def counts(self) -> dict[str, int]:
        """How many findings of each level."""
        found = Counter(finding.level for finding in self.findings)
        return {level: found[level] for level in ("OK", "WARN", "FAIL")}

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "verdict": worst(self.findings),
            "exit_code": self.exit_code,
            "counts": self.counts,
            "seconds": round(self.seconds, 3),
            "findings": [asdict(finding) for finding in self.findings],
        }


def worst(findings: Sequence[Finding]) -> Level:
    """The gravest level."""
    levels = {finding.level for finding in findings}
    return "FAIL" if "FAIL" in levels else "WARN" if "WARN" in levels else "OK"


def ok(check: str, where: str, message: str) -> Finding:
    """All is well, or good to know."""
    return _finding("OK", check, where, message, "")


def warn(check: str, where: str, message: str, cure: str) -> Finding:
    """A run works, but slower, or not always."""
    return _finding("WARN", check, where, message, cure)


def fail(check: str, where: str, message: str, cure: str) -> Finding:
    """A run would not work, or it is not known whether it would."""
    return _finding("FAIL", check, where, message, cure)


def failed(check: str, where: str, error: TrueupError) -> Finding:
    """An error as a finding."""
    return fail(check, where, error.message, error.cure or "mend what is named, and ask again")


def graded(level: Level, check: str, where: str, message: str, cure: str) -> Finding:
    """A finding whose weight depends on what is configured."""
    return _finding(level, check, where, message, cure)


def _finding(level: Level, check: str, where: str, message: str, cure: str) -> Finding:
    # One line each, whatever a server or Java said; and the last line of defence against a password.
    return Finding(level, check, where, *(mask(" ".join(text.split())) for text in (message, cure)))
