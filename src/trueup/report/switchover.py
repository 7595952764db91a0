"""The page of a switchover, a rollback or a rehearsal, for people who decide about a change: from its plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.report.page import Page, Table, Tone
from trueup.report.text import moment

# Phase, what happens, who waits.
_PHASES = (
    (
        "prepare",
        "pointers and guards, the change log of the way back, rounds until few changes are left",
        "writers of a table for a moment, while its guard is created",
    ),
    ("fence", "transactions that have written end normally, new writers begin to wait", "writers"),
    ("final round", "the last changed rows are copied", "writers"),
    ("sequences", "the values of all sequences are set, and triggers are enabled as on {from}", "writers"),
    ("gate", "all conditions are checked", "writers"),
    ("pointer", "one commit on {from} decides: {to} is in use", "writers"),
    ("open", "{to} accepts writes", "writers"),
)
_RELEASE = ("release", "the rehearsal ends without a decision: writers continue on {from}", "writers")
_DECISION = ("pointer", "open")


def page_of_switchover(summary: Mapping[str, Any]) -> Page:
    """Return the page of what `Outcome.as_json` has."""
    verdict, tone, meaning = _verdict(summary)
    is_rehearsal = summary["action"] == "rehearse"
    has_pause = bool(summary["pause_ms"])
    problem = [text for text in (summary["problem"], summary["cure"] and f"What to do: {summary['cure']}") if text]
    tables = [
        _phases(summary),
        Table("Conditions of the gate", ["condition", "holds", "what was checked, or is wrong"], _conditions(summary)),
        Table("Who waits", ["who", "how long"], _waiting(summary)),
        _texts("What is not copied", summary["not_copied"]),
        Table("How to go back", ["when", "command"], _way_back(summary)),
        _texts("What was not checked", summary["unchecked"]),
    ]
    return Page(
        title=f"{'Rollback' if summary['rollback'] else 'Switchover'} {summary['from']} → {summary['to']}",
        verdict=verdict,
        tone=tone,
        meaning=meaning,
        facts={
            "sync": summary["sync"],
            "pause": f"{summary['pause_ms']:,.0f} ms of at most {summary['budget_ms']:,} ms" if has_pause else "none",
            "tables": f"{summary['tables']:,}" if summary["tables"] else "",
            "rows, estimated": f"{summary['rows']:,}" if summary["rows"] else "",
            "proof": summary["proof"],
            "last round": f"{summary['final_keys']:,} keys, after {summary['rounds']:,} rounds" if has_pause else "",
            "address for applications": summary["address"],
            "decision": "not made: a rehearsal" if is_rehearsal else "",
            "started (UTC)": moment(summary["started_at"]),
        },
        trouble=problem,
        trouble_title="It failed",
        remarks=summary["remarks"],
        tables=[table for table in tables if table.rows],
        task_id=summary["task_id"],
    )


def _verdict(summary: Mapping[str, Any]) -> tuple[str, Tone, str]:
    """Return the verdict, its colour, and what it means."""
    old, new = summary["from"], summary["to"]
    is_rehearsal = summary["action"] == "rehearse"
    if summary["problem"] and summary["is_decided"] is None:
        return "UNKNOWN", "trouble", "the answer to the commit of the decision was lost: see trueup switchover status"
    if summary["problem"] and summary["is_decided"]:
        return "DECIDED, NOT COMPLETE", "trouble", f"{new} is in use by decision; the same command completes it"
    if summary["problem"]:
        verdict = "NOT READY" if is_rehearsal else "NOT MOVED"
        return (
            verdict,
            "trouble",
            "nothing was switched, all is released: the same database is in use as before",
        )
    if is_rehearsal:
        return "READY", "good", f"every condition held in a real pause; nothing was switched, and {old} is in use"
    verdict = "MOVED BACK" if summary["rollback"] else "MOVED"
    if not summary["conditions"]:
        # Completed after a kill: the conditions were checked by the call that decided.
        return verdict, "plain", f"an earlier call made the decision; {new} is in use"
    return verdict, "good", f"both databases were equal when {new} came into use"


def _phases(summary: Mapping[str, Any]) -> Table:
    """Return what happens in which order, and the measured times."""
    is_rehearsal = summary["action"] == "rehearse"
    title = "What will happen" if is_rehearsal else "What happened"
    measured: Mapping[str, float] = summary["phases_ms"]
    rows = []
    for name, what, who in (*_PHASES, *((_RELEASE,) if is_rehearsal else ())):
        if is_rehearsal and name in _DECISION:
            time = "not rehearsed"
        else:
            time = f"{measured[name]:,.1f} ms" if name in measured else "not reached"
        rows.append([name, what.format_map(summary), who, time])
    return Table(title, ["phase", "what", "who waits", "measured"], rows, frozenset({3}))


def _conditions(summary: Mapping[str, Any]) -> list[list[str]]:
    return [[item["name"], "yes" if item["holds"] else "NO", item["detail"]] for item in summary["conditions"]]


def _waiting(summary: Mapping[str, Any]) -> list[list[str]]:
    measured = f"measured {summary['pause_ms']:,.0f} ms; " if summary["pause_ms"] else ""
    return [
        ["readers", "not at all; with trueup.connect, a role that may write waits like a writer"],
        ["transactions that have written when the pause begins", "not at all: the pause waits for them"],
        ["other writers", f"until the end of the pause: {measured}at most {summary['budget_ms']:,} ms"],
        *(["seen at the end of the pause", text] for text in summary["waited"]),
    ]


def _way_back(summary: Mapping[str, Any]) -> list[list[str]]:
    """Return when to run which command."""
    first, second = summary["from"], summary["to"]
    if summary["rollback"]:
        first, second = second, first
    ends = f"--from {first} --to {second} --name {summary['sync']}"
    if summary["problem"] and summary["is_decided"] is None:
        return [["first, to see which database is in use", f"trueup switchover status {ends}"]]
    if summary["problem"] and not summary["is_decided"]:
        return [["now", "nothing to do: nothing was switched"]]
    if summary["rollback"]:
        return [["after the rollback, to move again", f"trueup switchover execute {ends}"]]
    return [
        ["before the decision", f"trueup switchover abort {ends}"],
        ["after it, with all later writes", f"trueup switchover rollback {ends}"],
        ["when there is no need to go back any more", f"trueup switchover finish {ends}"],
    ]


def _texts(title: str, texts: list[str]) -> Table:
    return Table(title, [], [[text] for text in texts])
