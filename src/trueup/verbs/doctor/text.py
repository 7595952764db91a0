"""Findings as text: one line per finding, and a last line with the counts."""

from __future__ import annotations

from trueup.config.visible import one_line
from trueup.verbs.doctor.model import Diagnosis, Finding


def line(finding: Finding) -> str:
    """Return a finding as one line."""
    cure = f" -> {finding.cure}" if finding.cure else ""
    return one_line(f"{finding.level:<4}  {finding.check:<13}  {finding.where:<20}  {finding.message}{cure}")


def last_line(diagnosis: Diagnosis) -> str:
    """Return the counts of findings as one line."""
    counts = diagnosis.counts
    listed = f"{_count(counts['FAIL'], 'failure')}, {_count(counts['WARN'], 'warning')}, {counts['OK']} ok"
    return f"{'not healthy' if counts['FAIL'] else 'healthy'}: {listed}; {diagnosis.seconds:.1f} s"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
