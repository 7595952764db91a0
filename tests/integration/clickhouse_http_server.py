"""A replacement for a ClickHouse server: the HTTP interface of ClickHouse in front of an embedded ClickHouse.

    python clickhouse_http_server.py FOLDER

It prints its port. The user is `me`, the password `ge heim/123`. Requests are logged to FOLDER.log.
"""

from __future__ import annotations

import http.server
import json
import re
import sys
import tempfile
import threading
from base64 import b64decode
from contextlib import closing
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from chdb.session import Session

opened: Any = Session
folder = sys.argv[1]
clickhouse = opened(folder)
# Clients keep their connections, each with a thread; chdb has one query at a time.
one_at_a_time = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def reply(self, code: int, data: bytes, **headers: Any) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        with one_at_a_time:
            self.answer()

    def answer(self) -> None:
        params = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        body = self.body()
        if b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")) != b"me:ge heim/123":
            message = b"Code: 516. wrong password: " + self.headers.get("Authorization", "").encode()
            self.reply(403, message, X_ClickHouse_Exception_Code=516)
            return
        own = {"query", "database", "default_format", "query_id", "session_id", "wait_end_of_query", "compress"}
        settings = {name: value for name, value in params.items() if name not in own and "http" not in name}
        sql = params.pop("query", None)
        with open(folder + ".log", "a") as log:
            seen = {"sql": sql or body.decode(), "settings": settings, "query_id": params.get("query_id", "")}
            log.write(json.dumps(seen) + "\n")
        with closing(opened(folder)) as session, tempfile.NamedTemporaryFile(suffix=".parquet") as file:
            try:
                for name, value in settings.items():
                    session.query(f"SET {name} = '{value}'")
                if sql is None:
                    sql = body.decode()
                elif body:
                    file.write(body)
                    file.flush()
                    sql = re.sub(r"\s+FORMAT Parquet\s*$", f" FROM INFILE '{file.name}' FORMAT Parquet", sql)
                data = session.query(sql, params.get("default_format", "TSV")).bytes()
                self.reply(200, data, X_ClickHouse_Summary="{}")
            except RuntimeError as error:
                self.reply(500, str(error).encode(), X_ClickHouse_Exception_Code=1)

    do_GET = do_POST

    def log_message(self, *args: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
sys.stdout.write(f"{server.server_port}\n")
sys.stdout.flush()
server.serve_forever()
