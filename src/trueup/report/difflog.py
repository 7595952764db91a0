"""The text of the results of a version log: a run, a proof, a migration, and a prune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trueup.config.visible import as_lines
from trueup.config.wording import counted

MEANING = {
    "MATCH": "every key collapses to one row, the one in the state table",
    "DIFFER": "some keys do not collapse to the row in the state table, or the state was altered",
    "INCOMPLETE": "not everything was checked; nothing is proven",
}
_PROBLEMS = {
    "standing_twice": "keys that collapse to more than one row",
    "standing_none": "keys that collapse to nothing",
    "standing_deleted": "deleted keys that have a row",
    "unknown_to_state": "keys that are not in the state table",
    "differing_version": "keys with another version than in the state table",
    "differing_state": "keys with other values than in the state table",
    "differing_rows": "keys that have rows of one version with different values",
    "differing_computed": "keys with another state than their rows in the chunk sets imply",
}
# The problem of one key.
PROBLEM_TEXTS = {
    "twice": "more than one row is left, or signs that do not cancel",
    "none": "no row is left",
    "deleted": "the key is deleted in the state, but a row is left",
    "unknown": "a row of the slow supplier is left, but the key is not in the state",
    "version": "the row has another version than the state",
    "state": "the row has other values than the state",
    "rows": "rows of one version have different values, or a Version that is not M * SlowVersion + F",
    "computed": "the state is not the one that the rows of the key in the chunk sets imply",
}


def join_summary(result: Mapping[str, Any]) -> str:
    """Return the result of a join as text."""
    lines = [f"chunk set {result['chunks']} is ready"]
    for source in dict.fromkeys((*result["rows"], *result["pending"], *result["refused"])):
        pending, refused = result["pending"].get(source, 0), result["refused"].get(source, 0)
        more = (f", {pending:,} pending: their visit is unknown" if pending else "") + (
            f", {refused:,} refused: no key or version" if refused else ""
        )
        lines.append(f"  {source:<28} {result['rows'].get(source, 0):>12,} rows{more}")
    return as_lines([*lines, "  next: trueup difflog run"])


def run_summary(result: Mapping[str, Any]) -> str:
    """Return the result of a run as text."""
    if not result["number"]:
        return "nothing to do: no chunk set is waiting"
    head = "finished" if result["resumed"] else "done"
    lines = [f"run {result['number']} {head}: chunk sets {', '.join(result['chunks'])} in {result['seconds']:.1f} s"]
    for name, rows in result["rows"].items():
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in result["late_reasons"].get(name, {}).items())
        late = f", {result['late'][name]:,} late ({reasons})" if name in result["late"] else ""
        lines.append(f"  {name:<28} {rows:>12,} signed rows{late}")
    lines.append(f"  state: {result['files_read']:,} of {counted(result['files_in_state'], 'file')} read")
    if result["inserted"]:
        lines.append(f"  ClickHouse: {counted(result['inserted'], 'file')} inserted")
    lines.append(f"  outputs: {result['folder']}")
    if result["late"]:
        count = result["rejoinable"]
        advice = f"; to join {count:,} of them: trueup difflog run --late rejoin" if count else ""
        lines.append(f"  late rows are in {result['folder']}/late{advice}")
    lines.append("  next: trueup difflog prove")
    return as_lines(lines)


def migration_summary(result: Mapping[str, Any]) -> str:
    """Return the result of a migration as text."""
    if not result["changes"]:
        return "nothing to do: the log was written with these settings"
    done = bool(result["run"])
    lines = [f"run {result['run']} changed the log:" if done else "dry run, nothing was changed; settings to change:"]
    lines += [f"  {change}" for change in result["changes"]]
    lines.append(f"  {counted(result['rows'], 'signed row')}, to replace rows of the log")
    if result["rewritten"]:
        lines.append(f"  the state table with {counted(result['states'], 'state')} is written again")
    lines.append("  next: trueup difflog prove" if done else "  to change the log: trueup difflog migrate --execute")
    return as_lines(lines)


def prune_summary(result: Mapping[str, Any]) -> str:
    """Return the result of a prune as text."""
    done = result["executed"]
    lines = ["removed:" if done else "dry run, nothing was removed; can be removed:"]
    for title, values in (("outputs of runs", result["runs"]), ("rows of chunk sets", result["chunks"])):
        if values:
            lines.append(f"  {title} {_listed(values)}")
    lines.append(f"  {_megabytes(result['bytes'])} in runs and chunk sets")
    lines.append(f"  {_megabytes(result['state_bytes'])} of unused files of the state")
    if result["late"]:
        lines.append(f"  kept: late rows of runs {_listed(result['late'])}, which `run --late rejoin` can join")
    if not done:
        lines.append("  to remove it, add --execute")
    return as_lines(lines)


def _listed(values: Sequence[Any]) -> str:
    """Return values as text: all of them, or the first and the last."""
    texts = [str(value) for value in values]
    return ", ".join(texts) if len(texts) <= 5 else f"{texts[0]} to {texts[-1]} ({len(texts)})"


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"


def status_summary(status: Mapping[str, Any]) -> str:
    """Return the status of a log as text."""
    last = f"{status['last_run']}, finished {status['finished']}" if status["last_run"] else "none yet"
    lines = [f"last run: {last}"]
    if status["unfinished"]:
        lines.append(f"interrupted: run {status['unfinished']}; to continue it: trueup difflog run")
    lines.append(f"waiting chunk sets: {', '.join(status['waiting']) or 'none'}")
    for name, rows in status["late"].items():
        lines.append(f"late: {counted(rows, 'row')} of {name}; to join them: trueup difflog run --late rejoin")
    least = f"{status['states'] - status['changed']:,} to " if status["changed"] else ""
    lines.append(f"state: {least}{counted(status['states'], 'key')} in {counted(status['files'], 'file')}")
    return as_lines(lines)


def proof_summary(proof: Mapping[str, Any], file: Path | None = None) -> str:
    """Return the result of a proof as text; `file` is the file with all keys that have a problem."""
    empty = " of 0 keys" if proof["verdict"] == "MATCH" and not proof["keys"] else ""
    lines = [f"{proof['verdict']}{empty}: {MEANING[proof['verdict']]}", f"  {counted(proof['keys'], 'key')}"]
    lines += [f"  {text}: {proof[name]:,}" for name, text in _PROBLEMS.items() if proof[name]]
    if proof["waiting"]:
        lines.append(
            f"  {proof['waiting']:,} of them are resolved by the next run: the fast supplier wrote a newer version"
        )
    lines += [f"  {_example(example)}" for example in proof["examples"]]
    total = sum(proof[name] for name in _PROBLEMS)
    if total > len(proof["examples"]):
        lines.append(f"  {len(proof['examples']):,} of {total:,} keys are shown; for all: --limit {total} or --to FILE")
    lines += [f"  the state file {path} is not as a run has written it" for path in proof["altered_files"]]
    if proof["computed"]:
        lines.append(f"  the states of {counted(proof['computed'], 'key')} were computed again from the chunk sets")
    if proof["expired"]:
        lines.append(
            f"  not checked: the values of {counted(proof['expired'], 'key')} without a state, because states expire"
        )
    lines += [f"  not checked: {reason}" for reason in (*proof["incomplete"], *proof["unchecked"])]
    if file is not None:
        lines.append(f"  all keys with a problem: {file}")
    return as_lines(lines)


def _example(example: Mapping[str, Any]) -> str:
    """Return a key with a problem: what is wrong, the columns that differ, or the versions that are left."""
    key = ", ".join(f"{name} = {value}" for name, value in example["key"].items())
    if example["columns"]:
        found = f"columns {', '.join(example['columns'])}"
    else:
        found = ", ".join(f"{version} (sum of signs {net:+})" for version, net in example["standing"])
        found = f"versions left: {found or 'none'}"
    later = "; the next run resolves it" if example["waiting"] else ""
    return f"{key}: {PROBLEM_TEXTS[example['problem']]} ({found}){later}"
