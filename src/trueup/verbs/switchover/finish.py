"""The end of a switchover for good: the database in use keeps nothing of trueup, the other one stays closed to writes.

What keeps it closed are its guards and its pointer: no process of trueup is needed. If one of the two databases does
not exist any more, `without` names it, and the other one keeps its pointer: a server that comes back from a backup, and
accepts writes, is noticed by `status` and closed by `finish`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trueup.config.model import Node
from trueup.config.wording import counted
from trueup.db.connection import Connection, one_value
from trueup.db.names import parse_table_name
from trueup.engine.failures import environment_errors
from trueup.errors import CheckFailed, ConfigError, NodeError, QueryError
from trueup.rows.write import disabled_triggers as triggers
from trueup.verbs.switchover import guard, pointer
from trueup.verbs.switchover.ending import Ended, check_side, clear, exclusive, is_moved, sync_identity
from trueup.verbs.switchover.fence import open_session
from trueup.verbs.switchover.pointer import Pointer
from trueup.verbs.switchover.request import SwitchoverRequest
from trueup.verbs.sync import changelog, state
from trueup.verbs.sync.ending import refuse_if_it_answers

_UNDEFINED_TABLE = "42P01"


@dataclass(frozen=True)
class Finish:
    """How to finish a switchover."""

    # The database that is not in use accepts writes again.
    reopen_old: bool = False
    # The first or the second database does not exist any more.
    without_old: bool = False
    without_new: bool = False
    # Put the remaining database into use although it was not, and lacks changes of the other one.
    accept_loss: bool = False
    # Leave the remaining database closed: applications use neither of the two.
    keep_closed: bool = False

    def __post_init__(self) -> None:
        if self.without_old and self.without_new:
            raise ConfigError("--without-old and --without-new exclude each other", cure="name the node that is lost")
        if self.accept_loss and not (self.without_old or self.without_new):
            raise ConfigError(
                "--accept-loss needs --without-old or --without-new", cure="leave it out: nothing is lost"
            )
        if self.keep_closed and not (self.without_old or self.without_new):
            raise ConfigError("--keep-closed needs --without-old or --without-new", cure="name the node that is lost")
        if self.keep_closed and (self.accept_loss or self.reopen_old):
            raise ConfigError(
                "--keep-closed excludes --accept-loss and --reopen-old",
                cure="choose whether the remaining node accepts writes",
            )


def finish(request: SwitchoverRequest, how: Finish | None = None) -> Ended:
    """Remove the sync and its switchover from both databases; the one in use stays in use. There is no way back then.

    The other one stays closed to writes, with its pointer and guards, unless `reopen_old` is set.
    """
    how = how or Finish()
    if how.without_old or how.without_new:
        lost = request.first if how.without_old else request.second
        return _finish_alone(request.identified(both=False, lost=lost), how)
    try:
        return _finish_both(request.identified(), how)
    except QueryError as error:
        # Another finish has removed the pointers meanwhile.
        if error.sqlstate != _UNDEFINED_TABLE:
            raise
        return _finish_both(request.identified(), how)
    except NodeError as error:
        option = "--without-old" if error.node == request.first.name else "--without-new"
        error.cure += f"; if it is lost for good: trueup switchover finish {option}"
        raise


@environment_errors()
def _finish_both(request: SwitchoverRequest, how: Finish) -> Ended:
    with exclusive(request) as (first, second):
        sides = [(request.first, first), (request.second, second)]
        pointers = [pointer.read(connection, request.sync) for _, connection in sides]
        sync_id = sync_identity(request, first, second)
        done = _close_returned(request, sync_id, sides, pointers)
        if all(stored is not None and not stored.is_in_use for stored in pointers):
            raise CheckFailed(
                [f"{request.first.name} and {request.second.name} are both closed for writes"],
                cure="complete the decided switchover first: trueup switchover execute, or rollback",
            )
        if not sync_id:
            text = f"there is no sync {request.sync} from {request.first.name} to {request.second.name}"
            return Ended(request.sync, "", (f"{text}, and no switchover of it: nothing was to be done",))
        _refuse_unfinished(request, second)
        in_use, other = reversed(sides) if is_moved(request, first, second) else sides
        was_closed = pointer.read(other[1], request.sync)
        if not how.reopen_old and was_closed is not None:
            _guard_all(request, other[1], (first, second))
            # First: from here on there is no way back, whatever is removed already.
            pointer.finish(other[1], request.sync)
        done += clear(request, sync_id, in_use[1], in_use[0])
        is_kept = was_closed is not None and not how.reopen_old
        done += clear(request, sync_id, other[1], other[0], guards=not is_kept, pointers=not is_kept)
        if is_kept:
            done += [] if done else [f"the switchover of the sync {request.sync} is finished already"]
            done.append(_closed_text(request, *other))
        return Ended(request.sync, in_use[0].name, tuple(done))


def _refuse_unfinished(request: SwitchoverRequest, second: Connection) -> None:
    """Raise if the copy is not finished: without its state, nothing knows which tables a start has created."""
    known = state.read(second, request.sync)
    if known is not None:
        state.check_finished(known, request.second.name)


def _guard_all(request: SwitchoverRequest, connection: Connection, ends: tuple[Connection, Connection]) -> None:
    """Create guards that are missing, for example on partitions that were created since."""
    known = [stored for end in ends if (stored := state.read(end, request.sync)) is not None]
    if known:
        names = [(schema.text, table.text) for schema, table in map(parse_table_name, known[0].tables)]
        guard.install(connection, names, request.sync, timeout=request.timeout)
        guard.close(connection, request.sync, timeout=request.timeout)


def _closed_text(request: SwitchoverRequest, node: Node, connection: Connection) -> str:
    guards = guard.count(connection, request.sync)
    return (
        f"{node.name}: stays closed to writes: {counted(guards, 'guard')}, and the pointer with its functions in the"
        f" schemas trueup and trueup_app; to remove them and accept writes: trueup switchover finish --reopen-old"
    )


def _close_returned(
    request: SwitchoverRequest,
    sync_id: str,
    sides: list[tuple[Node, Connection]],
    pointers: list[Pointer | None],
) -> list[str]:
    """Close a database that came back after the switchover was finished without it, if it accepts writes."""
    first, second = pointers
    if first is None or second is None or not (first.is_in_use and second.is_in_use):
        return []
    if first.is_alone == second.is_alone:
        pointer.check_both(first, second, request.sync)
    place = 1 if first.is_alone else 0
    node, connection = sides[place]
    pointer.change_fenced(connection, request.sync, sync_id, "close", timeout=request.timeout)
    pointers[place] = pointer.read(connection, request.sync)
    return [
        f"{node.name}: accepted writes although {sides[1 - place][0].name} is in use: it is closed now; compare both:"
        " trueup diff"
    ]


@environment_errors()
def _finish_alone(request: SwitchoverRequest, how: Finish) -> Ended:
    """Finish on the database that is left, and say what the other one may still have."""
    here, gone = (request.second, request.first) if how.without_old else (request.first, request.second)
    with open_session(here) as connection:
        stored = pointer.read(connection, request.sync)
        check_side(request, here, connection)
        sync_id = stored.sync_id if stored is not None else _identity_alone(request, here, connection)
        if not sync_id:
            text = f"{here.name} has no sync {request.sync}, and no switchover of it: nothing was to be done"
            return Ended(request.sync, "", (text,))
        if here is request.second:
            _refuse_unfinished(request, connection)
        option = "--without-old" if how.without_old else "--without-new"
        refuse_if_it_answers(gone, _peer(stored, request, here, connection), option)
        pointer.claim(connection, request.sync, here.name)
        try:
            return _keep_alone(request, how, here, gone, connection, stored, sync_id)
        finally:
            if not connection.closed:
                pointer.unclaim(connection, request.sync)


def _keep_alone(
    request: SwitchoverRequest,
    how: Finish,
    here: Node,
    gone: Node,
    connection: Connection,
    stored: Pointer | None,
    sync_id: str,
) -> Ended:
    reopens = stored is not None and stored.is_closed and how.reopen_old
    if how.reopen_old and not reopens:
        raise ConfigError(
            f"--reopen-old: {here.name} is not closed by a finished switchover", cure="leave the option out"
        )
    if how.keep_closed:
        return _keep_closed(request, here, gone, connection, stored, sync_id)
    if stored is not None and not stored.is_in_use and not how.accept_loss and not reopens:
        raise CheckFailed(
            [
                f"{here.name} is not in use: {gone.name} was, when both were last connected."
                f"{_as_of(connection, request, stored)}"
                f" What was written to {gone.name} since then is not on {here.name}"
            ],
            cure=f"start {gone.name} again; if it is lost for good, use {here.name} without these changes: add"
            f" --accept-loss; or, if applications use a third database, leave {here.name} closed: add --keep-closed",
            node=here.name,
        )
    done = (
        []
        if stored is None or stored.is_in_use
        else [f"{here.name}: put into use.{_as_of(connection, request, stored)}"]
    )
    if stored is not None and not reopens:
        # Before applications write here. If it is in use already, there is nothing to set.
        triggers.restore(connection, request.sync)
        pointer.change_fenced(connection, request.sync, sync_id, "stay_alone", timeout=request.timeout)
    done += clear(request, sync_id, connection, here, pointers=stored is None or reopens)
    if stored is not None and not reopens:
        if stored.is_alone and not done:
            done.append(f"the switchover of the sync {request.sync} is finished already, without {gone.name}")
        done.append(
            f"{here.name}: keeps its pointer (schemas trueup and trueup_app, no triggers), to notice {gone.name} if it"
            " comes back and accepts writes"
        )
    return Ended(request.sync, here.name, (*done, _left_on(gone)))


def _keep_closed(
    request: SwitchoverRequest, here: Node, gone: Node, connection: Connection, stored: Pointer | None, sync_id: str
) -> Ended:
    """Leave the remaining database closed to writes, as after a switchover that was finished on both."""
    if stored is None or stored.is_in_use:
        raise CheckFailed(
            [f"--keep-closed: {here.name} is not closed"], cure=f"leave the option out: {here.name} stays in use"
        )
    _guard_all(request, connection, (connection, connection))
    pointer.finish(connection, request.sync)
    done = clear(request, sync_id, connection, here, guards=False, pointers=False)
    return Ended(request.sync, "", (*done, _closed_text(request, here, connection), _left_on(gone)))


def _left_on(gone: Node) -> str:
    return (
        f"{gone.name}: nothing was changed: it may have a change log, guards, a pointer and a state of the sync; if it"
        " comes back, run trueup switchover finish before applications can reach it"
    )


def _as_of(connection: Connection, request: SwitchoverRequest, stored: Pointer) -> str:
    """Return up to when this database has all commits: the last round, or the decision that moved applications away."""
    known = state.read(connection, request.sync)
    if known is not None and known.source_at is not None and known.source_lsn == "0/0":
        return " A large round is not complete: it is between two states."
    moments = [known.source_at if known is not None else None, stored.decided_at]
    last = one_value(connection.execute("SELECT greatest(%s::timestamptz, %s::timestamptz)", moments))
    return f" It has all commits up to {last:%Y-%m-%d %H:%M:%S} UTC." if last is not None else ""


def _identity_alone(request: SwitchoverRequest, here: Node, connection: Connection) -> str:
    """Return the identity of a sync without a switchover, or ""."""
    if here is request.second:
        known = state.read(connection, request.sync)
        return known.id if known is not None else ""
    with changelog.open_log(here) as log:
        owner = changelog.owner(log, request.sync)
    return owner.id if owner is not None else ""


def _peer(stored: Pointer | None, request: SwitchoverRequest, here: Node, connection: Connection) -> str:
    """Return the identity of the other database."""
    if stored is not None:
        return stored.pair.split(" ")[1 if here is request.first else 0]
    if here is request.second:
        known = state.read(connection, request.sync)
        return known.source if known is not None else ""
    with changelog.open_log(here) as log:
        owner = changelog.owner(log, request.sync)
    return owner.peer if owner is not None else ""
