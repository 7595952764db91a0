"""Check the rights on all nodes, complete the undo file, then write all nodes at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.snapshot import Control
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed, TrueupError
from trueup.task.together import together
from trueup.verbs.repair.modes import ACTS
from trueup.verbs.repair.replication import check_replication
from trueup.verbs.repair.request import Writing
from trueup.verbs.repair.result import Ending
from trueup.verbs.repair.rights import Rights, rights_on
from trueup.verbs.repair.undo_file import UndoFile
from trueup.verbs.repair.write_node import NodeWork, Written, write_node
from trueup.verbs.repair.writes import Left


def write_nodes(
    ending: Ending,
    nodes: Sequence[Node],
    controls: Sequence[Control],
    *,
    writing: Writing,
    changed: str,
    application: str,
    progress: Progress,
) -> None:
    """Write each node in a transaction of its own; a dry run only checks the rights and the subscriptions.

    A node that fails does not stop the others. `changed` is the reason listed for rows that changed between reading
    and writing. Raises CheckFailed, before anything is written, if a right is missing or a subscription would stop.
    """
    rights, under_origin = _check(ending, controls, writing)
    if not ending.executed:
        return
    decisions = ending.decisions
    undo = decisions.complete_undo_file()
    if undo is None:
        return
    by_name = {node.name: node for node in nodes}
    watchers = {control.node.name: control.connection for control in controls}
    works = [
        NodeWork(
            by_name[name],
            decisions.layouts[name],
            spool,
            rights[name].silent,
            application,
            rights[name].watched,
            under_origin=name in under_origin,
            lock_timeout=writing.lock_timeout,
            watcher=watchers[name],
        )
        for name, spool in decisions.spools.items()
    ]
    progress.stage("writing", sum(work.spool.counts.total() for work in works))
    writers = [_Writer(work, undo, progress) for work in works]
    for writer, outcome in zip(writers, together(writers, lambda writer: writer.write()), strict=True):
        if isinstance(outcome, TrueupError):
            ending.failed[writer.node] = f"{outcome}{f' ({outcome.cure})' if outcome.cure else ''}"
        else:
            ending.written[writer.node] = {act: outcome.counts[act] for act in ACTS}
            decisions.left += [Left(key, (writer.node,), changed) for key in outcome.changed]


def _check(
    ending: Ending, controls: Sequence[Control], writing: Writing
) -> tuple[Mapping[str, Rights], frozenset[str]]:
    """Return the rights per node, and the nodes that are written under a replication origin."""
    decisions = ending.decisions
    rights = {
        control.node.name: rights_on(
            control,
            decisions.layouts[control.node.name],
            decisions.planned[control.node.name],
            fire_triggers=writing.fire_triggers,
        )
        for control in controls
    }
    specs = {name: layout.spec for name, layout in decisions.layouts.items()}
    replication = check_replication(controls, specs, decisions.planned, writing.replicate)
    reasons = [*(reason for node in rights.values() for reason in node.reasons), *replication.reasons]
    ending.remarks += [*(remark for node in rights.values() for remark in node.remarks), *replication.remarks]
    if not ending.executed:
        ending.remarks += [f"--execute would fail: {reason}" for reason in reasons]
    elif reasons:
        raise CheckFailed(reasons, cure="nothing was written on any node; fix the problems listed above and run again")
    return rights, replication.under_origin


class _Writer:
    """Writes one node; `together` calls `cancel` on Ctrl-C, which rolls the transaction back."""

    def __init__(self, work: NodeWork, undo: UndoFile, progress: Progress) -> None:
        self._work, self._undo, self._progress = work, undo, progress
        self._opened: list[Connection] = []
        self.node = work.node.name

    def write(self) -> Written | TrueupError:
        try:
            return write_node(self._work, self._undo, self._progress, self._opened)
        except TrueupError as error:
            return error

    def cancel(self) -> None:
        for connection in self._opened:
            with suppress(Exception):
                connection.cancel_safe(timeout=5)
