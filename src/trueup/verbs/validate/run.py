"""The whole path of a validation: look around, read changes, judge them, look again, sweep, tell; round after round.

Whatever happens in a round, the meta database holds the truth: after an error the sessions are opened anew, and the
work goes on from there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone

from trueup.capture.log.slot import SlotLost, lsn_text
from trueup.config.model import Node
from trueup.db.node import is_lost
from trueup.engine.work import Engine
from trueup.errors import CheckFailed, NodeError, QueryError, TrueupError
from trueup.verbs.validate.look import Altered
from trueup.verbs.validate.meta import Meta, as_json
from trueup.verbs.validate.tables import Say
from trueup.verbs.validate.validator import Validator

POLL_SECONDS = 0.2
_LONGEST_WAIT = 30.0
# Classes of errors that pass: connection, resources, operator intervention, conflicts; a lock or a slot in use.
_PASSING = ("08", "53", "57", "40")
_PASSING_STATES = ("55P03", "55006", "58P01")
_PATIENCE_WITH_A_TABLE = 3
_LOCK_WAITS = 8


def run(
    name: str,
    nodes: tuple[Node, Node],
    meta_node: Node,
    engine: Engine,
    *,
    say: Say,
    step: Callable[[Validator], bool] | None = None,
) -> str:
    """Validate until it is asked to stop, or cannot go on; gives the reason of the end. `step` is one round."""
    meta = _locked(name, meta_node)
    validator = Validator(name, nodes, meta, engine, say)
    reason = "stopped by the user"
    try:
        validator = _open(validator)
        reason = _rounds(validator, meta_node, step or one_round)
        return reason
    except SlotLost as error:
        reason = _lost(validator, error)
        raise
    except TrueupError as error:
        reason = str(error)
        raise
    except KeyboardInterrupt:
        reason = "interrupted"
        raise
    finally:
        _leave(validator, reason)


def one_round(validator: Validator) -> bool:
    """One round; whether there is more to do at once."""
    upto = validator.look_around()
    more = upto > validator.position and validator.read(upto)
    return look_again(validator) or more


def look_again(validator: Validator) -> bool:
    """The rest of a round: all but reading changes."""
    more = validator.again()
    validator.errors_again()
    validator.sweep()
    validator.progress()
    validator.let_go()
    return more


def _rounds(validator: Validator, meta_node: Node, step: Callable[[Validator], bool]) -> str:
    waits = 0
    altered: Counter[str] = Counter()
    while True:
        try:
            wanted = validator.refresh()
            if wanted == "stop":
                return "stopped by the user"
            more = step(validator)
            if validator.is_past_cutover():
                return f"all is validated up to the cut-over position {validator.settings.cutover}"
            waits = 0
            altered.clear()
            if not more:
                time.sleep(POLL_SECONDS)
        except (Altered, CheckFailed) as error:
            _altered(validator, error, altered)
        except TrueupError as error:
            if not _passes(error):
                raise
            waits += 1
            _wait_out(validator, meta_node, error, waits)


def _open(validator: Validator) -> Validator:
    validator.open()
    validator.meta.rows("want", name=validator.name, wanted="")
    validator.meta.rows("state", name=validator.name, state="running", reason="")
    settings = validator.settings
    validator.say(
        f"validating {len(validator.tables.pairs)} tables of {settings.source} on {settings.target},"
        f" from position {lsn_text(validator.position)}; applied by {validator.syncer}"
    )
    return validator


def _altered(validator: Validator, error: TrueupError, altered: Counter[str]) -> None:
    """A table is not what it was: plan it again, or stop it by name; the others go on."""
    name = error.table or ""
    if name not in validator.tables.routes:
        raise error
    altered[name] += 1
    validator.looks.count()
    if isinstance(error, CheckFailed) or altered[name] > _PATIENCE_WITH_A_TABLE:
        validator.tables.stop(name, error.message)
    else:
        validator.tables.replan(name)


def _passes(error: TrueupError) -> bool:
    if isinstance(error, SlotLost):
        return False
    if isinstance(error, NodeError) or is_lost(error):
        return True
    state = error.sqlstate if isinstance(error, QueryError) else ""
    return state[:2] in _PASSING or state in _PASSING_STATES


def _wait_out(validator: Validator, meta_node: Node, error: TrueupError, waits: int) -> None:
    """Wait, and open all sessions anew; errors of that are waited out in the next round."""
    seconds = min(_LONGEST_WAIT, 0.25 * 2**waits)
    validator.say(f"waiting {seconds:.1f} s: {error}")
    time.sleep(seconds)
    validator.close()
    try:
        if validator.meta.connection.closed or validator.meta.connection.broken:
            validator.meta.close()
            validator.meta = validator.looks.meta = _locked(validator.name, meta_node)
        validator.open()
        validator.meta.rows("state", name=validator.name, state="running", reason="")
    except TrueupError as again:
        # Our own session of before may hold the lock until the server notices that it is gone.
        if not _passes(again) and not (isinstance(again, CheckFailed) and waits < _LOCK_WAITS):
            raise
        validator.looks.pending = max(validator.looks.pending, 1)


def _locked(name: str, node: Node) -> Meta:
    meta = Meta(node, application=f"trueup validate {name} meta")
    try:
        meta.take_lock(name)
    except BaseException:
        meta.close()
        raise
    return meta


def _lost(validator: Validator, error: SlotLost) -> str:
    """Changes were not seen: nobody may be told that all is validated, until a full check was made."""
    stored = validator.meta.need(validator.name)
    gap = stored.gap or {
        "from": lsn_text(stored.position or 0),
        "why": error.message,
        "at": datetime.now(timezone.utc).isoformat(),
    }
    validator.meta.rows("gap", name=validator.name, gap=as_json(gap))
    return f"{error.message}; changes after {gap['from']} were not seen: a full check is needed"


def _leave(validator: Validator, reason: str) -> None:
    try:
        validator.let_go(at_once=True)
    except Exception as error:
        validator.say(f"the slot could not be advanced: {error}")
    validator.close()
    validator.looks.close()
    try:
        validator.meta.rows("state", name=validator.name, state="stopped", reason=reason)
    except TrueupError as error:
        validator.say(f"the end could not be written down: {error}")
    validator.meta.close()
