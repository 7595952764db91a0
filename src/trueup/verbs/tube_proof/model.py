"""What a proof of a tube has found."""

from __future__ import annotations

from dataclasses import dataclass, field

from trueup.config.visible import as_lines
from trueup.report.extent import Extent, shown_verdict
from trueup.report.model import Verdict

_EXIT = {"MATCH": 0, "DIFFER": 1, "INCOMPLETE": 2}


@dataclass
class TableProof:
    """What was found in one table of the tube."""

    table: str
    verdict: Verdict = "MATCH"
    # Rows of the source that were compared.
    rows: int = 0
    # Documents that the sink does not have, has with other values, and should not have.
    missing: int = 0
    changed: int = 0
    extra: int = 0
    # Differences whose keys were in the tube, or that were gone at the re-check.
    in_flight: int = 0
    incomplete: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    # Some of the differences: kind and key.
    examples: tuple[str, ...] = ()
    # The report with all differences; sinks of documents have none.
    report: str = ""
    # Which rows and columns of the source were compared.
    extent: Extent = field(default_factory=Extent)


@dataclass(frozen=True)
class TubeProof:
    """The result of a proof."""

    tube: str
    tables: tuple[TableProof, ...]
    dead_letters: int = 0
    # The address of the sink without passwords, and where it is from if the command did not name it.
    sink: str = ""
    verdict: Verdict = field(init=False)

    def __post_init__(self) -> None:
        worst = max((table.verdict for table in self.tables), key=lambda verdict: _EXIT[verdict], default="INCOMPLETE")
        object.__setattr__(self, "verdict", worst)

    @property
    def exit_code(self) -> int:
        """0: the sink has the rows of the tables; 1: it differs; 2: not everything was compared."""
        return _EXIT[self.verdict]

    def as_text(self) -> str:
        """Return the result as text."""
        extent = next((table.extent for table in self.tables if not table.extent.is_whole), Extent())
        verdict = shown_verdict(self.verdict, sum(table.rows for table in self.tables), extent)
        lines = [f"{verdict}: the sink of the tube {self.tube}" + (f" ({self.sink})" if self.sink else "")]
        for table in self.tables:
            lines.append(
                f"  {table.table}: {table.verdict}, {table.rows:,} rows, {table.missing:,} missing,"
                f" {table.changed:,} changed, {table.extra:,} extra, {table.in_flight:,} in flight"
            )
            lines += [f"    {line}" for line in table.extent.lines()]
            lines += [f"    {example}" for example in table.examples]
            lines += [f"    not compared: {reason}" for reason in table.incomplete]
            lines += [f"    note: {remark}" for remark in table.remarks]
            lines += [f"    report: {table.report}"] * bool(table.report)
        if self.dead_letters:
            lines.append(f"  {self.dead_letters:,} dead letters: see trueup tube dead-letters {self.tube}")
        return as_lines(lines)
