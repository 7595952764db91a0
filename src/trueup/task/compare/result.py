"""The result of a run: counts, verdict and report file, from the state of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from trueup.config.wording import counted
from trueup.db.names import display_name
from trueup.db.snapshot import Position
from trueup.errors import StoreError
from trueup.report.extent import Extent
from trueup.report.frames import write_parquet
from trueup.report.html import write_diff_page
from trueup.report.json_file import PairReport, report_path, write_report
from trueup.report.json_reader import open_report
from trueup.report.model import DiffResult, PairCounts, Verdict
from trueup.report.text import moment
from trueup.rows.align import Pair, differing_pairs
from trueup.rows.keys import KeyValues
from trueup.rows.proven import ComparedTable
from trueup.rows.request import TableRequest
from trueup.rows.spec import TableSpec
from trueup.store import TaskStore, times
from trueup.task.accepted import scope_of
from trueup.task.compare.accepted import Accepted, check_remark, find_accepted
from trueup.task.compare.certify import compared_ranges
from trueup.task.compare.lines import Lines
from trueup.task.compare.model import Ranges
from trueup.task.compare.state import State
from trueup.task.open import OpenTask


@dataclass(frozen=True)
class Since:
    """The keys of an earlier report, and for each the pairs that differed, as bits in the order of all pairs."""

    keys: Sequence[KeyValues]
    pairs: Sequence[int]
    # Why rows may differ that the report does not list.
    unlisted: str = ""


class Ran(Protocol):
    """A run that has ended."""

    @property
    def request(self) -> TableRequest:
        """What was requested."""
        ...

    @property
    def spec(self) -> TableSpec:
        """The table, as it was compared."""
        ...

    @property
    def state(self) -> State:
        """What was compared and found."""
        ...

    @property
    def extent(self) -> Extent:
        """Which rows and columns were compared."""
        ...

    @property
    def engine(self) -> RanOn:
        """What has compared it."""
        ...


class RanOn(Protocol):
    """An engine, after a run."""

    @property
    def name(self) -> str:
        """The engines that have run tasks."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Warnings of the engine."""
        ...


class ReadAt(Protocol):
    """A dataclass with what a node was read at."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def node(self) -> str:
        """The name of the node."""
        ...


@dataclass
class Ending:
    """What the result is computed from."""

    run: Ran
    ranges: Ranges
    positions: Sequence[ReadAt]
    task_id: str
    started: datetime
    remarks: tuple[str, ...]
    # The snapshots of earlier attempts, if the run was resumed.
    earlier: Sequence[Sequence[ReadAt]] = ()
    # Of a rerun: the earlier report, and per pair what is resolved, remains and is new (computed once).
    since: Since | None = None
    compared: dict[Pair, tuple[dict[str, int], list[KeyValues]]] = field(default_factory=dict)
    accepted: Accepted = field(default_factory=Accepted)

    @property
    def request(self) -> TableRequest:
        """The request of the run."""
        return self.run.request

    @property
    def spec(self) -> TableSpec:
        """The table, as it was compared."""
        return self.run.spec

    @property
    def state(self) -> State:
        """The state of the run."""
        return self.run.state


def conclude(ending: Ending, store: TaskStore | None = None) -> DiffResult:
    """Count the differences, decide the verdict, write the report, and return the result.

    `store` has the accepted differences; without it, none are accepted.
    """
    finished = datetime.now(timezone.utc)
    state = ending.state
    accepted_remarks = _accept(ending, store, finished)
    pairs, alone = _count(ending)
    # Without a snapshot a row may change between hashing and reading.
    explain = ending.request.settings.snapshot and not ending.request.digests_only
    incomplete = _reasons(state, ending.spec, explain=explain)
    incomplete += [_hot(pair, counts.hot) for pair, counts in pairs.items() if counts.hot]
    incomplete += _no_rows(ending)
    incomplete += [ending.since.unlisted] if ending.since and ending.since.unlisted else []
    differs = any(counts.total for counts in pairs.values())
    if ending.request.digests_only:
        differs = state.mismatched_blocks > 0
    # A rerun compares only some keys, so it cannot show that the tables match.
    agrees: Verdict = "RESOLVED" if ending.since else "MATCH"
    if any(counts.accepted for counts in pairs.values()):
        agrees = "ACCEPTED"
    verdict: Verdict = "INCOMPLETE" if incomplete else "DIFFER" if differs else agrees
    result = DiffResult(
        verdict=verdict,
        table=display_name(ending.spec.schema, ending.spec.table),
        mode=ending.request.mode,
        nodes=state.nodes,
        pairs={"/".join(pair): counts for pair, counts in pairs.items()},
        rows_checked=state.rows_checked,
        rows=dict(state.rows),
        blocks=state.blocks,
        mismatched_blocks=state.mismatched_blocks,
        seconds=round((finished - ending.started).total_seconds(), 3),
        engine="+".join(sorted(state.ran_on)) or ending.run.engine.name,
        ran_on=dict(sorted(state.ran_on.items())),
        report="",
        task_id=ending.task_id,
        alone=alone if len(state.nodes) > 2 else {},
        incomplete=tuple(incomplete),
        remarks=(*ending.remarks, *_remarks(state), *accepted_remarks, *ending.run.engine.remarks),
        accepted=tuple(ending.accepted.as_json()),
        extent=ending.run.extent,
        earlier=_earlier(ending),
        since_proof=state.proven.as_json() if state.proven else {},
        certified=_certify(ending) if verdict == "MATCH" and ending.request.certifier else {},
        rerun_of=ending.request.rerun_of,
        since={"/".join(pair): counts for pair, (counts, _) in _since(ending).items()},
    )
    if ending.request.digests_only:
        return result
    return _with_report(ending, result, pairs, finished)


def _no_rows(ending: Ending) -> list[str]:
    """Return why a run that found no row is incomplete: by default, if its filter may be wrong."""
    state, extent = ending.state, ending.run.extent
    required = ending.request.require_rows
    is_required = not extent.has_all_rows if required is None else required
    has_rows = state.rows_checked or any(state.rows.values()) or (state.proven and state.proven.proven_rows)
    if not is_required or has_rows or ending.since or state.stopped or state.failures:
        return []
    if extent.has_all_rows:
        return ["the table is empty on all nodes (--require-rows)"]
    return ["no row was selected on any node: check the filter, or allow this with --no-require-rows"]


def _certify(ending: Ending) -> dict[str, str]:
    """Record the certificate of a table that matches; return in which validation, or why that was not possible."""
    certifying = ending.state.certifying
    if certifying is None:
        reason = "only a run over the key of a table that was not resumed, with columns of equal types, is recorded"
        return {"validation": "", "reason": reason}
    tables = {
        position.node: (position.server, position.table_oid)
        for position in ending.positions
        if isinstance(position, Position) and position.table_oid
    }
    ranges = compared_ranges(ending.ranges, ending.state.digests)
    how: Literal["check", "diff"] = "check" if ending.request.digests_only else "diff"
    reason = certifying.record(ComparedTable(ending.spec, tables, tuple(ranges), how))
    return {"validation": certifying.validation, "reason": reason}


def _earlier(ending: Ending) -> str:
    """Return how many blocks were read before the run was resumed, and since when; "" if none were."""
    blocks = ending.state.earlier_blocks
    if not blocks:
        return ""
    since = min(str(getattr(position, "taken_at", "")) for attempt in ending.earlier for position in attempt)
    return (
        f"{blocks:,} of {counted(len(ending.ranges.blocks), 'block')} at an earlier moment, since {moment(since)} UTC"
    )


def _accept(ending: Ending, store: TaskStore | None, finished: datetime) -> list[str]:
    """Find the accepted differences of the run; return remarks."""
    spec, now = ending.spec, times.iso(finished)
    scope = _scope(ending)
    if store is None or scope is None:
        return []
    table = display_name(spec.schema, spec.table)
    if ending.request.digests_only:
        return check_remark(ending.state, store, table, now)
    ending.accepted = find_accepted(ending.state, spec, scope, store, table=table, now=now)
    return ending.accepted.remarks


def _scope(ending: Ending) -> dict[str, Any] | None:
    """Return what was compared, and how; None if a node has no identity."""
    tables = {
        position.node: {"system": position.system, "table": position.table_oid}
        for position in ending.positions
        if isinstance(position, Position) and position.table_oid
    }
    return scope_of(ending.spec, tables) if len(tables) == len(ending.positions) else None


def _hot(pair: Pair, rows: int) -> str:
    verb = "row is" if rows == 1 else "rows are"
    return (
        f"{'/'.join(pair)}: {rows:,} {verb} hot: changed between the last two looks, so the difference is not confirmed"
    )


def _remarks(state: State) -> list[str]:
    if not state.seen_once:
        return []
    rehashed = len(state.mismatched) - state.seen_once
    return [
        f"{rehashed:,} differing ranges still differ after the re-check; {state.seen_once:,} others were hashed only"
        " once and may have been in flight"
    ]


def _count(ending: Ending) -> tuple[dict[Pair, PairCounts], dict[str, int]]:
    """Return the confirmed differences by pair and kind (at most the limit), and how often each node is alone."""
    state = ending.state
    kinds = {pair: state.kinds.get(pair, Counter()) for pair in state.pairs}
    full = set(state.full_pairs())
    counted = {
        pair: PairCounts(
            missing=counts["missing"],
            extra=counts["extra"],
            changed=counts["changed"],
            in_flight=state.in_flight[pair],
            hot=counts["hot"],
            limit_reached=pair in full,
            accepted=counts["accepted"],
        )
        for pair, counts in kinds.items()
    }
    return counted, {node: state.alone[node] for node in state.nodes}


def _reasons(state: State, spec: TableSpec, *, explain: bool) -> list[str]:
    """Return why the run is incomplete; with `explain`, a differing block without a differing row is a reason."""
    reasons = [str(state.stopped)] if state.stopped else []
    reasons += [str(failure.error) for failure in state.failures]
    for pair in state.pairs:
        name = "/".join(pair)
        if state.left_out[pair]:
            reasons.append(f"{name}: {state.left_out[pair]:,} blocks or parts of blocks were not compared")
        if state.cut[pair]:
            reasons.append(f"{name}: more than {state.max_rows:,} differences; those beyond the limit are not listed")
    if not reasons:
        reasons += _not_counted(state, spec)
    if explain and not reasons and state.unexplained:
        reasons.append(
            f"{len(state.unexplained):,} blocks have different digests but no differing row: this is a defect of"
            " trueup, report it with the types of the table's columns"
        )
    return list(dict.fromkeys(reasons))


def _not_counted(state: State, spec: TableSpec) -> list[str]:
    """Return a reason per node whose blocks do not have all its rows."""
    others = ", or the filter has another result each time" if spec.filter else ""
    reasons = []
    for node in state.nodes:
        if without_key := state.without_key.get(node, 0):
            reasons.append(f"{node}: {without_key:,} rows have NULL in the key and are in no block; name another --key")
        compared = state.rows[node] - state.earlier[node]
        if (rows := state.counted.get(node, compared)) != compared:
            reasons.append(
                f"{node}: {rows:,} rows were counted, and {compared:,} compared: a row has NULL in the key, is missing"
                f" in an index, or is outside of the bounds of its partition{others}; REINDEX the table, check its"
                " constraints"
            )
    return reasons


def _with_report(
    ending: Ending, result: DiffResult, pairs: Mapping[Pair, PairCounts], finished: datetime
) -> DiffResult:
    folder = Path(ending.request.settings.report_dir or ".").absolute()
    while True:
        path = report_path(folder, ending.spec.schema, ending.spec.table, finished.strftime("%Y%m%d%H%M%S"))
        reported = replace(result, report=str(path))
        head = {
            "summary": summary_fields(ending, reported, finished),
            "proof": _proof(ending),
            "incomplete": list(reported.incomplete),
            "remarks": list(reported.remarks),
        }
        # Another process may have written a report of this name since.
        with suppress(FileExistsError):
            write_report(path, head, _pair_reports(ending, pairs))
            break
    outputs = ending.request.settings.outputs
    reported = _with_page(ending, reported) if "html" in outputs else reported
    return _with_table(reported) if "parquet" in outputs else reported


def _with_page(ending: Ending, result: DiffResult) -> DiffResult:
    path = Path(result.report)
    try:
        written = write_diff_page(path.with_suffix(".html"), open_report(path))
    except StoreError as error:
        # The result and its JSON report are complete: a missing page is not a failure of the run.
        cure = f"trueup report {ending.task_id[:8]} --output html --to FILE"
        return replace(
            result, remarks=(*result.remarks, f"the HTML page could not be written: {error}; write it with: {cure}")
        )
    return replace(result, page=str(written))


def _with_table(result: DiffResult) -> DiffResult:
    path = Path(result.report)
    try:
        return replace(result, parquet=str(write_parquet(path.with_suffix(".parquet"), result.report)))
    except StoreError as error:
        return replace(result, remarks=(*result.remarks, f"the Parquet file could not be written: {error}"))


def summary_fields(ending: Ending, result: DiffResult, finished: datetime) -> dict[str, Any]:
    """Return the fields of the report's summary, which are also the `diff_summary` of the task."""
    state, settings = ending.state, ending.request.settings
    return {
        "verdict": result.verdict,
        "mode": result.mode,
        **({"rerun_of": result.rerun_of, "since": dict(result.since)} if result.rerun_of else {}),
        "task_id": ending.task_id,
        "schema": ending.spec.schema,
        "table": ending.spec.table,
        "cluster": ending.request.cluster,
        "nodes": list(state.nodes),
        "primary_key": list(ending.spec.key_names),
        "columns": list(ending.spec.column_names),
        "table_filter": ending.spec.filter,
        "extent": result.extent.as_json(),
        "total_rows_checked": state.rows_checked,
        "rows": dict(state.rows),
        "initial_ranges_count": len(ending.ranges.blocks),
        "blocks": state.blocks,
        "mismatched_ranges_count": state.mismatched_blocks,
        "diff_row_limit_reached": any(counts.limit_reached for counts in result.pairs.values()),
        "diff_rows_count": {pair: counts.total for pair, counts in result.pairs.items()},
        "alone": dict(result.alone),
        **({"accepted": [dict(each) for each in result.accepted]} if result.accepted else {}),
        **({"since_proof": dict(result.since_proof)} if result.since_proof else {}),
        **({"earlier": result.earlier} if result.earlier else {}),
        **({"certified": dict(result.certified)} if result.certified else {}),
        "block_size": settings.block_size,
        "compare_unit_size": settings.compare_unit_size,
        "concurrency_factor": settings.concurrency_factor,
        "max_connections": settings.max_connections,
        # A rerun has no limit.
        "max_diff_rows": None if result.rerun_of else settings.max_diff_rows,
        "recheck": settings.recheck,
        "recheck_wait": settings.recheck_wait,
        "numeric": settings.numeric,
        "engine": result.engine,
        "ran_on": dict(result.ran_on),
        "start_time": ending.started.isoformat().replace("+00:00", "Z"),
        "end_time": finished.isoformat().replace("+00:00", "Z"),
        "time_taken": result.seconds,
    }


def record(task: OpenTask, ending: Ending, result: DiffResult) -> None:
    """Set the outcome of the task: the summary of the report, and what the history of the table needs besides."""
    task.finish(
        {
            **summary_fields(ending, result, datetime.now(timezone.utc)),
            "kinds": {pair: _kinds(counts) for pair, counts in result.pairs.items()},
            **({"proof": _proof(ending)} if result.verdict != "INCOMPLETE" else {}),
            "positions": {
                position.node: str(at) for position in ending.positions if (at := getattr(position, "log_position", ""))
            },
        },
        failed=result.verdict == "INCOMPLETE",
        error="; ".join(result.incomplete),
        report=result.report,
    )


def _kinds(counts: PairCounts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in ("missing", "extra", "changed", "in_flight", "hot", "accepted")}


def _proof(ending: Ending) -> dict[str, Any]:
    """Return the fields of the report's proof: seeds, plan and snapshots."""
    spec = ending.spec
    return {
        "digest": spec.digest,
        "hash_seed": spec.seed,
        "sample_seed": spec.sample_seed,
        "sample": ending.ranges.sample,
        "anchor": ending.ranges.anchor,
        "estimates": dict(ending.ranges.estimates),
        "one_snapshot_a_node": ending.request.settings.snapshot
        and all(getattr(position, "held", True) for position in ending.positions),
        "nodes": {position.node: asdict(position) for position in ending.positions},
        "earlier": [{position.node: asdict(position) for position in attempt} for attempt in ending.earlier],
        "long_value": spec.long_value,
        **({"scope": scope} if (scope := _scope(ending)) else {}),
    }


def _pair_reports(ending: Ending, pairs: Mapping[Pair, PairCounts]) -> Iterator[PairReport]:
    since = _since(ending)
    for pair, counts in pairs.items():
        numbers, resolved = since.get(pair, ({}, None))
        yield PairReport(
            "/".join(pair),
            {**asdict(counts), "total": counts.total, **numbers},
            _reported(ending, pair),
            # Values in the order of the primary key, without its names: those would be most of the file.
            None if resolved is None else map(_as_json, resolved),
            _reported(ending, pair, only_accepted=True) if counts.accepted else None,
        )


def _as_json(key: KeyValues) -> str:
    """Return a key as JSON, in a third of the time of `json.dumps`: a repair may have resolved millions."""
    return f"[{', '.join(map(encode_basestring_ascii, key))}]"


def _since(ending: Ending) -> dict[Pair, tuple[dict[str, int], list[KeyValues]]]:
    """Return per pair the number of keys that are resolved, remain and are new, and the resolved ones."""
    if ending.since is None or ending.compared:
        return ending.compared
    # Per key, as bits in the order of all pairs: those that differ, and above them those that are confirmed. A key that
    # is hot is not resolved, and is not counted among those that remain or are new.
    places = {pair: number for number, pair in enumerate(ending.state.pairs)}
    width = len(places)
    now: dict[KeyValues, int] = {}
    for suspect in ending.state.suspects:
        now[suspect.key] = sum(
            1 << places[pair] if suspect.is_hot(pair) else (1 | 1 << width) << places[pair]
            for pair in differing_pairs(suspect)
        )
    # A key that could not be compared is not resolved.
    unseen = {key for failure in ending.state.failures for key in _keys_of(failure.task)}
    since: dict[Pair, tuple[dict[str, int], list[KeyValues]]] = {}
    for number, pair in enumerate(ending.state.pairs):
        counts, resolved = {"resolved": 0, "remains": 0, "new": 0}, []
        if not now and not unseen:
            resolved = [
                key for key, bits in zip(ending.since.keys, ending.since.pairs, strict=True) if bits & 1 << number
            ]
        else:
            for key, bits in zip(ending.since.keys, ending.since.pairs, strict=True):
                bits_now = now.get(key, 0) >> number
                differed, confirmed = bool(bits & 1 << number), bool(bits_now & 1 << width)
                if differed and not bits_now & 1 and key not in unseen:
                    resolved.append(key)
                counts["remains"] += differed and confirmed
                counts["new"] += confirmed and not differed
        counts["resolved"] = len(resolved)
        since[pair] = counts, resolved
    ending.compared = since
    return since


def _keys_of(task: Any) -> Iterator[KeyValues]:
    """Yield the keys of a task."""
    yield from getattr(task, "keys", ())
    yield from (key for key, _ in getattr(task, "before", ()))
    yield from ((str(mark),) for mark in getattr(task, "hashes", ()))


def _reported(ending: Ending, pair: Pair, *, only_accepted: bool = False) -> Iterator[str]:
    bit = 1 << ending.state.pairs.index(pair)
    before = None
    if ending.since and ending.state.suspects.count:
        before = {key: bool(bits & bit) for key, bits in zip(ending.since.keys, ending.since.pairs, strict=True)}
    accepted = ending.accepted.ids(pair)
    return Lines(ending.spec, pair, before).of(
        iter(ending.state.suspects), ending.state.limit(pair), accepted, only_accepted=only_accepted
    )
