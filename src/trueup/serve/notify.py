"""Send alerts: to a webhook, a command, or by e-mail. A target that is down is logged, and tried again later."""

from __future__ import annotations

import json
import logging
import smtplib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from trueup.config.secrets import mask
from trueup.errors import StoreError
from trueup.serve.alert_rules import ONCE, known, raised
from trueup.serve.alert_settings import AlertSettings, Target
from trueup.serve.model import Seen
from trueup.serve.publish import with_login
from trueup.store import TaskStore
from trueup.store.alerts import Change

_log = logging.getLogger(__name__)
# Seconds for one target, and for all targets after a command has ended.
TARGET_SECONDS = 10.0
END_SECONDS = 5.0
# Alerts in one text; the JSON has all.
_SHOWN = 20
_TITLES = {"raised": "ALERT", "changed": "ALERT", "repeated": "STILL", "resolved": "RESOLVED"}


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would send the message, which may name tables, to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass
class Alerts:
    """Raises and resolves alerts; what was sent to which target is in the task store, for all processes."""

    settings: AlertSettings
    store: Path

    def process(self, seen: Seen, *, seconds: float = TARGET_SECONDS) -> list[Change]:
        """Send what changed since the last call of any process, in at most `seconds`; return what was sent."""
        texts = {key: (alert.text, alert.state) for key, alert in raised(seen, self.settings).items()}
        if not texts and not self.store.exists():
            return []
        # A machine that only watches has no task store yet: it is created.
        with TaskStore(self.store) as store:
            names = [target.name for target in self.settings.targets]
            changes = store.claim_alerts(names, texts, known(seen), once=ONCE, repeat_after=self.settings.repeat_after)
            silent = [change for change in changes if change.how == "resolved" and not self.settings.resolved]
            store.confirm_alerts(silent)
        return self._send([change for change in changes if change not in silent], seconds)

    def _send(self, changes: Sequence[Change], seconds: float) -> list[Change]:
        """Send the changes to their targets, all at once; return those that were accepted in time."""
        sent: list[Change] = []

        def attempt(target: Target, own: Sequence[Change]) -> None:
            try:
                deliver(target, own)
            except Exception as error:
                _log.warning("the alert target %s cannot be reached: %s", target.name, _reason(target, error))
                self._end(own, is_sent=False)
            else:
                self._end(own, is_sent=True)
                sent.extend(own)

        threads = {}
        for target in self.settings.targets:
            if own := [change for change in changes if change.target == target.name]:
                threads[target.name] = threading.Thread(target=attempt, args=(target, own), daemon=True)
                threads[target.name].start()
        deadline = time.monotonic() + seconds
        for name, thread in threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                # It may still succeed. Else the claim ends, and another process or call sends it.
                _log.warning("the alert target %s did not answer in %g s", name, seconds)
        return list(sent)

    def _end(self, changes: Sequence[Change], *, is_sent: bool) -> None:
        try:
            with TaskStore(self.store) as store:
                (store.confirm_alerts if is_sent else store.release_alerts)(changes)
        except StoreError as error:
            _log.warning("what was sent is not recorded, and may be sent again: %s", error)


class Watcher:
    """Processes what the collector sees in a thread of its own: a target that hangs delays only later alerts."""

    def __init__(self, alerts: Alerts, interval: float) -> None:
        self._alerts = alerts
        self._interval = interval
        self._latest: Seen | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="trueup alerts", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def see(self, seen: Seen) -> None:
        """Keep what was seen last; never waits."""
        self._latest = seen

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join(2.0)

    def _loop(self) -> None:
        while not self._stopping.wait(self._interval):
            if self._latest is not None:
                try:
                    self._alerts.process(self._latest)
                except StoreError as error:
                    _log.warning("alerts are not sent: %s", error)
                except Exception:
                    _log.exception("alerts are not sent")


def _reason(target: Target, error: Exception) -> str:
    """Return the message of an error without the address, which may contain a secret."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"the command ended with {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"the command took more than {error.timeout:g} s"
    text = mask(str(error))
    for address in filter(None, (target.webhook, target.smtp)):
        split = urlsplit(address)
        for secret in filter(None, (address, split.path.strip("/"), split.query, split.password)):
            text = text.replace(secret, "***").replace(unquote(secret), "***")
    return text


def message(changes: Sequence[Change]) -> str:
    """Return the changes as text, one per line."""
    lines = [f"{_TITLES[change.how]}: {change.text}" for change in changes[:_SHOWN]]
    lines += [f"… and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    return "\n".join(lines)


def document(changes: Sequence[Change]) -> dict[str, Any]:
    """Return the changes as JSON; `text` is what Slack shows."""
    # Slack reads & < > as markup.
    text = message(changes).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    alerts = [
        {"alert": change.alert, "state": change.how, "text": change.text, "since": change.since} for change in changes
    ]
    return {"text": text, "host": socket.gethostname(), "alerts": alerts}


def deliver(target: Target, changes: Sequence[Change]) -> None:
    """Send changes to one target; raises what it raises."""
    if target.webhook:
        body = json.dumps(document(changes)).encode()
        address, headers = with_login(target.webhook)
        headers |= {"content-type": "application/json", "user-agent": "trueup"}
        request = Request(address, body, headers)
        with build_opener(_NoRedirect).open(request, timeout=TARGET_SECONDS) as answer:
            answer.read(1000)
    elif target.command:
        subprocess.run(
            target.command,
            input=json.dumps(document(changes)).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TARGET_SECONDS,
            check=True,
        )
    else:
        _mail(target, changes)


def _mail(target: Target, changes: Sequence[Change]) -> None:
    split = urlsplit(target.smtp)
    mail = EmailMessage()
    more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    mail["Subject"] = f"trueup: {_TITLES[changes[0].how]}: {changes[0].text}"[:200].replace("\r", " ") + more
    mail["From"], mail["To"] = target.sender, ", ".join(target.recipients)
    mail.set_content(message(changes))
    host, context = str(split.hostname), ssl.create_default_context()
    if split.scheme == "smtps":
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, split.port or 465, timeout=TARGET_SECONDS, context=context)
    else:
        server = smtplib.SMTP(host, split.port or 25, timeout=TARGET_SECONDS)
    with server:
        if split.scheme == "smtp+starttls":
            server.starttls(context=context)
        if split.username:
            server.login(unquote(split.username), unquote(split.password or ""))
        server.send_message(mail)
