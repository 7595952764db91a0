"""`trueup certificate`: keys, statements of tasks, verification, the list."""

from __future__ import annotations

import json
from pathlib import Path

from support.cli import NodeOptions
from support.fixtures import Cli
from trueup.testing.postgres import Database


def test_from_a_check_to_its_verification(cli: Cli, equal: list[Database], node_options: NodeOptions) -> None:
    task = cli("check", "items", *node_options(equal), "--json").json["task_id"]
    assert cli("certificate", "list").err == "no certificate was issued yet\n"
    made = cli("certificate", "keygen", "--output", "my.key")
    assert (made.code, "fingerprint: " in made.out) == (0, True)
    assert cli("certificate", "keygen", "--output", "my.key").code == 2
    assert cli("certificate", "keygen").code == 2
    issued = cli("certificate", "--task", task[:8], "--sign", "my.key", "--output", "c.json")
    assert (issued.code, issued.out.startswith("PROVEN: certificate 1")) == (0, True), issued.err
    verified = cli("certificate", "verify", "c.json", "--key", "my.key.pub")
    assert (verified.code, verified.out.startswith("VERIFIED")) == (0, True)
    Path("c.json").write_text(Path("c.json").read_text().replace("PROVEN", "PR0VEN", 1))
    refused = cli("certificate", "verify", "c.json", "--key", "my.key.pub", "--json")
    assert (refused.code, refused.json["verdict"]) == (1, "REFUSED")
    assert cli("certificate", "verify", "nothing.json").code == 2
    (listed,) = cli("certificate", "list", "--json").json
    assert (listed["number"], listed["tables"]) == (1, "public.items")
    assert "public.items" in cli("certificate", "list").out
    assert json.loads(cli("certificate", "show", "1").out)["statement"]["number"] == 1
    assert cli("certificate", "show", "1", "--output", "again.json").code == 0
    assert cli("certificate", "verify", "again.json", "--key", "my.key.pub").code == 0
    assert cli("certificate", "show", "2").code == 2
    assert cli("certificate", "items").code == 2
