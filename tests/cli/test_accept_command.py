"""`trueup accept`: accept, list, revoke, and what the other commands show."""

from __future__ import annotations

from support.cli import NodeOptions
from support.fixtures import Cli
from trueup.testing.postgres import Database


def test_accept_list_and_revoke(cli: Cli, drifted: list[Database], node_options: NodeOptions) -> None:
    task = cli("diff", "items", *node_options(drifted), "--json").json["task_id"]
    assert cli("accept", "--list").err == "no accepted differences\n"
    for arguments in (
        [],
        [task],
        ["--list", "--revoke", "x"],
        ["--with-ended", "--revoke", "x"],
        ["--list", "--until", "x"],
    ):
        assert cli("accept", *arguments).code == 2
    done = cli("accept", task[:8], "--reason", "known", "--by", "ana")
    assert (done.code, "accepted: 6 differences of public.items" in done.out) == (0, True)
    found = cli("diff", "items", *node_options(drifted))
    assert (found.code, found.out.startswith("ACCEPTED: public.items")) == (0, True)
    assert "6 differences: known (by ana, does not expire" in found.out
    (listed,) = cli("accept", "--list", "--json").json
    assert (listed["state"], listed["differences"], listed["reason"]) == ("active", 6, "known")
    assert "0 and 6 accepted" in cli("history").out
    assert "ACCEPTED" in cli("history", "items").out
    many = cli("diff", "--schema", "public", *node_options(drifted))
    assert (many.code, "6 accepted" in many.out) == (0, True)
    assert cli("accept", "--revoke", listed["id"]).code == 0
    assert cli("diff", "items", *node_options(drifted)).code == 1
    assert "revoked" in cli("accept", "--list", "--with-ended").out
