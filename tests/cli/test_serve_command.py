"""Reports match their published schemas, answers match the description of the API, and commands publish metrics."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

from support.cli import NodeOptions, WriteConfig
from support.fixtures import Cli
from support.serve import serving
from trueup.config.load import load
from trueup.store import TaskStore, tasks_db_path
from trueup.testing.postgres import Database

DOCS = Path(__file__).parents[2] / "docs"


def check(value: Any, schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(value)


def answer_schema(path: str) -> dict[str, Any]:
    """Return the schema of an answer, with the shared definitions where references look for them."""
    document = json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))
    schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    return {**schema, "components": document["components"]}


def test_reports_and_answers_match_their_schemas(
    cli: Cli, drifted: list[Database], node_options: NodeOptions, write_config: WriteConfig
) -> None:
    schemas = {
        name: json.loads((DOCS / "schemas" / f"{name}.json").read_text()) for name in ("diff-report", "many-report")
    }
    found = cli("diff", "items", *node_options(drifted), "--json").json
    check(json.loads(Path(found["report"]).read_text()), schemas["diff-report"])
    rerun = cli("rerun", found["report"], *node_options(drifted), "--json").json
    check(json.loads(Path(rerun["report"]).read_text()), schemas["diff-report"])
    many = cli("diff", "--schema", "public", *node_options(drifted), "--json").json
    check(json.loads(Path(many["report"]).read_text()), schemas["many-report"])
    config = load(str(write_config(drifted, '[schedule.quick]\nverb = "check"\narguments = "items"\nevery = "1h"\n')))
    with serving([tasks_db_path()], config, verbs=("check",), with_doctor=True) as running:
        running.read()
        paths = json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))["paths"]
        for path in paths:
            address = path.replace("{task_id}", found["task_id"])
            value = running.get(f"{address}?name=public.items").json
            check(value, answer_schema(path))
        assert running.get("/api/v1/doctor").json["findings"]
        assert running.get("/api/v1/schedule").json["jobs"][0]["name"] == "quick"
        assert len(running.get("/api/v1/history?name=public.items").json["runs"]) == 3
        # The map of the key space, and rows only if they are shown.
        page = running.get("/table?name=public.items&cluster=&nodes=n1,n2").text
        assert "parts of the key space have differences" in page
        report = running.get(f"/tasks/{found['task_id']}/report").text
        assert "the differing rows are hidden" in report
        assert "item 7" not in report
    with serving([tasks_db_path()], show_rows=True) as running:
        assert "item 7" in running.get(f"/tasks/{found['task_id']}/report").text


class Gateway(BaseHTTPRequestHandler):
    """Keeps what is pushed."""

    def do_PUT(self) -> None:
        self.server.got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_check_publishes_metrics_on_success_only(
    cli: Cli, drifted: list[Database], node_options: NodeOptions, tmp_path: Path
) -> None:
    file = tmp_path / "trueup.prom"
    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        server.got = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        options = ["--metrics-textfile", file, "--metrics-push", f"http://127.0.0.1:{server.server_port}"]
        assert cli("check", "nothing", *node_options(drifted), *options).code == 2
        assert not file.exists()
        assert cli("check", "items", *node_options(drifted), *options).code == 1
        server.shutdown()
    ((path, pushed),) = server.got  # type: ignore[attr-defined]
    assert path.startswith("/metrics/job/trueup/instance/")
    assert pushed == file.read_bytes()
    names = {family.name for family in text_string_to_metric_families(pushed.decode())}
    assert "trueup_table_verdict" in names
    # It would not grow.
    assert "trueup_proof_age_seconds" not in names
    assert file.stat().st_mode & 0o777 == 0o644
    # A gateway that is down is a warning.
    down = cli("check", "items", *node_options(drifted), "--metrics-push", "http://127.0.0.1:1")
    assert (down.code, "cannot send the metrics" in down.err) == (1, True)


@pytest.mark.parametrize("command", ["serve", "schedule"])
def test_a_command_serves_metrics_until_a_signal(tmp_path: Path, command: str) -> None:
    with TaskStore():
        pass
    config = tmp_path / "trueup.toml"
    config.write_text('[schedule.never]\nverb = "check"\narguments = "x"\ncron = "0 0 1 1 *"\n')
    port = ["--port", "0", "--no-doctor"] if command == "serve" else ["--metrics-port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "trueup", command, "--config", str(config), *port],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            found = None
            while not found:
                line = process.stdout.readline()
                assert line
                found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            with urlopen(f"{found[0]}metrics", timeout=60) as answer:
                assert b"trueup_build_info" in answer.read()
            # The scheduler handles signals from now on.
            while command == "schedule" and "next at" not in process.stdout.readline():
                pass
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
