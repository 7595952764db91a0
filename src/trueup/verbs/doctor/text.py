"""Findings for people: a line each, and a last line that adds them up."""

from __future__ import annotations

from trueup.verbs.doctor.model import Diagnosis, Finding


def line(finding: Finding) -> str:
    """Level, check, place, what was found, and what to do."""
    cure = f" -> {finding.cure}" if finding.cure else ""
    return f"{finding.level:<4}  {finding.check:<13}  {finding.where:<20}  {finding.message}{cure}"


def last_line(diagnosis: Diagnosis) -> str:
    """How many of each."""
    counts = diagnosis.counts
    found = f"{_count(counts['FAIL'], 'failure')}, {_count(counts['WARN'], 'warning')}, {counts['OK']} fine"
    return f"{'not healthy' if counts['FAIL'] else 'healthy'}: {found}; {diagnosis.seconds:.1f} s"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
