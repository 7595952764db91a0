"""Which alerts are raised by what was seen. An alert has a key that stays the same while its reason lasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trueup.config.secrets import mask
from trueup.config.visible import one_line
from trueup.config.wording import counted, size_text
from trueup.report.history import age_text
from trueup.serve.alert_settings import AlertSettings
from trueup.serve.model import Seen
from trueup.serve.render import seconds_of
from trueup.store.history import ACCEPTED, DIFFER, MATCH, TableState

# The kinds about tables, which a task store shows, and those that need the nodes.
OF_TABLES = ("verdict", "differences", "proof")
OF_NODES = ("validation", "lag", "slot", "letters")
# Events: they are sent once, never again, and are not resolved.
ONCE = ("task",)


@dataclass(frozen=True)
class Alert:
    """One reason: its key begins with its kind. A different `state` under the same key is sent as a change."""

    key: str
    text: str
    state: str = ""


def raised(seen: Seen, settings: AlertSettings) -> dict[str, Alert]:
    """Return all alerts, by key."""
    found = [*_of_tables(seen, settings), *_of_tasks(seen, settings), *_of_nodes(seen, settings)]
    return {alert.key: alert for alert in found}


def known(seen: Seen) -> Callable[[str], bool]:
    """Return whether an alert that is not raised is over, by its key: its table was read, or all nodes were."""
    tables = {f"{kind} {_key(state)}" for state in seen.states for kind in OF_TABLES}
    # A node that does not answer keeps what it had; of one that answers in part, something is not known.
    has_nodes = bool(seen.nodes) and all(part.value and not part.value.problems for part in seen.nodes.values())
    return lambda key: key in tables or (has_nodes and key.partition(" ")[0] in OF_NODES)


def _alert(key: str, text: str, state: str = "") -> Alert:
    return Alert(key, mask(one_line(text)), state)


def _name(state: TableState) -> str:
    return f"{state.run.table_name} on {state.run.cluster_name or state.run.nodes}"


def _key(state: TableState) -> str:
    return f"{state.run.table_name} {state.run.cluster_name} {state.run.nodes}"


def _of_tables(seen: Seen, settings: AlertSettings) -> Iterator[Alert]:
    for state in seen.states:
        run, name = state.run, _name(state)
        key = _key(state)
        # A part of a table that is equal says nothing about the rest; one that differs does.
        if settings.verdict_change and (
            run.verdict == DIFFER or (run.is_whole and run.verdict not in (MATCH, ACCEPTED))
        ):
            yield _alert(f"verdict {key}", f"{name} is {run.verdict}", run.verdict)
        elif settings.verdict_change and state.against:
            yield _alert(f"verdict {key}", f"{name} is {run.verdict}, and {state.against}", state.against)
        most = settings.differences_above
        if most is not None and run.differences is not None and run.differences > most and run.mode != "check":
            yield _alert(f"differences {key}", f"{name} has {run.differences:,} differences (limit {most:,})")
        limit = settings.proof_older_than
        if limit is not None:
            age = time.time() - seconds_of(state.matched_at) if state.matched_at else None
            if age is None or age > limit:
                old = "was never proven" if age is None else f"was proven {age_text(age)} ago"
                yield _alert(f"proof {key}", f"{name} {old} (limit {age_text(limit)})")


def _of_tasks(seen: Seen, settings: AlertSettings) -> Iterator[Alert]:
    if not settings.task_failed:
        return
    for task in (task for summary in seen.summaries() for task in summary.failed):
        error = str(task.task_context.get("error") or "").splitlines()
        what = f"{task.task_type} {f'{task.schema}.{task.table_name}'.strip('.')}".strip()
        yield _alert(
            f"task {task.task_id}", f"task {task.task_id[:8]} ({what}) failed{f': {error[0]}' if error else ''}"
        )


def _of_nodes(seen: Seen, settings: AlertSettings) -> Iterator[Alert]:
    for validation in seen.validations():
        status, name = validation.status, f"{validation.status.name} on {validation.meta}"
        if settings.validation_error and status.open_errors:
            yield _alert(f"validation {name}", f"validation {name} has {counted(status.open_errors, 'error')}")
        limit = settings.lag_above
        if limit is not None and status.lag_seconds is not None and status.lag_seconds > limit:
            text = f"validation {name} is {status.lag_seconds:,.0f} s behind (limit {age_text(limit)})"
            yield _alert(f"lag {name}", text)
    for slot in seen.slots():
        most = settings.slot_retained_above
        if most is not None and slot.retained_bytes is not None and slot.retained_bytes > most:
            text = f"{slot.node} keeps {size_text(slot.retained_bytes)} of log for the slot {slot.slot}"
            yield _alert(f"slot {slot.node} {slot.slot}", f"{text} (limit {size_text(most)})")
    for tube in seen.tubes():
        letters = int(tube.total("dead_letters"))
        if settings.dead_letters and letters:
            name = f"{tube.name} on {tube.node}"
            yield _alert(f"letters {name}", f"tube {name} has {counted(letters, 'dead letter')}")
