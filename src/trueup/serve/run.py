"""The path of the server: check the options, start the collector, serve the application until a signal."""

from __future__ import annotations

import logging
from collections.abc import Callable

from trueup.serve.app import Application
from trueup.serve.collector import Collector, Scope
from trueup.serve.options import ServeOptions
from trueup.serve.server import address, bind, make_server

_log = logging.getLogger(__name__)


def run(scope: Scope, options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called with the URL when the server listens."""
    options = options.checked()
    if options.show_rows and not options.has_login:
        _log.warning("rows are shown, and all users of this machine can connect: add --token-file")
    listening = bind(options)
    collector = Collector(scope)
    application = Application(collector, options)
    server = make_server(application.asgi, options)
    collector.start()
    try:
        ready(address(options, listening))
        # Returns after a signal.
        server.run(sockets=[listening])
    finally:
        application.stop()
        collector.stop()
        listening.close()
