"""The status of a validation, as a dataclass, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from trueup.capture.log.slot import lsn_number, lsn_text
from trueup.config.visible import as_lines
from trueup.config.wording import counted
from trueup.proof import store
from trueup.proof.model import Certificate
from trueup.report.extent import Extent
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
    scrubbed_rows: int
    scrub_passes: int
    scrubbed_at: str | None
    # Why changes were missed.
    missed: str = ""
    # Whether it was added or restarted, and is scrubbed once for that.
    scrub_once: bool = False
    # The open errors per kind: missing, extra, changed.
    errors_by_kind: dict[str, int] = field(default_factory=dict)
    # The certificate: how and since when its rows are proven, and why it is void (None: there is none).
    certificate: dict[str, Any] | None = None
    # The blocks of the scrub: their number, those never hashed, and when the oldest one was hashed.
    blocks: int = 0
    unhashed_blocks: int = 0
    oldest_block_at: str | None = None
    # With both sides: why changes of the target are not seen.
    target_problem: str = ""
    # Which rows and columns are compared; None: it was not planned.
    extent: Extent | None = None

    @property
    def selection(self) -> list[str]:
        """Return which rows are compared, if not all, one line each; `remarks` name the columns, and why."""
        return replace(self.extent, left_out=()).lines() if self.extent else []

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
    # With both sides: before this position of the target, changes that are not of the syncer are judged.
    both_sides: bool = False
    # Where changes of both nodes are read: log, tube, changelog.
    capture: str = "log"
    target_position: str | None = None
    target_at: str | None = None
    target_others: int = 0
    target_applied: int = 0

    def total(self, name: str) -> int:
        """Return the sum of an attribute of `TableStatus` over all tables."""
        return sum(int(getattr(table, name)) for table in self.tables)

    @property
    def open_errors(self) -> int:
        """Return the number of errors that are not ignored and not resolved."""
        return sum(table.errors.get("new", 0) for table in self.tables)

    @property
    def pending_by_operation(self) -> dict[str, int]:
        """Return the number of pending keys per operation: insert, update, delete, truncate, scrub."""
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
            elif table.unchecked and table.scrub_once:
                reasons.append(f"{table.source} was added or restarted, and is not scrubbed completely yet")
            elif table.unchecked:
                why = f" ({table.missed})" if table.missed else ""
                cure = "use --scrub-share, or run trueup diff"
                reasons.append(f"changes of {table.source} were missed or not checked{why}: {cure}")
        return reasons

    @property
    def not_compared(self) -> list[str]:
        """Return which rows and columns of tables are not compared."""
        return [f"{table.source}: {text}" for table in self.tables for text in (*table.selection, *table.remarks)]

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
        has_proof = store.is_made(meta.connection)
        certificates = store.certificates(meta.connection, name) if has_proof else {}
        ages = store.ages(meta.connection, name) if has_proof else {}
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
            replace(
                _table(row, *(known.get(row["source"], {}) for known in (counts, errors, kinds))),
                **_proof(row, certificates.get(row["source"]), ages.get(row["source"])),
            ) for row in rows
        ),
        stored.engine if state == "running" else {}, stored.settings.both_sides, stored.settings.changes,
        _lsn(stored.target_position),
        _time(stored.target_at), stored.target_others, stored.target_applied,
    )  # fmt: skip


def _proof(row: dict[str, Any], certificate: Certificate | None, age: store.Age | None) -> dict[str, Any]:
    """Return what is known about the certificate of a table."""
    extent = Extent.from_json(row["rules"]["extent"]) if row["rules"] else None
    facts: dict[str, Any] = {"target_problem": row["target_problem"], "extent": extent}
    if certificate is not None:
        void = certificate.void
        facts["certificate"] = {
            "how": certificate.how,
            "proven_at": _time(certificate.proven_at),
            "void": None if void is None else {"reason": void.reason, "at": _time(void.at)},
        }
    if age is not None:
        oldest = None if age.unhashed else age.oldest_at
        facts |= {"blocks": age.blocks, "unhashed_blocks": age.unhashed, "oldest_block_at": _time(oldest)}
    return facts


def _table(row: dict[str, Any], counts: dict[str, Any], errors: dict[str, int], kinds: dict[str, int]) -> TableStatus:
    return TableStatus(
        row["source"], row["target"], row["stage"], row["reason"], tuple(row["remarks"]), row["inserts"],
        row["updates"], row["deletes"], row["truncates"], row["unchecked"], counts.get("pending", 0),
        counts.get("failed", 0), counts.get("hot", 0), counts.get("by_operation", {}), errors, row["scrub_rows"],
        row["scrub_passes"], _time(row["scrubbed_at"]), row["missed"], row["scrub_once"], kinds,
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
    if status.both_sides:
        how = " by triggers" if status.capture != "log" else ""
        lines.append(
            f"  changes of the target read{how} up to {status.target_position}: {status.target_others:,} compared,"
            f" {status.target_applied:,} of the syncer or compared already"
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
        lines += [f"    {_proof_text(status, table)}"] if table.blocks or table.certificate else []
        if table.scrub_passes or table.scrubbed_rows:
            lines.append(
                f"    scrubbed: {counted(table.scrubbed_rows, 'row')}, complete passes: {table.scrub_passes:,}"
            )
        if table.target_problem:
            lines.append(f"    what is written on the target is not seen: {table.target_problem}")
        lines += [f"    {text}" for text in (*table.selection, *table.remarks)]
    lines += [f"  not checked: {reason}" for reason in status.blind_spots]
    return as_lines(lines)


def _proof_text(status: Status, table: TableStatus) -> str:
    """Return what the certificate of a table says."""
    blocks = f"{counted(table.blocks, 'block')}, the oldest hashed at {table.oldest_block_at or 'no time yet'}"
    if table.certificate is None:
        return f"no certificate yet: {table.unhashed_blocks:,} of {blocks}"
    void = table.certificate["void"]
    if void is not None:
        return f"the certificate is void since {void['at']}: {void['reason']} ({blocks})"
    also = f", and on the target up to {status.target_position}" if status.both_sides else ""
    return f"certificate of {table.certificate['proven_at']} ({table.certificate['how']}; {blocks}){also}"


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
