"""Plans: rows decide before rules, the first matching rule decides, and other keys are left and listed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import trueup
from support.odd_names import KEY, ODD
from support.repair import Nodes, NodesWith
from trueup.api.repair import write_plan
from trueup.db.names import quoted_name
from trueup.errors import CheckFailed, ConfigError, QueryError
from trueup.report.model import DiffResult
from trueup.testing.postgres import Database, Server
from trueup.verbs.repair.plan import SKIPPED, UNDECIDED

TABLE = """
CREATE TABLE items ("Id" text, at int, name text, "select" int, n numeric, short varchar(3) NOT NULL DEFAULT '',
    PRIMARY KEY ("Id", at))
"""
FILL = "INSERT INTO items SELECT chr(96 + i / 10 + 1), i, 'name ' || i, i, i FROM generate_series(1, 30) i"
DRIFT = """
UPDATE items SET name = 'other' WHERE at IN (3, 4, 21);
UPDATE items SET "select" = "select" * 10, n = n + 0.5 WHERE at IN (5, 6, 7);
UPDATE items SET name = 'o''ther', "select" = 0 WHERE at = 8;
DELETE FROM items WHERE at IN (10, 11, 12);
INSERT INTO items VALUES ('z', 40, 'new', 1, 1), ('z', 41, 'new', 2, 2), ('z', 42, NULL, NULL, NULL);
"""
PLAN = """
version: 1
tables:
  public.items:
    rules:
      - name: by key
        when: {keys: [{Id: a, at: 4}, {from: {Id: b, at: 11}, to: [b, 12]}]}
        action: skip
      - when: {kind: missing, where: 'n1.at = 10 and n2."Id" is null -- the first of them'}
        action: {keep: n2}
      - when: {kind: [missing, extra], pair: n1/n2, where: 'coalesce(n1."select", n2."select") < 2'}
        action: insert
      - when: {kind: extra, where: "n2.name is null"}
        action: delete
      - when: {only_columns: [select, n]}
        action: {row: {from: n1, columns: {n: n2, name: {value: "a\\tb\\\\"}}}}
      - when: {columns: [select]}
        action: {keep: n2}
      # Never reached for what was decided before.
      - when: {columns: [select, n]}
        action: delete
    rows:
      - {key: {at: 007, Id: a}, action: {row: {from: n2, columns: {name: {value: null}}}}}
      - {key: {at: 21, Id: c}, action: {keep: n1}}
"""

ODD_COLUMN = f"k{ODD}"


@pytest.fixture
def plan(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that writes a plan to a file."""

    def write(text: str) -> str:
        path = tmp_path / "plan.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def uncommented(path: str) -> str:
    """Return a plan with all lines that are commented out."""
    text = Path(path).read_text(encoding="utf-8")
    lines = text[text.index("version:") :].splitlines()
    return "\n".join(line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line for line in lines)


def test_the_first_rule_that_fits_decides(nodes_with: NodesWith, plan: Callable[[str], str]) -> None:
    nodes = nodes_with(TABLE, FILL, FILL)
    nodes[2].execute(DRIFT)
    report = nodes.diff()
    # 007 is not 7: keys are compared as text.
    assert nodes.repair(report, plan=plan(PLAN)).left_counts[UNDECIDED] == 2
    text = PLAN.replace("007", "7")
    dry = nodes.repair(report, plan=plan(text))
    rows = nodes.rows()
    done = nodes.repair(report, plan=plan(text), execute=True)
    assert (
        dry.planned
        == done.written
        == {
            "n1": {"insert": 1, "update": 4, "delete": 1},
            "n2": {"insert": 0, "update": 4, "delete": 1},
        }
    )
    assert nodes.rows() != rows
    by_key = [{row[1]: row for row in by_id} for by_id in nodes.rows()]
    made = "a\tb\\"
    for by_id in by_key:
        assert by_id[5][2:5] == (made, 5, by_id[5][4])
        assert (by_id[6][2:4], by_id[7][2:4], by_id[8][2:4]) == ((made, 6), (None, 70), ("o'ther", 0))
        assert [str(by_id[at][4]) for at in (5, 6, 7)] == ["5.5", "6.5", "7.5"]
        assert (by_id[21][2], by_id[40][2]) == ("name 21", "new")
        assert not {10, 42} & set(by_id)
    left = {(each.key["at"], each.reason) for each in done.left}
    assert left == {("3", UNDECIDED), ("41", UNDECIDED), ("4", SKIPPED), ("11", SKIPPED), ("12", SKIPPED)}
    assert (done.verdict, done.remaining) == ("REMAINS", 5)
    # A default applies to the rest.
    rest = nodes.repair(report, plan=plan("tables: {items: {default: {keep: n1}}}"), execute=True, stale="apply")
    assert rest.verdict == "REPAIRED"
    assert nodes.diff().verdict == "MATCH"


def test_an_unedited_plan_template_changes_nothing(nodes_with: NodesWith, plan: Callable[[str], str]) -> None:
    nodes = nodes_with('CREATE TABLE "My: table" (id int PRIMARY KEY, v text)', "", "", name='"My: table"')
    nodes[1].execute("""INSERT INTO "My: table" VALUES (1, 'x'), (2, 'y')""")
    report = nodes.diff()
    write_plan(report.report, "start.yaml")
    with pytest.raises(ConfigError, match="exists"):
        write_plan(report.report, "start.yaml")
    assert nodes.repair(report, plan="start.yaml").left_counts == {UNDECIDED: 2}
    # Every line that is commented out is valid.
    done = nodes.repair(report, plan=plan(uncommented("start.yaml")))
    assert done.planned["n2"] == {"insert": 2, "update": 0, "delete": 0}
    assert not done.left_counts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tables: [", "not YAML"),
        ("rules: []", "`tables:` with an entry per table is missing"),
        ("tables: {other: {}}", "no entry for public.items"),
        ("tables: {items: {defualt: skip}}", "did you mean default"),
        ("tables: {items: {default: {keep: n3}}}", "unknown name n3"),
        ("tables: {items: {default: drop}}", "the action is one of"),
        ("tables: {items: {default: skip, default: delete}}", "occurs twice"),
        ("tables: {items: {rules: [{when: {kind: chnged}, action: skip}]}}", "did you mean changed"),
        ("tables: {items: {rules: [{when: {columns: [nam]}, action: skip}]}}", "did you mean name"),
        (
            "tables: {items: {rules: [{when: {where: '1); DROP TABLE items'}, action: skip}]}}",
            "not a single SQL",
        ),
        ("tables: {items: {rows: [{key: 1, action: skip}]}}", "a key is {Id: VALUE, at: VALUE}"),
        ("tables: {items: {rows: [{key: [a, 1], action: {row: {from: n1, columns: {at: n2}}}}]}}", "unknown name at"),
        ("tables: {items: {rules: [{when: {pair: n1/n3}, action: skip}]}}", "a pair is two"),
    ],
)
def test_an_invalid_plan_raises_with_the_place_of_the_mistake(
    nodes_and_report: tuple[Nodes, DiffResult], plan: Callable[[str], str], text: str, message: str
) -> None:
    nodes, report = nodes_and_report
    with pytest.raises(ConfigError) as refused:
        nodes.repair(report, plan=plan(text), execute=True)
    assert message in str(refused.value)


@pytest.fixture(scope="module")
def nodes_and_report(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nodes, DiffResult]]:
    """Return nodes and a report for plans that are not valid."""
    made = [server.create_database(f"plans_{os.getpid()}_{number}") for number in (1, 2)]
    for node in made:
        node.execute(TABLE)
    made[0].execute(FILL)
    addresses = {f"n{number}": node.uri for number, node in enumerate(made, 1)}
    folder = tmp_path_factory.mktemp("plans")
    report = trueup.diff(
        "items", nodes=addresses, engine="local", recheck=0, report_dir=str(folder), task_db=str(folder / "tasks.db")
    )
    yield Nodes(made, "items"), report
    assert made[1].execute("SELECT count(*) FROM items") == [(0,)]
    for node in made:
        node.drop()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{when: {where: n1.nothing > 1}, action: skip}", "rule 2: where: column n1.nothing does not exist"),
        ("{name: late, when: {where: \"'t'\"}, action: skip}", "rule 2 (late): where: the condition has the type text"),
        ("{when: {where: n1.at}, action: skip}", "rule 2: where: argument of WHERE must be type boolean, not type int"),
        ("{when: {keys: [{from: [a, one]}]}, action: skip}", "rule 2: keys: at: invalid input syntax for type integer"),
        (
            "{action: {row: {from: n1, columns: {select: {value: 1.5}}}}}",
            "rule 2: row: select: invalid input syntax for type integer",
        ),
        ("{action: {row: {from: n1, columns: {short: {value: long}}}}}", "rule 2: row: short: the value is too long"),
        ("{action: {row: {from: n1, columns: {short: {value: null}}}}}", "rule 2: row: short: the column is NOT NULL"),
    ],
)
def test_conditions_and_values_that_no_row_can_have_are_refused(
    nodes_and_report: tuple[Nodes, DiffResult], plan: Callable[[str], str], rule: str, message: str
) -> None:
    nodes, report = nodes_and_report
    with pytest.raises(CheckFailed) as refused:
        nodes.repair(
            report, plan=plan(f"tables: {{items: {{rules: [{{when: {{where: n1.n > 0}}, action: skip}}, {rule}]}}}}")
        )
    assert f"the plan: items: {message}" in str(refused.value)
    assert str(refused.value).startswith("node n1, public.items: ")


def test_an_error_in_a_condition_names_the_rule_and_the_key(
    nodes_and_report: tuple[Nodes, DiffResult], plan: Callable[[str], str]
) -> None:
    nodes, report = nodes_and_report
    rules = [
        "{when: {where: n1.at > 0}, action: skip}",
        "{name: ratio, when: {where: 1 / (n1.at - 23) > 0}, action: skip}",
        "{when: {where: (n1.name || 'x')::int > 0}, action: skip}",
    ]
    for execute in (False, True):
        with pytest.raises(QueryError) as failed:
            nodes.repair(report, plan=plan(f"tables: {{items: {{rules: [{', '.join(rules)}]}}}}"), execute=execute)
        assert str(failed.value) == (
            "node n1, public.items, key (Id c, at 23): the plan: items: rule 2 (ratio): where: division by zero"
        )
        assert "nothing was written" in failed.value.cure


# Names of nodes; the conditions of the plan below use the first two.
NODE_NAMES = [("key", "v"), ("row", "select"), ("a.b", "A-B"), ("name", "items"), ("null", "007"), ("from", "äö")]


@pytest.fixture(scope="module")
def odd_table(server: Server) -> Iterator[list[Database]]:
    """Return two databases with a table whose key columns are called from and to."""
    made = [server.create_database(f"odd_plans_{os.getpid()}_{number}") for number in (1, 2)]
    for node in made:
        node.execute(f'CREATE TABLE items ("from" int, "to" text, {KEY} int, PRIMARY KEY ("from", "to"))')
    yield made
    for node in made:
        node.drop()


@pytest.mark.parametrize("names", NODE_NAMES)
def test_every_name_of_a_plan_can_be_quoted(
    odd_table: list[Database], plan: Callable[[str], str], names: tuple[str, str]
) -> None:
    for number, database in enumerate(odd_table, 1):
        database.execute("TRUNCATE items")
        database.execute(f"INSERT INTO items SELECT g, 'x', g * {number} FROM generate_series(1, 6) g")
    nodes = Nodes(odd_table, "items")
    nodes.addresses = dict(zip(names, nodes.addresses.values(), strict=True))
    report = nodes.diff()
    first, second, column = (quoted_name(name) for name in (*names, ODD_COLUMN))
    key = "key_" if "key" in names else "key"
    rules = [
        {"when": {"where": f'{first}.{column} = 1 AND {second}.{column} = 2 AND {key}."from" = 1'}, "action": "delete"},
        {"when": {"keys": [{"from": {"from": "2", '"to"': "x"}, "to": ["2", "x"]}]}, "action": {"keep": second}},
        {
            "when": {"keys": [{'"from"': "3", "to": "x"}]},
            "action": {"row": {"from": first, "columns": {column: names[1]}}},
        },
        {
            "when": {"pair": [first, second], "columns": [column], "keys": [["4", "x"]]},
            "action": {"row": {"from": names[0], "columns": {ODD_COLUMN: {"value": "44"}}}},
        },
        {"when": {"pair": f"{first}/{second}", "only_columns": ODD_COLUMN}, "action": {"keep": names[0]}},
    ]
    text = json.dumps({"tables": {'"public"."items"': {"rules": rules}}}, ensure_ascii=False)
    done = nodes.repair(report, plan=plan(text), execute=True)
    assert (done.verdict, done.left_counts) == ("REPAIRED", {})
    assert nodes.rows() == [[(2, "x", 4), (3, "x", 6), (4, "x", 44), (5, "x", 5), (6, "x", 6)]] * 2
    # The commented lines of the template can be used with these names too.
    write_plan(report.report, "start.yaml")
    assert nodes.repair(report, plan=plan(uncommented("start.yaml")), stale="apply").verdict == "DRY RUN"
