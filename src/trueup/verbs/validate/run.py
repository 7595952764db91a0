"""The loop of a validation: read changes, batch by key, judge, check pending rows and errors again, scrub, checkpoint.

After an error that may pass, the sessions are opened again and the work goes on from the last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trueup.capture.log.slot import SlotLost, lsn_text
from trueup.config.model import Node
from trueup.config.wording import counted
from trueup.engine.failures import known_error, uninterrupted
from trueup.engine.work import Engine
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.validate.checks import Altered
from trueup.verbs.validate.look import CatalogChanged
from trueup.verbs.validate.recover import Recovery, lock_meta, store_gap
from trueup.verbs.validate.sessions import Log
from trueup.verbs.validate.validator import Validator

# Runs one round; returns whether there is more to do at once.
Round = Callable[[Validator], bool]
POLL_SECONDS = 0.2
_PLANS = 3
_STOPPED = "stopped by the user"


def run(
    name: str, nodes: tuple[Node, Node], meta_node: Node, engine: Engine, *, log: Log, one_round: Round | None = None
) -> str:
    """Validate until the user stops it or the cut-over position is reached; return the reason of the end.

    Raises SlotLost if changes were lost. Whatever ends it, the next start goes on from the last checkpoint.
    """
    validator = Validator(name, nodes, lock_meta(name, meta_node, is_start=True), engine, log)
    reason = _STOPPED
    try:
        _open(validator)
        reason = _rounds(validator, meta_node, one_round or validate_round)
        return reason
    except SlotLost as error:
        reason = store_gap(validator, error)
        raise
    except TrueupError as error:
        reason = str(error)
        raise
    except KeyboardInterrupt:
        reason = "interrupted"
        raise
    finally:
        _close(validator, reason)


def validate_round(validator: Validator) -> bool:
    """Run one round; return whether there is more to do at once."""
    if validator.has_requests:
        validator.reopen()
    end = validator.locate()
    changes = validator.read_changes(end)
    # Batches the changes by key, judges the rows, and commits the results with the new position.
    more = changes is not None and validator.judge(changes)
    return finish_round(validator) or more


def finish_round(validator: Validator) -> bool:
    """Run the steps of a round that follow the reading of changes; return whether there is more to do at once."""
    more = validator.judge_target()
    more = validator.check_pending() or more
    validator.check_errors()
    validator.scrub()
    validator.save_progress()
    validator.release()
    return more


def _rounds(validator: Validator, meta_node: Node, one_round: Round) -> str:
    recovery = Recovery(validator, meta_node)
    while True:
        try:
            if validator.apply_settings() == "stop":
                return _STOPPED
            more = one_round(validator)
            if validator.is_done:
                return f"all changes before the cut-over position {validator.sessions.settings.cutover} are validated"
            recovery.reset()
            if not more:
                time.sleep(POLL_SECONDS)
        except (Altered, CheckFailed) as error:
            recovery.replan_or_stop(error)
        except Exception as error:
            known = known_error(uninterrupted(error))
            if known is None:
                raise
            recovery.wait_and_reopen(known)


def _open(validator: Validator) -> None:
    for _ in range(_PLANS):
        try:
            validator.open()
            break
        except CatalogChanged:
            # A table was altered while it was planned.
            validator.close()
    else:
        validator.open()
    sessions, positions = validator.sessions, validator.positions
    sessions.meta.rows("state", name=sessions.name, state="running", reason="")
    sessions.log(
        f"validating {counted(len(validator.tables.pairs), 'table')} of {sessions.settings.source}"
        f" on {sessions.settings.target}, from position {lsn_text(positions.read)}; applied by {positions.syncer}"
    )


def _close(validator: Validator, reason: str) -> None:
    sessions = validator.sessions
    try:
        validator.release(at_once=True)
    except Exception as error:
        sessions.log(f"the replication slot could not be advanced: {error}")
    validator.close()
    validator.checker.close()
    validator.scrubber.close()
    try:
        sessions.meta.rows("state", name=sessions.name, state="stopped", reason=reason)
    except TrueupError as error:
        sessions.log(f"the state 'stopped' could not be stored: {error}")
    sessions.meta.close()
