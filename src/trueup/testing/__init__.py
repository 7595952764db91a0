"""Throw-away PostgreSQL servers for the demo and the tests.

Reading order: `postgres` (a server: start, stop, kill, remove), `processes` (pid file, and the watchdog that ends a
server with its parent), `account` (the user that runs a server), `binaries` (the PostgreSQL programs).
"""

from __future__ import annotations
