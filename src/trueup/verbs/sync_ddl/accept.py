"""Continue a sync after one of its databases went back, or after tables of the target were replaced.

The rows of such a table are unknown: a restore from a dump has rows of some earlier time, and a table that was created
again may have any. So they are never accepted silently: the caller names the tables that were compared and repaired.
Their changes from before and during that are in the change log.
"""

from __future__ import annotations

from collections.abc import Sequence

from trueup.db.connection import Connection
from trueup.errors import CheckFailed
from trueup.verbs.sync import changelog, check, members, state
from trueup.verbs.sync.identity import history
from trueup.verbs.sync.identity.naming import identified
from trueup.verbs.sync.link import open_ends, refuse_moved
from trueup.verbs.sync.model import SyncTable
from trueup.verbs.sync.plan import matching_tables
from trueup.verbs.sync.request import SyncRequest


def accept(request: SyncRequest, names: Sequence[str] = ()) -> str:
    """Continue a sync although a database went back; return what was accepted, or "" if there was nothing.

    `names` are tables that were replaced on the target by others with their names, or patterns. Raise CheckFailed and
    change nothing if tables were replaced and none is named, or if a named one cannot be accepted.
    """
    request = identified(request)
    with (
        open_ends(request.source, request.target, request.name) as (source, target),
        changelog.sync_lock(source, request.source, request.name),
    ):
        stored = state.expect(target, request.name, state.identity(source), request.target.name)
        refuse_moved(source, target, stored.id, request.node_names)
        problem = history.problem(source, stored, request.node_names)
        if problem and not history.can_accept(source, stored):
            history.refuse(source, stored, request.node_names)
        replaced = _replaced(request, source, target, stored) if stored.phase == "running" else []
        tables = _chosen(request, source, replaced, names)
        if not problem and not tables:
            return ""
        epoch = state.take_over(target, request.name)
        reader = history.reader(request.name)
        mark = reader.begin(source, after=stored.round) if problem else None
        with state.writing(target, request.name, epoch):
            members.record(source, target, request.name, tables)
            if mark is not None:
                # The position is of a history that does not exist any more.
                target.execute(state.statement("clear_position"), {"sync": request.name})
                state.set_mark(target, request.name, mark)
        if mark is not None:
            reader.done(source, mark)
        shown = f"the rows of {', '.join(map(str, tables))} on {request.target.name}" if tables else ""
        return "; ".join(filter(None, (problem, shown)))


def _replaced(request: SyncRequest, source: Connection, target: Connection, stored: state.State) -> list[SyncTable]:
    """Return the tables of the sync whose names belong to other tables of the target, with the same definition."""
    known = members.read(target, stored.sync)
    plan = check.plan_present(source, target, stored, request.node_names, is_brief=True)
    return [table for table in plan.tables if table.oid in known and known[table.oid].target_oid != table.target_oid]


def _chosen(
    request: SyncRequest, source: Connection, replaced: Sequence[SyncTable], names: Sequence[str]
) -> list[SyncTable]:
    if names:
        chosen = {text: matching_tables(source, [text]) for text in names}
        tables = [table for table in replaced if any(str(table) in each for each in chosen.values())]
        wrong = [text for text, each in chosen.items() if not set(each) & set(map(str, replaced))]
        if wrong:
            raise CheckFailed(
                [f"{text}: no such table was replaced, or it has another definition" for text in wrong],
                cure="see what is set aside: trueup sync status",
                node=request.target.name,
            )
        return tables
    if replaced:
        listed = ", ".join(map(str, replaced))
        raise CheckFailed(
            [
                f"{listed}: replaced by other tables of the same names (restored from a dump, or dropped and created"
                " again), so their rows are unknown"
            ],
            cure=f"compare and repair these tables (trueup diff, then trueup repair with --source-of-truth"
            f" {request.source.name}), then name them: trueup sync accept TABLE...; or empty them on"
            f" {request.target.name}, and copy them again: trueup sync add TABLE...",
            node=request.target.name,
        )
    return []
