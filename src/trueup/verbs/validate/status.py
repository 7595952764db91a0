"""The status of a validation, as a dataclass, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from trueup.capture.log.slot import lsn_number, lsn_text
from trueup.config.wording import counted
from trueup.verbs.validate.meta import Meta

GONE = "its process ended without stopping; continue with trueup validate start"


@dataclass(frozen=True)
class TableStatus:
    """One table: its stage, the number of changes per operation, pending rows and errors."""

    source: str
    target: str
    stage: str
    reason: str
    remarks: tuple[str, ...]
    inserts: int
    updates: int
    deletes: int
    truncates: int
    unchecked: int
    pending: int
    failed: int
    hot: int
    pending_by_operation: dict[str, int]
    errors: dict[str, int]
    swept_rows: int
    sweep_passes: int
    swept_at: str | None
    # Why changes were missed.
    missed: str = ""
    # Whether it was added or restarted, and is swept once for that.
    sweep_once: bool = False
    # The open errors per kind: missing, extra, changed.
    errors_by_kind: dict[str, int] = field(default_factory=dict)

    @property
    def processed(self) -> int:
        """Return the number of judged changes."""
        return self.inserts + self.updates + self.deletes + self.truncates


@dataclass(frozen=True)
class Status:
    """A validation; `validated` is the position before which every change is proven or listed as an error."""

    name: str
    source: str
    target: str
    mode: str
    state: str
    reason: str
    began: str | None
    position: str | None
    validated: str | None
    validated_at: str | None
    syncer: str | None
    upstream: str | None
    lag_bytes: int | None
    lag_seconds: float | None
    retained_bytes: int | None
    gap: dict[str, Any] | None
    cutover: str | None
    tables: tuple[TableStatus, ...]
    # What runs it: its name (local, spark), and with Spark its batches, jobs and rates.
    engine: dict[str, Any] = field(default_factory=dict)

    def total(self, name: str) -> int:
        """Return the sum of an attribute of `TableStatus` over all tables."""
        return sum(int(getattr(table, name)) for table in self.tables)

    @property
    def open_errors(self) -> int:
        """Return the number of errors that are not ignored and not resolved."""
        return sum(table.errors.get("new", 0) for table in self.tables)

    @property
    def pending_by_operation(self) -> dict[str, int]:
        """Return the number of pending keys per operation: insert, update, delete, truncate, sweep."""
        counts: Counter[str] = Counter()
        for table in self.tables:
            counts.update(table.pending_by_operation)
        return dict(counts)

    @property
    def is_finished(self) -> bool:
        """Return whether everything before the cut-over position is decided."""
        if not self.cutover or not self.validated or self.total("pending"):
            return False
        return lsn_number(self.validated) >= lsn_number(self.cutover)

    @property
    def exit_code(self) -> int:
        """Return 0 if there are no open errors, 1 if there are, 2 if something is not checked.

        While the validation does not run, changes are not checked, unless it has reached its cut-over position.
        """
        if self.blind_spots or not (self.state == "running" or self.is_finished):
            return 2
        return 1 if self.open_errors else 0

    @property
    def blind_spots(self) -> list[str]:
        """Return what was not checked, and why; while there is anything, no fence has exit code 0."""
        reasons = []
        if self.gap:
            reasons.append(
                f"changes after {self.gap['from']} were not seen ({self.gap['why']}): a full check is needed"
            )
        for table in self.tables:
            if table.stage == "stopped":
                reasons.append(f"{table.source} is not validated: {table.reason}")
            elif table.unchecked and table.sweep_once:
                reasons.append(f"{table.source} was added or restarted, and is not swept completely yet")
            elif table.unchecked:
                why = f" ({table.missed})" if table.missed else ""
                cure = "use --sweep, or run trueup diff"
                reasons.append(f"changes of {table.source} were missed or not checked{why}: {cure}")
        return reasons

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        sums = ("processed", "pending", "failed", "hot", "inserts", "updates", "deletes", "truncates")
        totals = {name: self.total(name) for name in sums}
        computed = ("open_errors", "pending_by_operation", "blind_spots", "exit_code")
        return {**asdict(self), **totals, **{name: getattr(self, name) for name in computed}}


def read_status(meta: Meta, name: str) -> Status:
    """Read the status in one snapshot of the meta database."""
    with meta.transaction():
        meta.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        stored = meta.need(name)
        rows = meta.rows("tables", name=name)
        counts = {row["source"]: row for row in meta.rows("counts", name=name)}
        errors: dict[str, dict[str, int]] = {}
        kinds: dict[str, dict[str, int]] = {}
        for row in meta.rows("error_counts", name=name):
            if row["state"] == "new":
                kinds.setdefault(row["source"], {})[row["kind"]] = row["count"]
            of_table = errors.setdefault(row["source"], {})
            of_table[row["state"]] = of_table.get(row["state"], 0) + row["count"]
        running = meta.is_running(name)
    state, reason = stored.state, stored.reason
    if state == "running" and not running:
        state, reason = "stopped", GONE
    position = stored.position
    return Status(
        name, stored.settings.source, stored.settings.target, stored.settings.mode, state, reason,
        _lsn(stored.began), _lsn(position), _lsn(stored.validated), _time(stored.validated_at), _lsn(stored.syncer),
        _lsn(stored.upstream),
        None if position is None or stored.upstream is None else max(0, stored.upstream - position),
        stored.lag_seconds, stored.retained, stored.gap, stored.settings.cutover or None,
        tuple(
            _table(row, *(known.get(row["source"], {}) for known in (counts, errors, kinds))) for row in rows
        ),
        stored.engine if state == "running" else {},
    )  # fmt: skip


def _table(row: dict[str, Any], counts: dict[str, Any], errors: dict[str, int], kinds: dict[str, int]) -> TableStatus:
    return TableStatus(
        row["source"], row["target"], row["stage"], row["reason"], tuple(row["remarks"]), row["inserts"],
        row["updates"], row["deletes"], row["truncates"], row["unchecked"], counts.get("pending", 0),
        counts.get("failed", 0), counts.get("hot", 0), counts.get("by_operation", {}), errors, row["sweep_rows"],
        row["sweep_passes"], _time(row["swept_at"]), row["missed"], row["sweep_once"], kinds,
    )  # fmt: skip


def status_text(status: Status) -> str:
    """Format a status as text."""
    lines = [f"{status.name}: {status.source} -> {status.target}, mode {status.mode}, {status.state}"]
    if status.reason:
        lines.append(f"  {status.reason}")
    if status.validated:
        lines.append(f"  validated through position {status.validated} at {status.validated_at}")
        lag = "?" if status.lag_bytes is None else f"{status.lag_bytes:,}"
        lines.append(
            f"  changes read up to {status.position}, syncer at {status.syncer}, source at {status.upstream}"
            f" (lag {lag} bytes, {status.lag_seconds or 0:.1f} s)"
        )
    if status.engine:
        lines.append(f"  {_engine(status.engine)}")
    lines.append(
        f"  {counted(status.total('processed'), 'change')} processed, {status.total('pending'):,} pending"
        f" ({status.total('failed'):,} failed, {status.total('hot'):,} hot), {counted(status.open_errors, 'error')}"
    )
    for table in status.tables:
        target = "" if table.target == table.source else f" -> {table.target}"
        lines.append(
            f"  {table.source}{target}: {table.stage}; {table.inserts:,} inserts, {table.updates:,} updates,"
            f" {table.deletes:,} deletes, {table.truncates:,} truncates; {table.pending:,} pending,"
            f" {_errors(table.errors)}"
        )
        if table.sweep_passes or table.swept_rows:
            lines.append(f"    swept: {counted(table.swept_rows, 'row')}, {table.sweep_passes:,} complete passes")
        lines += [f"    {remark}" for remark in table.remarks]
    lines += [f"  not checked: {reason}" for reason in status.blind_spots]
    return "\n".join(lines)


def _engine(engine: dict[str, Any]) -> str:
    """Return what runs the validation: threads, or Spark with its progress."""
    if engine["name"] != "spark":
        return f"runs on threads: {engine['problem']}" if "problem" in engine else "runs on threads"
    facts = [counted(engine["jobs"], "job")]
    if "batches" in engine:
        facts.insert(0, f"{engine['batches']:,} batches")
    if "batch_rows" in engine:
        facts.append(
            f"last batch {counted(engine['batch_rows'], 'row')} in {engine['batch_seconds']:.2f} s"
            f" ({engine['input_per_second']:,} rows/s in, {engine['processed_per_second']:,} rows/s processed)"
        )
    return f"runs on Spark: {', '.join(facts)}"


def _errors(errors: dict[str, int]) -> str:
    parts = [f"{count:,} {state}" for state, count in sorted(errors.items())]
    return f"errors: {', '.join(parts)}" if parts else "no errors"


def _lsn(position: int | None) -> str | None:
    return None if position is None else lsn_text(position)


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(timezone.utc).isoformat(timespec="seconds")
