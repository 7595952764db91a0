"""Check the rights on all nodes, complete the undo file, then write all nodes at the same time."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Event

from trueup.capture.triggers.sync_turns import SyncTurn
from trueup.db.commit import CommitUnknown
from trueup.db.connection import Connection
from trueup.db.snapshot import Control
from trueup.engine.progress import Silent
from trueup.errors import QueryError, TrueupError
from trueup.report.repair import written_counts
from trueup.rows.write.copy_text import key_id
from trueup.task.open import OpenTask
from trueup.task.together import together
from trueup.verbs.repair.check_writes import Checked, check_writes
from trueup.verbs.repair.decisions import Rows
from trueup.verbs.repair.modes import ACTS
from trueup.verbs.repair.node_work import NodeWork
from trueup.verbs.repair.request import Writing
from trueup.verbs.repair.result import Ending, text_of
from trueup.verbs.repair.undo_file import UndoFile
from trueup.verbs.repair.write_node import NOTHING_HERE, Written, write_node
from trueup.verbs.repair.writes import Left

_BLOCKED = "a row that was left has a unique value that this row would get"
# A deadlock, and a row that another session moved to another partition: rolled back, and worth another attempt.
_AGAIN = ("40P01", "40001")
_ATTEMPTS = 5

_log = logging.getLogger(__name__)

# The cure for a failure before the first write.
NOTHING_WRITTEN = "nothing was written on any node; run the command again"


def write_nodes(
    endings: Sequence[Ending],
    controls: Sequence[Control],
    rows: Rows | None,
    *,
    writing: Writing,
    changed: str,
    application: str,
    task: OpenTask,
    interrupted: str,
    turns: Mapping[str, SyncTurn] | None = None,
) -> None:
    """Write all tables of each node in a transaction of its own.

    A dry run, without `rows`, only checks the rights and the subscriptions.

    A node that fails does not stop the others. `changed` is the reason listed for rows that changed between reading
    and writing, `interrupted` what to do if the task ends early from here on, `turns` the syncs that nodes are written
    as. Raises CheckFailed, before anything is
    written, if a right is missing or a subscription would stop.
    """
    checked = check_writes(endings, controls, writing)
    undo = rows.complete_undo_file() if rows else None
    if rows is None or undo is None:
        return
    writers = []
    for control in controls:
        works = [
            _work(endings[number], control, rows, checked, writing, application, turns or {})
            for number in checked.order[control.node.name]
        ]
        if works:
            writers.append(_Writer(works, undo, task))
    task.progress.stage("writing", sum(work.spool.counts.total() for writer in writers for work in writer.works))
    task.on_failure = task.on_interrupt = interrupted
    try:
        outcomes = together(writers, lambda writer: writer.write())
    except KeyboardInterrupt:
        if not task.written and all(writer.is_over for writer in writers):
            task.on_interrupt = NOTHING_WRITTEN
        raise
    for writer, outcome in zip(writers, outcomes, strict=True):
        for place, work in enumerate(writer.works):
            ending = endings[work.number]
            if isinstance(outcome, TrueupError):
                ending.failed[writer.node] = _failure(outcome)
            else:
                written = outcome[place]
                ending.written[writer.node] = {act: written.counts[act] for act in ACTS}
                ending.decisions.left += [Left(key, (writer.node,), changed) for key in written.changed]
                ending.decisions.left += [Left(key, (writer.node,), _BLOCKED) for key in written.blocked]


def _failure(error: TrueupError) -> str:
    """Return the error of a node that could not be written, and whether its rows are as before."""
    if isinstance(error, CommitUnknown) or NOTHING_HERE in error.message:
        return text_of(error)
    return text_of(error, f"; {NOTHING_HERE}")


def _work(
    ending: Ending,
    control: Control,
    rows: Rows,
    checked: Checked,
    writing: Writing,
    application: str,
    turns: Mapping[str, SyncTurn],
) -> NodeWork:
    number, node = ending.decisions.number, control.node
    rights = checked.rights[number, node.name]
    return NodeWork(
        number,
        node,
        ending.decisions.layouts[node.name],
        rows.spool(number, node.name),
        rights.silent,
        application,
        rights.watched,
        rights.schemas,
        under_origin=node.name in checked.under_origin,
        lock_timeout=writing.lock_timeout,
        left={key_id(each.key) for each in ending.decisions.left if node.name in each.nodes},
        watcher=control.connection,
        turn=turns.get(node.name),
    )


class _Writer:
    """Writes one node; `together` calls `cancel` on Ctrl-C, which rolls the transaction back."""

    def __init__(self, works: Sequence[NodeWork], undo: UndoFile, task: OpenTask) -> None:
        self.works, self._undo, self._task = works, undo, task
        self._opened: list[Connection] = []
        self._cancelled = Event()
        self.node = works[0].node.name
        self.is_over = False

    def write(self) -> list[Written] | TrueupError:
        try:
            return self._recorded()
        finally:
            self.is_over = True

    def _recorded(self) -> list[Written] | TrueupError:
        try:
            written = self._write()
        except CommitUnknown as error:
            self._task.written.append(f"{error} (undo file: {self._undo.path})")
            return error
        except TrueupError as error:
            return error
        # At once: Ctrl-C or an error of a later step must not hide that this node was written.
        counts = written_counts({act: sum(table.counts[act] for table in written) for act in ACTS})
        self._task.written.append(f"node {self.node} was written ({counts}; undo file: {self._undo.path})")
        return written

    def _write(self) -> list[Written]:
        """Write the node; once more if the server ended the transaction because of what other sessions wrote."""
        progress = self._task.progress
        for _ in range(_ATTEMPTS - 1):
            try:
                return write_node(self.works, self._undo, progress, self._opened, self._cancelled.is_set)
            except QueryError as error:
                if error.sqlstate not in _AGAIN or self._cancelled.is_set():
                    raise
                _log.warning("%s; %s; trying again", error, NOTHING_HERE, extra={"node": self.node})
            # The rows were counted.
            progress = Silent()
        return write_node(self.works, self._undo, progress, self._opened, self._cancelled.is_set)

    def cancel(self) -> None:
        # Asked before the commit: a session may have no statement now that could be cancelled.
        self._cancelled.set()
        for connection in self._opened:
            with suppress(Exception):
                connection.cancel_safe(timeout=5)
