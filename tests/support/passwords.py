"""One password for the servers of a run, in a password file: addresses of tests have none, as most addresses of users.

Only the users that run the tests and the servers can read the file. Servers read it too, as standbys, subscribers and
clients of foreign tables.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
from urllib.parse import quote

from trueup.testing import postgres
from trueup.testing.account import Account, environment, temp_folder
from trueup.testing.postgres import Server

VARIABLE = "PGPASSFILE"

_uri = Server.uri


def use_password_file() -> None:
    """Let all servers that this process starts without a password have the same one, and all sessions find it."""
    postgres.PASSWORD = secrets.token_hex(16)
    account = Account.choose()
    folder = temp_folder("trueup-passwords-", account)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "pgpass"
    file.touch(0o600)
    file.write_text(f"*:*:*:postgres:{postgres.PASSWORD}\n")
    account.own(file)
    os.environ[VARIABLE] = str(file)
    vars(postgres)["environment"] = lambda: {**environment(), VARIABLE: str(file)}
    Server.uri = _uri_without_password  # type: ignore[method-assign]


def _uri_without_password(
    self: Server, dbname: str = "postgres", user: str = "postgres", password: str | None = None
) -> str:
    if password is None and user == "postgres" and self.password == postgres.PASSWORD:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(dbname, safe='')}"
    return _uri(self, dbname, user, password)
