"""Metrics in the text format of Prometheus, from what the collector has seen last. Keys and values are never labels.

A source that does not answer keeps its last values, and `trueup_source_up` is 0: an alert on a value that cannot be
read would be silent otherwise. A metric of a table has one time series per set of nodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector as MetricCollector

from trueup import __version__
from trueup.capture.log.slot import lsn_number
from trueup.config.model import Config
from trueup.serve.model import Seen
from trueup.serve.render import seconds_of
from trueup.store.history import ACCEPTED, MATCH, TableState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Seconds of a pause, of switchovers and rehearsals.
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
KINDS = ("missing", "extra", "changed")


# Not true any more after the command that wrote them has ended.
_LIVE = ("trueup_proof_age_seconds", "trueup_source_up", "trueup_source_last_read_timestamp_seconds")


def metrics_text(seen: Seen, config: Config, *, is_lasting: bool = True) -> bytes:
    """Return all metrics as text; unless `is_lasting`, only those that have values and do not change with time."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Seen(seen, config, is_lasting=is_lasting))
    return generate_latest(registry)


class _Seen(MetricCollector):
    def __init__(self, seen: Seen, config: Config, *, is_lasting: bool) -> None:
        self._seen = seen
        self._config = config
        self._is_lasting = is_lasting

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for metric in self._all():
            if self._is_lasting or (metric.samples and metric.name not in _LIVE):
                yield metric

    def _all(self) -> Iterator[Metric]:
        yield from _build()
        yield from _sources(self._seen)
        yield from _tables(self._seen, self._config)
        yield from _tasks(self._seen)
        yield from _validations(self._seen)
        yield from _tubes(self._seen)
        yield from _syncs(self._seen)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _build() -> Iterator[Metric]:
    metric = _gauge("trueup_build_info", "The version of trueup; the value is 1.", "version")
    metric.add_metric([__version__], 1)
    yield metric


def _sources(seen: Seen) -> Iterator[Metric]:
    where = ("kind", "source")
    up = _gauge(
        "trueup_source_up", "Whether a source (store, node, command) was read completely the last time.", *where
    )
    read = _gauge("trueup_source_last_read_timestamp_seconds", "When a source was read the last time.", *where)
    for kind, part in seen.parts_by_kind:
        up.add_metric([kind, part.name], 1 if part.is_complete else 0)
        if part.seen_at:
            read.add_metric([kind, part.name], part.seen_at)
    yield up
    yield read


def scope_label(state: TableState, config: Config) -> str:
    """Return the cluster of a table, or the nodes if they are not all nodes of that cluster."""
    run = state.run
    if run.cluster_name and set(config.clusters.get(run.cluster_name, ())) == set(run.nodes.split(",")):
        return run.cluster_name
    return f"{run.cluster_name}:{run.nodes}" if run.cluster_name else run.nodes


def _newest(seen: Seen, config: Config) -> Mapping[tuple[str, str], TableState]:
    """Return the tables by cluster and name."""
    found: dict[tuple[str, str], TableState] = {}
    for state in seen.states:
        key = scope_label(state, config), state.run.table_name
        if key not in found or found[key].run.finished_at < state.run.finished_at:
            found[key] = state
    return found


def _tables(seen: Seen, config: Config) -> Iterator[Metric]:
    where = ("cluster", "table")
    match = _gauge(
        "trueup_proof_last_match_timestamp_seconds",
        "Start of the last run that compared the whole table and found it equal.",
        *where,
    )
    age = _gauge("trueup_proof_age_seconds", "Seconds since the start of the run that last proved the table.", *where)
    verdict = _gauge("trueup_table_verdict", "1 for the last verdict of the table.", *where, "verdict")
    proven_now = _gauge("trueup_table_proven", "Whether the last look at the whole table found it equal.", *where)
    differences = _gauge("trueup_diff_differences", "Differing rows at the last diff.", "pair", "table", "kind")
    rows = CounterMetricFamily("trueup_diff_rows", "Rows that were compared.", labels=where)
    counts: dict[tuple[str, str, str], tuple[str, int]] = {}
    for (cluster, table), state in _newest(seen, config).items():
        if state.matched_at:
            proven = seconds_of(state.matched_at)
            match.add_metric([cluster, table], proven)
            age.add_metric([cluster, table], max(0.0, time.time() - proven))
        is_part = not state.run.is_whole and state.run.verdict in (MATCH, ACCEPTED)
        verdict.add_metric([cluster, table, f"{state.run.verdict}{' (of a part)' * is_part}"], 1)
        proven_now.add_metric([cluster, table], int(state.is_proven))
        rows.add_metric([cluster, table], state.rows_total)
        for pair, kinds in state.run.kinds.items():
            # Two clusters may have the same pair of nodes: the newest run counts.
            for kind in (*KINDS, "accepted") if state.run.mode != "check" else ():
                key = (pair, table, kind)
                if key not in counts or counts[key][0] < state.run.finished_at:
                    counts[key] = state.run.finished_at, kinds.get(kind, 0)
    for labels, (_, count) in counts.items():
        differences.add_metric(list(labels), count)
    yield from (match, age, verdict, proven_now, differences, rows)


def _tasks(seen: Seen) -> Iterator[Metric]:
    tasks = _gauge("trueup_tasks", "Tasks in the task stores.", "type", "status")
    counts: dict[tuple[str, str], int] = {}
    pauses: list[float] = []
    for summary in seen.summaries():
        for kind, status, count in summary.counts:
            counts[kind, status] = counts.get((kind, status), 0) + count
        for task in summary.switchovers:
            result = task.task_context.get("diff_summary")
            if (
                isinstance(result, dict)
                and isinstance(result.get("pause_ms"), int | float)
                and not result.get("already")
            ):
                pauses.append(result["pause_ms"] / 1000)
    for labels, count in counts.items():
        tasks.add_metric(list(labels), count)
    yield tasks
    failed = _gauge("trueup_tasks_last_failed_timestamp_seconds", "Last end of a task that failed in two days.", "type")
    ends: dict[str, float] = {}
    for task in (task for summary in seen.summaries() for task in summary.failed):
        end = seconds_of(task.finished_at or task.started_at)
        ends[task.task_type] = max(end, ends.get(task.task_type, 0.0))
    for kind, end in ends.items():
        failed.add_metric([kind], end)
    yield failed
    pause = HistogramMetricFamily("trueup_switchover_pause_seconds", "Pauses of switchovers and rehearsals.")
    buckets = [(str(limit), float(sum(1 for value in pauses if value <= limit))) for limit in BUCKETS]
    pause.add_metric([], [*buckets, ("+Inf", float(len(pauses)))], sum(pauses))
    yield pause


def _validations(seen: Seen) -> Iterator[Metric]:
    where = ("validation", "node")
    up = _gauge("trueup_validation_running", "Whether a process runs the validation.", *where)
    finished = _gauge("trueup_validation_finished", "Whether everything before its cut-over is decided.", *where)
    errors = _gauge("trueup_validation_errors", "Rows that stayed wrong.", "validation", "node", "table", "kind")
    pending = _gauge("trueup_validation_pending_keys", "Changed rows that are not proven yet.", *where)
    lag_bytes = _gauge("trueup_validation_lag_bytes", "Log between the source and what was read.", *where)
    lag = _gauge("trueup_validation_lag_seconds", "Age of the oldest change that was not read.", *where)
    position = _gauge("trueup_validation_position", "Position before which all changes are proven or errors.", *where)
    blind = _gauge("trueup_validation_unchecked", "Reasons why something is not checked.", *where)
    oldest = _gauge(
        "trueup_scrub_oldest_block_timestamp_seconds", "When the oldest block of a table was hashed.", *where, "table"
    )
    retained = _gauge("trueup_slot_retained_bytes", "Log that a server keeps for a slot.", "node", "slot")
    for validation in seen.validations():
        status, labels = validation.status, [validation.status.name, validation.meta]
        up.add_metric(labels, 1 if status.state == "running" else 0)
        finished.add_metric(labels, 1 if status.is_finished else 0)
        pending.add_metric(labels, status.total("pending"))
        blind.add_metric(labels, len(status.blind_spots))
        for metric, value in ((lag_bytes, status.lag_bytes), (lag, status.lag_seconds)):
            if value is not None:
                metric.add_metric(labels, value)
        if status.validated:
            position.add_metric(labels, lsn_number(status.validated))
        for table in status.tables:
            for kind in KINDS:
                errors.add_metric([*labels, table.source, kind], table.errors_by_kind.get(kind, 0))
            if table.oldest_block_at:
                hashed_at = datetime.fromisoformat(table.oldest_block_at).timestamp()
                oldest.add_metric([*labels, table.source], hashed_at)
    for slot in seen.slots():
        if slot.retained_bytes is not None:
            retained.add_metric([slot.node, slot.slot], max(0, slot.retained_bytes))
    yield from (up, finished, errors, pending, lag_bytes, lag, position, blind, oldest, retained)


def _tubes(seen: Seen) -> Iterator[Metric]:
    where = ("tube", "node")
    backlog = _gauge("trueup_tube_backlog_keys", "Keys that wait in the tube.", *where)
    oldest = _gauge("trueup_tube_oldest_seconds", "Age of the oldest touch that waits.", *where)
    delivered = CounterMetricFamily("trueup_tube_delivered_keys", "Keys that were delivered.", labels=where)
    letters = _gauge("trueup_tube_dead_letters", "Keys that could not be delivered.", *where)
    workers = _gauge("trueup_tube_workers", "Partitions that a worker holds.", *where)
    for tube in seen.tubes():
        labels = [tube.name, tube.node]
        backlog.add_metric(labels, tube.backlog)
        oldest.add_metric(labels, max((row.oldest_live_s or 0.0 for row in tube.stats), default=0.0))
        delivered.add_metric(labels, tube.total("keys_done"))
        letters.add_metric(labels, tube.total("dead_letters"))
        workers.add_metric(labels, sum(1 for row in tube.stats if row.worker))
    yield from (backlog, oldest, delivered, letters, workers)


def _syncs(seen: Seen) -> Iterator[Metric]:
    where = ("sync", "source", "target")
    pending = _gauge("trueup_sync_pending_keys", "Keys in the change log.", *where)
    oldest = _gauge("trueup_sync_oldest_seconds", "Age of the oldest entry of the change log.", *where)
    running = _gauge("trueup_sync_running", "Whether a process runs rounds.", *where)
    for sync in seen.syncs.value or ():
        labels = [sync.name, sync.source, sync.target]
        if sync.status is None:
            continue
        running.add_metric(labels, 1 if sync.status.running else 0)
        if sync.status.waiting is not None:
            pending.add_metric(labels, sync.status.waiting[1])
            oldest.add_metric(labels, sync.status.waiting[2] or 0.0)
    yield from (pending, oldest, running)
