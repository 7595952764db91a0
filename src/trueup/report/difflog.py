"""A run of a version log and its proof, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MEANING = {
    "MATCH": "every key collapses to one row, and it is the one of the state table",
    "DIFFER": "some keys are not as they should be",
    "INCOMPLETE": "not everything was looked at; nothing is proven",
}
_PROBLEMS = {
    "standing_twice": "collapse to more than one row",
    "standing_none": "collapse to nothing",
    "standing_deleted": "stand although they are deleted",
    "unknown_to_state": "are unknown to the state table",
    "differing_version": "stand with another version than the state",
    "differing_state": "stand with other values than the state",
}


def run_summary(result: Mapping[str, Any]) -> str:
    """What a run did, in a few lines."""
    if not result["number"]:
        return "nothing to do: no chunk set is waiting"
    head = "finished" if result["resumed"] else "done"
    lines = [f"run {result['number']} {head}: chunk sets {', '.join(result['chunks'])} in {result['seconds']:.1f} s"]
    for name, rows in result["rows"].items():
        late = result["late"].get(name, 0)
        lines.append(f"  {name:<28} {rows:>12,} signed rows" + (f", {late:,} kept aside" if late else ""))
    lines.append(f"  state: {result['files_read']:,} of {result['files_in_state']:,} files were read")
    if result["inserted"]:
        lines.append(f"  ClickHouse: {result['inserted']:,} files inserted")
    lines.append(f"  outputs: {result['folder']}")
    if result["late"]:
        lines.append(
            f"  rows kept aside are in {result['folder']}/late; to join them: trueup difflog run --late rejoin"
        )
    lines.append("  next: trueup difflog prove")
    return "\n".join(lines)


def proof_summary(proof: Mapping[str, Any]) -> str:
    """What was proven, in a few lines."""
    lines = [f"{proof['verdict']}: {MEANING[proof['verdict']]}", f"  {proof['keys']:,} keys"]
    lines += [f"  {proof[name]:,} keys {text}" for name, text in _PROBLEMS.items() if proof[name]]
    if proof["waiting"]:
        lines.append(
            f"  {proof['waiting']:,} of them only wait for the next run: the fast supplier wrote a newer version"
        )
    lines += [f"  for example {each['key']}: {each['problem']}" for each in proof["examples"][:5]]
    lines += [f"  not looked at: {reason}" for reason in proof["incomplete"]]
    return "\n".join(lines)
