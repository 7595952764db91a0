"""Check all tables on all nodes before the first write: rights, subscriptions, the order of the foreign keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueup.db.foreign_keys import TableName
from trueup.db.snapshot import Control
from trueup.errors import CheckFailed
from trueup.verbs.repair.lag import deadline
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.order import keys_among, write_order
from trueup.verbs.repair.replication import check_replication
from trueup.verbs.repair.request import Writing
from trueup.verbs.repair.result import Ending
from trueup.verbs.repair.rights import Rights, rights_on


@dataclass(frozen=True)
class Checked:
    """How the nodes are written."""

    # By number of the table and node.
    rights: Mapping[tuple[int, str], Rights]
    under_origin: frozenset[str]
    # Per node the numbers of the tables that are written, parents first.
    order: Mapping[str, Sequence[int]]


def check_writes(endings: Sequence[Ending], controls: Sequence[Control], writing: Writing) -> Checked:
    """Check everything, and add remarks to the results; `endings` are in the order of their numbers.

    Raises CheckFailed with all reasons if a run that executes cannot write; a dry run has them as remarks.
    """
    rights: dict[tuple[int, str], Rights] = {}
    order: dict[str, Sequence[int]] = {}
    reasons: dict[int, list[str]] = {ending.decisions.number: [] for ending in endings}
    for control in controls:
        node = control.node.name
        own = [ending for ending in endings if node in ending.decisions.layouts]
        rights |= _rights_on_node(own, control, fire_triggers=writing.fire_triggers)
        order[node], stuck = _order([ending for ending in own if _is_written(ending, node)], control)
        if stuck and not rights[order[node][0], node].silent:
            reasons[order[node][0]] += stuck
    under_origin: frozenset[str] = frozenset()
    until = deadline()
    for ending in endings:
        decisions = ending.decisions
        own_rights = [rights[decisions.number, node] for node in decisions.nodes]
        specs = {name: layout.spec for name, layout in decisions.layouts.items()}
        sessions = [control for control in controls if control.node.name in specs]
        replication = check_replication(sessions, specs, decisions.planned, writing.replicate, until=until)
        under_origin |= replication.under_origin
        ending.remarks += [*(remark for each in own_rights for remark in each.remarks), *replication.remarks]
        reasons[decisions.number] += [reason for each in own_rights for reason in each.reasons]
        reasons[decisions.number] += replication.reasons
        if not ending.facts.executed:
            ending.remarks += [f"--execute would fail: {reason}" for reason in reasons[decisions.number]]
    if any(reasons.values()) and endings[0].facts.executed:
        every = [reason for found in reasons.values() for reason in found]
        raise CheckFailed(every, cure="nothing was written on any node; fix the problems listed above and run again")
    return Checked(rights, under_origin, order)


def _is_written(ending: Ending, node: str) -> bool:
    return any(ending.decisions.planned[node].values())


def _order(endings: Sequence[Ending], control: Control) -> tuple[list[int], list[str]]:
    """Return the numbers of the tables, parents first, and reasons why rows cannot be written in this order."""
    node = control.node.name
    numbers = {(ending.spec.schema, ending.spec.table): ending.decisions.number for ending in endings}
    if len(numbers) < 2:
        return list(numbers.values()), []

    def with_act(act: Act) -> set[TableName]:
        return {table for table, ending in zip(numbers, endings, strict=True) if ending.decisions.planned[node][act]}

    keys = keys_among(control.connection, list(numbers))
    order = write_order(list(numbers), keys, with_act("insert"), with_act("delete"))
    return [numbers[table] for table in order.tables], [f"node {node}: {reason}" for reason in order.reasons(keys)]


def _rights_on_node(
    endings: Sequence[Ending], control: Control, *, fire_triggers: bool
) -> dict[tuple[int, str], Rights]:
    """Return the rights on one node. Triggers are silenced for all tables of its transaction, or for none."""
    node = control.node.name

    def ask(ending: Ending, fire_triggers: bool) -> Rights:
        decisions = ending.decisions
        layout, acts, changed = decisions.layouts[node], decisions.planned[node], decisions.changed[node]
        return rights_on(control, layout, acts, changed, fire_triggers=fire_triggers)

    rights = {ending.decisions.number: ask(ending, fire_triggers) for ending in endings}
    writes = [ending for ending in endings if _is_written(ending, node)]
    if not all(rights[ending.decisions.number].silent for ending in writes):
        for ending in writes:
            if rights[ending.decisions.number].silent:
                rights[ending.decisions.number] = ask(ending, True)
    return {(number, node): each for number, each in rights.items()}
