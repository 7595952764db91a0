"""Alerts after a command: what its tasks changed is sent to the targets of [alerts], before the command exits."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from trueup.errors import TrueupError

_log = logging.getLogger(__name__)


def _ended() -> set[Path]:
    """Return the stores in which tasks have ended; the module is loaded if there are any."""
    store = sys.modules.get("trueup.store.tasks")
    return store.ENDED_IN if store is not None else set()


def before_command() -> None:
    """Forget tasks that ended before, in a program that runs several commands."""
    _ended().clear()


def after_command(arguments: Sequence[str]) -> None:
    """Send the alerts that the tasks of this command raise or resolve. Never raises, and takes some seconds at most."""
    ended = _ended()
    if not ended:
        return
    try:
        _send(_config_of(arguments), sorted(ended))
    except TrueupError as error:
        _log.warning("alerts are not sent: %s", error)
    except Exception:
        _log.warning("alerts are not sent", exc_info=True)


def _send(config: str | None, stores: Sequence[Path]) -> None:
    from trueup.serve.alert_settings import load_alerts

    settings = load_alerts(config)
    if settings is None:
        return
    from trueup.serve.model import Part, Seen
    from trueup.serve.notify import END_SECONDS, Alerts
    from trueup.serve.sources import read_store

    for path in stores:
        Alerts(settings, path).process(Seen(stores={path: Part(str(path), read_store(path))}), seconds=END_SECONDS)


def _config_of(arguments: Sequence[str]) -> str | None:
    """Return the value of --config, if it is given."""
    for number, argument in enumerate(arguments):
        if argument == "--config" and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith("--config="):
            return argument.partition("=")[2]
    return None
