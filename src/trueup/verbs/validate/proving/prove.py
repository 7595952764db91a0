"""Proves tables by induction: a certificate, and every captured change since then.

A marker is written into the log of the target, then, when everything before it was judged, one into the log of the
source. When that one is validated, too, a table with a valid certificate is equal on both nodes at these positions.
That takes as long for a large table as for a small one.

The table has had a valid certificate since before the markers. The rows that differed when the scrub made it are
pending, at a position of the source that was read already: they are decided when the marker is validated. Those of a
certificate that becomes valid meanwhile may be decided later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from trueup.capture.log.slot import lsn_text
from trueup.config.model import Node
from trueup.config.visible import as_lines
from trueup.config.wording import counted
from trueup.db.node import connect, error_from_server
from trueup.db.server_identity import ServerPosition, server_position
from trueup.proof import store
from trueup.report.extent import Extent
from trueup.store import times
from trueup.verbs.validate import pending
from trueup.verbs.validate.fence import Fence, put_fence, refused, wait_for, write_marker
from trueup.verbs.validate.history import TARGET
from trueup.verbs.validate.meta import Meta, Stored
from trueup.verbs.validate.status import GONE, Status, TableStatus, read_status

# ACCEPTED: rows differ, and all of them are ignored errors. The worst verdict is the last one.
Verdict = Literal["MATCH", "ACCEPTED", "DIFFER", "INCOMPLETE"]
EXIT_CODES: dict[Verdict, int] = {"MATCH": 0, "ACCEPTED": 0, "DIFFER": 1, "INCOMPLETE": 2}
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class TableProof:
    """The verdict about one table; `reasons` say what is not proven, or differs."""

    table: str
    verdict: Verdict
    reasons: tuple[str, ...]
    # When its certificate was made, and when its oldest block was hashed.
    certified_at: str | None
    oldest_block_at: str | None
    errors: int
    # Known differences that do not count.
    ignored: int
    # What is not compared, because of the settings or of columns that one node lacks.
    remarks: tuple[str, ...]
    # Which rows and columns are compared.
    extent: Extent


@dataclass(frozen=True)
class Proof:
    """What is proven about tables: at these positions of both nodes, at this time."""

    validation: str
    verdict: Verdict
    source: str
    target: str
    source_position: str
    # None: changes of the target are not captured.
    target_position: str | None
    at: str
    seconds: float
    tables: tuple[TableProof, ...]

    @property
    def exit_code(self) -> int:
        """Return the exit code as diff(1): 0 equal, 1 different, 2 something is not proven."""
        return EXIT_CODES[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values, with the ages in seconds."""
        now = datetime.now(timezone.utc)
        tables = [
            {**asdict(table), "oldest_block_age_seconds": _age(table.oldest_block_at, now)} for table in self.tables
        ]
        return {**asdict(self), "tables": tables, "age_seconds": _age(self.at, now), "exit_code": self.exit_code}


def summary_of(proof: Proof) -> dict[str, Any]:
    """Return a proof for the task store: the history of its tables has it like a diff of them."""
    positions = {proof.source: proof.source_position, proof.target: proof.target_position or ""}
    return {
        "verdict": proof.verdict,
        "mode": "prove",
        "validation": proof.validation,
        "pair": f"{proof.source}/{proof.target}",
        "positions": {node: position for node, position in positions.items() if position},
        "at": times.iso(datetime.fromisoformat(proof.at)),
        "seconds": round(proof.seconds, 3),
        "tables": [{**asdict(table), "extent": table.extent.as_json()} for table in proof.tables],
    }


@dataclass(frozen=True)
class _Known:
    """The status of a validation; by table, since when its certificate has been valid, and the undecided rows."""

    status: Status
    valid: Mapping[str, datetime]
    suspects: Mapping[str, int]

    def proven(self, tables: Sequence[str]) -> set[tuple[str, datetime]]:
        """Return those of the tables that nothing is missing for, and since when their certificates have been valid."""
        known = [table for table in self.status.tables if table.source in tables]
        return {(it.source, self.valid[it.source]) for it in known if not unproven(self.status, it)}


def prove(meta: Meta, name: str, nodes: tuple[Node, Node], tables: Sequence[str], *, timeout: float) -> Proof:
    """Write markers on the nodes, wait until everything before them is judged, and return what is proven.

    If a certificate becomes valid meanwhile, markers are written again.
    """
    start = time.monotonic()
    deadline = start + timeout
    before = _read(meta, name)
    while True:
        at, stored = datetime.now(timezone.utc), meta.need(name)
        target_position, problem = _prove_target(meta, name, nodes[1], stored, deadline)
        source_position, other = put_fence(nodes[0], stored)
        problem = problem or other
        if problem:
            fence = refused(before.status, source_position, problem)
        else:
            fence = wait_for(meta, name, source_position, timeout=max(0.0, deadline - time.monotonic()))
        known = _read_decided(meta, name, tables, deadline)
        new = known.proven(tables) - before.proven(tables)
        if not (new and fence.validated) or time.monotonic() >= deadline:
            break
        before = known
    by_name = {table.source: table for table in known.status.tables}
    is_new = {table for table, _ in new}
    proofs = tuple(
        _judged(known, by_name[table], fence, is_new=table in is_new) if table in by_name else _removed(table)
        for table in dict.fromkeys(tables)
    )
    status = known.status
    return Proof(
        name, worst([proof.verdict for proof in proofs]), status.source, status.target, lsn_text(source_position),
        None if target_position is None else lsn_text(target_position), at.isoformat(timespec="milliseconds"),
        time.monotonic() - start, proofs,
    )  # fmt: skip


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict about all: what is not proven outranks what differs."""
    return max(verdicts, key=list(EXIT_CODES).index, default="INCOMPLETE")


def unproven(status: Status, table: TableStatus) -> list[str]:
    """Return why the rows of a table are not proven by its certificate and the captured changes."""
    reasons = []
    if status.gap:
        reasons.append(f"changes after {status.gap['from']} were not seen: {status.gap['why']}")
    if table.stage == "stopped":
        reasons.append(f"it is not validated: {table.reason}")
    elif table.extent is None:
        reasons.append("it was not planned yet: trueup validate start")
    if status.mode != "full":
        reasons.append(f"the mode {status.mode} compares only which rows exist")
    certificate = table.certificate
    if certificate is None:
        rest = f": {table.unhashed_blocks:,} of {table.blocks:,} blocks are not hashed" if table.blocks else ""
        reasons.append(f"it has no certificate yet{rest}; use --scrub-share, or wait for the scrub")
    elif certificate["void"] is not None:
        reasons.append(f"its certificate is void: {certificate['void']['reason']}")
    elif table.unchecked:
        reasons.append(f"changes were missed or not checked{f' ({table.missed})' if table.missed else ''}")
    if not status.both_sides:
        since = f" since {table.oldest_block_at}" if table.oldest_block_at else ""
        reasons.append(f"what was written on the target{since} is not seen: the validation has no --both-sides")
    elif table.target_problem:
        reasons.append(f"what is written on the target is not seen: {table.target_problem}")
    return reasons


def _judged(known: _Known, table: TableStatus, fence: Fence, *, is_new: bool) -> TableProof:
    status, suspects = known.status, known.suspects.get(table.source, 0)
    reasons = unproven(status, table)
    if is_new and not reasons:
        reasons.append("its certificate became valid while it was proven: prove it again")
    if not fence.validated:
        reasons.append(fence.reasons[0] if fence.reasons else "not all changes were validated in time")
    if suspects:
        reasons.append(f"not decided yet: {counted(suspects, 'row')} that differed")
    errors, ignored = table.errors.get("new", 0), table.errors.get("ignored", 0)
    verdict: Verdict = "INCOMPLETE" if reasons else "DIFFER" if errors else "ACCEPTED" if ignored else "MATCH"
    if errors:
        reasons.append(f"errors: {counted(errors, 'row')}, see trueup validate errors {status.name}")
    certified_at = table.certificate["proven_at"] if table.certificate else None
    return TableProof(
        table.source, verdict, tuple(reasons), certified_at, table.oldest_block_at, errors, ignored,
        (*table.selection, *table.remarks), table.extent or Extent(),
    )  # fmt: skip


def _removed(table: str) -> TableProof:
    reason = "it was removed from the validation while it was proven"
    return TableProof(table, "INCOMPLETE", (reason,), None, None, 0, 0, (), Extent())


def _prove_target(meta: Meta, name: str, node: Node, stored: Stored, deadline: float) -> tuple[int | None, str]:
    """Write a marker on the target, and wait until changes were read up to it; return its position, and what is wrong.

    Rows that differ because of changes before it are pending then, at a position of the source that was read already.
    """
    if not stored.settings.both_sides:
        return None, ""
    try:
        connection = connect(node, application="trueup validate prove", read_only=False)
        try:
            position, server = write_marker(connection), server_position(connection)
        finally:
            connection.close()
    except Exception as error:
        raise error_from_server(error, node) from None
    known = stored.servers.get(TARGET)
    other = server.why_other(ServerPosition.from_json(known)) if known else ""
    if other:
        return position, f"the target {node.name} {other}"
    while True:
        stored = meta.need(name)
        if (stored.target_position or 0) >= position:
            return position, ""
        status = read_status(meta, name)
        if status.state != "running" and status.reason != GONE and not meta.is_running(name):
            return position, f"the validation is stopped: {status.reason or 'it was not started'}"
        if time.monotonic() >= deadline:
            if not meta.is_running(name):
                return position, f"the validation does not run: {status.reason}"
            at = lsn_text(stored.target_position or 0)
            return position, f"changes of the target were read up to {at}, the marker is at {lsn_text(position)}"
        time.sleep(_POLL_SECONDS)


def _read(meta: Meta, name: str) -> _Known:
    """Read what is known about a validation, in one snapshot of the meta database."""
    with meta.transaction():
        meta.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        status = read_status(meta, name)
        certificates = store.certificates(meta.connection, name)
        suspects = {row["source"]: row["count"] for row in meta.rows("suspects", pending.FILE, name=name)}
    # Certificates of an older version have no record of it.
    valid = {table: one.valid_since or one.proven_at for table, one in certificates.items() if one.is_valid}
    return _Known(status, valid, suspects)


def _read_decided(meta: Meta, name: str, tables: Sequence[str], deadline: float) -> _Known:
    """Wait until no row of these tables that differed is undecided; return what is known then."""
    while True:
        known = _read(meta, name)
        if not known.suspects.keys() & set(tables) or time.monotonic() >= deadline or not meta.is_running(name):
            return known
        time.sleep(_POLL_SECONDS)


def _age(at: str | None, now: datetime) -> float | None:
    return None if at is None else round((now - datetime.fromisoformat(at)).total_seconds(), 3)


def proof_text(proof: Proof) -> str:
    """Format a proof as text."""
    now = datetime.now(timezone.utc)
    target = f" and {proof.target_position} on {proof.target}" if proof.target_position else ""
    part = " (of a part)" if proof.verdict == "MATCH" and any(not it.extent.is_whole for it in proof.tables) else ""
    lines = [
        f"{proof.verdict}{part}: at {proof.source_position} on {proof.source}{target}, {_age(proof.at, now) or 0:.1f} s"
        f" ago (validation {proof.validation})"
    ]
    for table in proof.tables:
        age = _age(table.oldest_block_at, now)
        oldest = "no block hashed yet" if age is None else f"oldest block hashed {_duration(age)} ago"
        apart = f", apart from {table.ignored:,} ignored errors" if table.ignored else ""
        part = "" if table.extent.is_whole or table.verdict != "MATCH" else " (of a part)"
        lines.append(f"  {table.table}: {table.verdict}{part}{apart}; {oldest}")
        lines += [f"    {reason}" for reason in (*table.reasons, *table.remarks)]
    return as_lines(lines)


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
