"""How a switchover ends without a decision, or after it: `abort`, `reset`, `finish`. Each can be called twice."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trueup.db.connection import Connection
from trueup.db.locks import FAMILY, SWITCHOVER, holders, try_lock, unlock
from trueup.db.statements import load
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.switchover import guard, pointer
from trueup.verbs.switchover.prepare import reach
from trueup.verbs.sync import changelog, marks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trueup.config.model import Node
    from trueup.verbs.switchover.outcome import Asked

_GOING = 30.0


@dataclass(frozen=True)
class Ended:
    """What was done, in words, and which database is in use."""

    sync: str
    in_use: str
    done: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"sync": self.sync, "in_use": self.in_use, "done": list(self.done)}


def abort(asked: Asked) -> Ended:
    """End whoever executes a switchover: its sessions are ended, and the server takes back what was not decided."""
    with ExitStack() as stack:
        sides = [(node, stack.enter_context(reach(node))) for node in (asked.first, asked.second)]
        done: list[str] = []
        for node, connection in sides:
            done += _end_sessions(node, connection)
        found = {node.name: pointer.read(connection, asked.sync) for node, connection in sides}
        for node, connection in sides:
            if not pointer.is_installed(connection):
                continue
            values = {"sync": asked.sync}
            if connection.execute(load("trueup.verbs.switchover", "status.sql")["undecided"], values).rowcount:
                done.append(f"the attempt on {node.name} is over: it is in use as before")
        mine = [name for name, each in found.items() if each is not None and each.is_in_use]
        if not mine and any(each is not None and each.token for each in found.values()):
            raise CheckFailed(
                ["it is decided already, and the new database is not open yet: that cannot be taken back like this"],
                cure="run trueup switchover execute (or rollback) again: it opens it; then there is the way back",
            )
        return Ended(asked.sync, mine[0] if mine else asked.first.name, tuple(done) or ("nothing was under way",))


def _end_sessions(node: Node, connection: Connection) -> list[str]:
    """End the sessions that hold the lock of a switchover, and wait until they are gone."""
    if not holders(connection, SWITCHOVER):
        return []
    values = {"family": FAMILY, "number": SWITCHOVER}
    row: Any = connection.execute(load("trueup.verbs.switchover", "status.sql")["end"], values).fetchone()
    until = time.monotonic() + _GOING
    while left := holders(connection, SWITCHOVER):
        if time.monotonic() > until:
            raise TrueupError(f"{left[0]} does not end", cure="end that process by hand", node=node.name)
        time.sleep(0.02)
    return [f"ended {row[0]} session of a switchover on {node.name}"]


def reset(asked: Asked) -> Ended:
    """Take pointer, guards and the way back out of both databases, as if no switchover had been prepared."""
    with _alone(asked) as (first, second):
        mine = pointer.read(first, asked.sync)
        theirs = pointer.read(second, asked.sync)
        if (theirs is not None and theirs.is_in_use) or (mine is not None and not mine.is_in_use):
            raise CheckFailed(
                [f"{asked.second.name} is in use: {asked.first.name} would take writes again, beside it"],
                cure="trueup switchover rollback keeps what was written since; trueup switchover finish stays there",
            )
        done = [f"{asked.second.name}: {each}" for each in _clear(asked, second, asked.second, log=True, sync=False)]
        # The marks of a way back are on the first; those of the sync itself are on the second, and stay.
        done += [f"{asked.first.name}: {each}" for each in _clear(asked, first, asked.first, log=False, sync=True)]
        return Ended(asked.sync, asked.first.name, tuple(done) or ("there was nothing to take away",))


def finish(asked: Asked, *, keep_refusal: bool = False) -> Ended:
    """Take all of trueup out of both databases; whichever is in use stays so. There is no way back afterwards.

    With `keep_refusal` the database that is not in use goes on refusing writes, and keeps what that needs.
    """
    with _alone(asked) as (first, second):
        mine, theirs = pointer.read(first, asked.sync), pointer.read(second, asked.sync)
        if mine is not None and theirs is not None and not mine.is_in_use and not theirs.is_in_use:
            raise CheckFailed(
                [f"neither {asked.first.name} nor {asked.second.name} is open"],
                cure="complete what was decided first: trueup switchover execute, or rollback",
            )
        moved = (theirs is not None and theirs.is_in_use) or (mine is not None and not mine.is_in_use)
        nodes = (asked.second, asked.first) if moved else (asked.first, asked.second)
        used, other = (second, first) if moved else (first, second)
        done = [f"{nodes[0].name}: {each}" for each in _clear(asked, used, nodes[0], log=True, sync=True)]
        if keep_refusal:
            rest = _clear(asked, other, nodes[1], log=True, sync=True, pointers=False)
            rest.append("goes on refusing writes; trueup switchover finish ends that too")
        else:
            rest = _clear(asked, other, nodes[1], log=True, sync=True)
        done += [f"{nodes[1].name}: {each}" for each in rest]
        return Ended(asked.sync, nodes[0].name, tuple(done))


@contextmanager
def _alone(asked: Asked) -> Iterator[tuple[Any, Any]]:
    """Sessions with both databases, while nobody executes a switchover in either."""
    with ExitStack() as stack:
        sides = [(node, stack.enter_context(reach(node))) for node in (asked.first, asked.second)]
        for node, connection in sides:
            if not try_lock(connection, SWITCHOVER):
                raise CheckFailed(
                    ["a switchover is under way in this database"],
                    cure="wait for it, or end it with: trueup switchover abort",
                    node=node.name,
                )
            stack.callback(_let_go, connection)
        yield sides[0][1], sides[1][1]


def _let_go(connection: Connection) -> None:
    if not connection.closed:
        unlock(connection, SWITCHOVER)


def _clear(
    asked: Asked, connection: Connection, node: Node, *, log: bool, sync: bool, pointers: bool = True
) -> list[str]:
    """What of trueup is taken out of one database, in words; the last is what lets everybody write."""
    done: list[str] = []
    if log:
        with changelog.open_log(node) as tubes:
            if changelog.drop(tubes, asked.sync, patience=asked.patience):
                done.append("the change log is gone")
    if sync and marks.forget(connection, asked.sync):
        done.append("the marks of the sync are gone")
    if pointers:
        guards = guard.take_off(connection, patience=asked.patience)
        if guards:
            done.append(f"{guards} guards are gone")
        if pointer.is_installed(connection):
            pointer.remove(connection)
            done.append("the pointer is gone")
        marks.drop_if_empty(connection)
    return done
