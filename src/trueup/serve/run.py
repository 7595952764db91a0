"""The path of the server: check the options, start the collector, serve the application until a signal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from trueup.serve.alert_settings import load_alerts
from trueup.serve.app import Application
from trueup.serve.collector import Collector, Scope
from trueup.serve.notify import Alerts, Watcher
from trueup.serve.options import ServeOptions
from trueup.serve.server import address, bind, make_server

_log = logging.getLogger(__name__)


def run(scope: Scope, options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called with the URL when the server listens."""
    options = options.checked()
    if options.show_rows and not options.has_login:
        _log.warning("rows are shown, and all users of this machine can connect: add --token-file")
    listening = bind(options)
    watcher = watcher_of(scope)
    collector = Collector(scope, watcher.see if watcher else lambda seen: None)
    application = Application(collector, options)
    server = make_server(application.asgi, options)
    collector.start()
    if watcher is not None:
        watcher.start()
    try:
        ready(address(options, listening))
        # Ends after a signal, which it raises again.
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
    finally:
        application.stop()
        collector.stop()
        if watcher is not None:
            watcher.stop()
        listening.close()


def watcher_of(scope: Scope) -> Watcher | None:
    """Return what sends the alerts of the configuration; None if it has none."""
    settings = load_alerts(str(scope.config.path)) if scope.config.path is not None else None
    return Watcher(Alerts(settings, scope.stores[0]), scope.interval) if settings and scope.stores else None
