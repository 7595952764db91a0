"""Migrates a log to changed settings: rewrites the state, and replaces the rows of the log that the settings change.

A migration is a run without chunk sets. Its signed rows cancel a row as it is in the log, and write it with the new
settings. State and settings change in one commit. A migration that was killed before this commit is rolled back by the
next command; after it, its rows are inserted as those of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from trueup.db.clickhouse import identifier
from trueup.errors import CheckFailed
from trueup.verbs.difflog import outputs
from trueup.verbs.difflog.basis import Basis, Change, changes
from trueup.verbs.difflog.clickhouse import open_target
from trueup.verbs.difflog.manifest import Run, Runs, lock_work_folder, now
from trueup.verbs.difflog.mark import check_target
from trueup.verbs.difflog.migration_plan import MigrationPlan
from trueup.verbs.difflog.model import EXPIRES, SLOW, DiffLogConfig
from trueup.verbs.difflog.record import LogRecord, find_record, written_columns
from trueup.verbs.difflog.state import StateTable
from trueup.verbs.difflog.steps.merge import col
from trueup.verbs.difflog.vacuum import vacuum

KIND = "migrate"
# The largest version that a signed integer of 64 bits can store, with room for later runs.
_LARGEST = 2**62


@dataclass(frozen=True)
class Migration:
    """The result of a migration: the changed settings, the run that changed them, and what it wrote."""

    changes: tuple[str, ...] = ()
    # 0: nothing was written.
    run: int = 0
    # Signed rows, and states of the log.
    rows: int = 0
    states: int = 0
    rewritten: bool = False


def migrate(session: SparkSession, difflog: DiffLogConfig, *, execute: bool) -> Migration:
    """Return what a migration to the settings of this configuration changes, and do it with `execute`.

    Raises CheckFailed if a setting cannot be changed, or if a run is unfinished.
    """
    with lock_work_folder(Path(difflog.work)):
        runs, table = Runs(Path(difflog.work)), StateTable.of(difflog)
        finish_migration(session, difflog, table, runs)
        old = find_record(table, runs)
        schema = table.schema()
        if old is None or schema is None:
            return Migration()
        _check_finished(runs.unfinished())
        check_target(difflog, old, runs)
        new = Basis.of(difflog, old.basis)
        found = changes(old.basis, new, written_columns(schema))
        if not found:
            return Migration()
        plan = MigrationPlan(old.basis, new, schema)
        states = table.read(session, table.files(), schema)
        _check(difflog, plan, found, states, runs)
        counts = plan.counts(states)
        texts = tuple(f"{change.setting}: {change.old} -> {change.new}" for change in found)
        result = Migration(texts, rows=counts[1], states=counts[0], rewritten=plan.rewrites)
        if not execute:
            return result
        record = LogRecord(old.id, old.number + 1, new)
        record.write(table, runs)
        run = runs.new(table.last_run() + 1, _facts(texts, table, record))
        run.begin()
        _write(difflog, plan, states, table, run, counts[1])
        _finish(session, difflog, run, record.id)
        vacuum(table)
        return Migration(texts, run.number, counts[1], counts[0], plan.rewrites)


def finish_migration(session: SparkSession, difflog: DiffLogConfig, table: StateTable, runs: Runs) -> None:
    """Finish a migration that was killed after its commit, and remove one that was killed before."""
    run = runs.unfinished()
    if run is None or run.facts.get("kind") != KIND:
        return
    if not outputs.is_committed(table, run):
        table.discard_files(run.number)
        run.give_up()
        return
    _finish(session, difflog, run, run.facts["log"])


def _check_finished(run: Run | None) -> None:
    if run is not None:
        raise CheckFailed(
            [f"run {run.number} is unfinished"],
            cure="write the old values into difflog.toml and finish it with `trueup difflog run`; then change them",
        )


def _facts(texts: tuple[str, ...], table: StateTable, record: LogRecord) -> dict[str, object]:
    """Return what a migration starts from."""
    return {
        "kind": KIND,
        "changes": list(texts),
        "chunks": [],
        "late_from": [],
        "state_version": table.version(),
        "today": now()[:10],
        "started": now(),
        **record.facts(),
    }


def _check(difflog: DiffLogConfig, plan: MigrationPlan, found: list[Change], states: DataFrame, runs: Runs) -> None:
    """Raise CheckFailed for changes that are impossible, or would lose rows."""
    for change in found:
        if change.cure:
            raise CheckFailed([str(change)], cure=change.cure)
    reasons = [*_waiting_late_rows(plan, runs), *_wrong_age(difflog, plan)]
    if plan.old.multiplier != plan.new.multiplier:
        reasons += _wrong_multiplier(difflog, plan, states)
    if reasons:
        raise CheckFailed(reasons, cure="nothing was written; write another value into difflog.toml")


def _waiting_late_rows(plan: MigrationPlan, runs: Runs) -> list[str]:
    """Return the side logs to remove whose late rows were not joined yet."""
    late = {run.number: run for run in runs.all()}
    return [
        f"late rows of {log} in {late[number].path('late')} are not joined: run with --late rejoin first"
        for number in runs.late_runs()
        for log in plan.old.logs
        if log not in plan.new.logs and log in late[number].late_sources()
    ]


def _wrong_age(difflog: DiffLogConfig, plan: MigrationPlan) -> list[str]:
    column = plan.new.ttl_column
    if not column or column in written_columns(plan.schema):
        return []
    return [
        f"the state has no column {column} (state.ttl_column): add it to entity.kept, and run with new visits first"
    ]


def _wrong_multiplier(difflog: DiffLogConfig, plan: MigrationPlan, states: DataFrame) -> list[str]:
    """Return why versions with the new multiplier would not be unique, or would not fit."""
    fast, multiplier = plan.new.fast_version, plan.new.multiplier
    row = states.agg(f.max(col(fast)).alias("fast"), f.max(SLOW).alias("slow")).collect()[0]
    highest = [(row["fast"] or 0, "the state")]
    if difflog.target.table:
        with open_target(difflog.target) as house:
            if house.columns():
                sql = f"SELECT max({identifier(fast)}) FROM {house.name} WHERE {SLOW} = 0"
                highest.append((int(house.rows(sql)[0][0] or 0), f"the table {house.database}.{house.table}"))
    reasons = [
        f"multiplier {multiplier} is not larger than {fast} {version} in {place}"
        for version, place in highest
        if version >= multiplier
    ]
    if max(plan.old.multiplier, multiplier) * ((row["slow"] or 0) + 1) > _LARGEST:
        reasons.append(f"multiplier {multiplier}: versions would be larger than 64 bits")
    return reasons


def _write(
    difflog: DiffLogConfig, plan: MigrationPlan, states: DataFrame, table: StateTable, run: Run, rows: int
) -> None:
    """Write the signed rows, and commit the state with its new settings."""
    if rows:
        outputs.write_wide_log(run, plan.rows(states))
    added: list[Path] = []
    schema = plan.schema
    if plan.rewrites:
        new = plan.states(states)
        if difflog.state.ttl_days:
            new = new.withColumn(EXPIRES, outputs.expires(difflog, new))
        added, schema = table.write_files(new, run.number), new.schema
    record = run.facts["record"]
    table.commit(run.number, schema, added, [], record=record, replace_all=plan.rewrites)
    run.done("state", rewritten=plan.rewrites)


def _finish(session: SparkSession, difflog: DiffLogConfig, run: Run, log: str) -> None:
    """Insert the rows of a migration after its commit."""
    if difflog.target.table and run.has("visit_log_wide") and not run.has("clickhouse"):
        outputs.insert_log(session, difflog, run, log)
    run.note(finished=now())
