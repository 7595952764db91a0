"""Which differences of a run are accepted: they are counted and listed apart, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trueup.config.wording import counted
from trueup.rows.align import Pair, differing_pairs
from trueup.rows.spec import TableSpec
from trueup.store import TaskStore
from trueup.store.accepted import Acceptance
from trueup.task.accepted import fingerprint_of, why_not
from trueup.task.compare.state import State


@dataclass
class Accepted:
    """The accepted differences of a run: per pair, the number of the difference in the spool and its acceptance."""

    of: dict[Pair, dict[int, Acceptance]] = field(default_factory=dict)
    # Rows per acceptance.
    rows: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)

    def ids(self, pair: Pair) -> dict[int, str]:
        """Return the ids of the acceptances of a pair, by the number of the difference."""
        return {number: acceptance.id for number, acceptance in self.of.get(pair, {}).items()}

    def as_json(self) -> list[dict[str, Any]]:
        """Return the acceptances with the number of differences, as in a report."""
        known = {acceptance.id: acceptance for by_number in self.of.values() for acceptance in by_number.values()}
        return [
            {
                "id": acceptance.id,
                "reason": acceptance.reason,
                "accepted_by": acceptance.accepted_by,
                "accepted_at": acceptance.accepted_at,
                "until": acceptance.until,
                "differences": self.rows[acceptance.id],
            }
            for acceptance in known.values()
        ]


def find_accepted(
    state: State, spec: TableSpec, scope: Mapping[str, Any], store: TaskStore, *, table: str, now: str
) -> Accepted:
    """Find the suspects that are accepted at a time, and count the suspects of the state again without them."""
    accepted = Accepted()
    acceptances = [each for each in store.acceptances(table) if each.state(now) != "revoked"]
    if not acceptances or not state.suspects.count:
        return accepted
    expired: Counter[str] = Counter()
    known = _fingerprints(state, scope, store, acceptances, now, accepted)
    if not known:
        return accepted
    state.kinds.clear()
    state.alone.clear()
    for number, difference in enumerate(state.suspects):
        pairs: set[Pair] = set()
        for pair in differing_pairs(difference):
            if pair not in known or difference.is_hot(pair):
                continue
            identity = fingerprint_of(spec, difference, pair)
            acceptance = known[pair].get(identity) if identity is not None else None
            if acceptance is None:
                continue
            if acceptance.state(now) == "expired":
                expired[acceptance.id] += 1
                continue
            accepted.of.setdefault(pair, {})[number] = acceptance
            pairs.add(pair)
        accepted.rows.update(_rows(accepted, number, state.count(difference, pairs)))
    accepted.remarks += [
        f"{counted(expired[each.id], 'difference')} accepted until {each.until}: acceptance {each.short_id} has"
        f" expired ({each.reason})"
        for each in acceptances
        if expired[each.id]
    ]
    return accepted


def _rows(accepted: Accepted, number: int, rows: Mapping[Pair, int]) -> dict[str, int]:
    """Return the accepted rows of one difference per acceptance."""
    counts: Counter[str] = Counter()
    for pair, count in rows.items():
        counts[accepted.of[pair][number].id] += count
    return counts


def _fingerprints(
    state: State,
    scope: Mapping[str, Any],
    store: TaskStore,
    acceptances: Iterable[Acceptance],
    now: str,
    accepted: Accepted,
) -> dict[Pair, dict[bytes, Acceptance]]:
    """Return the acceptance of each fingerprint per pair; add a remark on acceptances that do not apply to this run."""
    known: dict[Pair, dict[bytes, Acceptance]] = {}
    nodes = set(state.nodes)
    for acceptance in acceptances:
        if len(nodes & set(acceptance.scope["tables"])) < 2:
            continue
        by_pair = {pair: why_not(acceptance.scope, scope, pair) for pair in state.pairs if nodes >= set(pair)}
        applies = [pair for pair, reason in by_pair.items() if not reason]
        if not applies and acceptance.state(now) == "active":
            reason = next(iter(by_pair.values()))
            accepted.remarks.append(f"acceptance {acceptance.short_id} ({acceptance.reason}) does not apply: {reason}")
        if not applies:
            continue
        prints = [each.fingerprint for each in store.accepted_differences(acceptance)]
        for pair in applies:
            by_print = known.setdefault(pair, {})
            for each in prints:
                # Of several, one that is in effect.
                if each not in by_print or by_print[each].state(now) != "active":
                    by_print[each] = acceptance
    return known


def check_remark(state: State, store: TaskStore, table: str, now: str) -> list[str]:
    """Return the remark of a check that differs: it reads no rows, and cannot tell accepted differences from others."""
    count = sum(each.differences for each in store.acceptances(table) if each.state(now) == "active")
    if not count or not state.mismatched_blocks:
        return []
    return [
        f"{counted(count, 'difference')} of this table are accepted; a check reads no rows and cannot tell them from"
        " others: run trueup diff"
    ]
