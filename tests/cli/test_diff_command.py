"""`trueup diff` and `trueup check` on the command line: exit codes, stdout and stderr, and every option."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from support.cli import NodeOptions, WriteConfig
from support.fixtures import Cli, Databases, Ran, Spark
from trueup.cli.main import trueup as group
from trueup.report import html
from trueup.report.json_file import private_file
from trueup.testing.postgres import Database, Server

# The documented fields of `--json`.
PROMISED = {
    *("verdict", "pairs", "rows_checked", "blocks", "mismatched_blocks"),
    *("seconds", "engine", "report", "task_id"),
}
HEAVY = ("pyspark", "py4j", "rich", "jinja2", "pandas", "numpy", "pyarrow", "psycopg", "sqlite3", "platformdirs")

SessionsSeen = Callable[[Database, Callable[[], object]], int]


def summary_of(ran: Ran) -> dict[str, Any]:
    """Return the summary of the report of a run with --json."""
    report: dict[str, Any] = json.loads(Path(ran.json["report"]).read_text(encoding="utf-8"))
    found: dict[str, Any] = report["summary"]
    return found


# Output and exit codes.


def test_equal_tables_exit_0(cli: Cli, node_options: NodeOptions, equal: list[Database]) -> None:
    ran = cli("diff", "items", *node_options(equal))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("MATCH: public.items on n1, n2: ")
    assert "50 rows in 2 blocks, none differs" in ran.out


def test_differences_exit_1_and_are_counted(cli: Cli, node_options: NodeOptions, drifted: list[Database]) -> None:
    ran = cli("diff", "items", *node_options(drifted))
    assert (ran.code, ran.err) == (1, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("DIFFER: public.items on n1, n2: ")
    assert next(line.split() for line in lines if "n1/n2" in line) == ["n1/n2", "2", "3", "1", "0"]
    task = next(re.findall(r"trueup report (\w{8}) --output html", line) for line in lines if "next:" in line)
    assert cli("report", task[0]).code == 0
    assert Path(next(line for line in lines if "report:" in line).partition(": ")[2]).is_file()


def test_an_incomplete_diff_exits_2(cli: Cli, node_options: NodeOptions, drifted: list[Database]) -> None:
    ran = cli("diff", "items", *node_options(drifted), "--max-diff-rows", 2)
    assert ran.code == 2
    assert ran.out.startswith("INCOMPLETE: ")
    assert "limit reached, more may exist" in ran.out
    assert "not compared: n1/n2: more than 2 differences" in ran.out


def test_json_is_one_object_with_all_documented_fields(
    cli: Cli, node_options: NodeOptions, drifted: list[Database]
) -> None:
    ran = cli("diff", "items", *node_options(drifted), "--json")
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.count("\n") == 1
    found = ran.json
    assert set(found) >= PROMISED
    assert found["verdict"] == "DIFFER"
    counts = {"missing": 2, "extra": 3, "changed": 1, "in_flight": 0}
    assert {kind: found["pairs"]["n1/n2"][kind] for kind in counts} == counts
    assert list(found["pairs"]) == ["n1/n2"]
    assert (found["rows_checked"], found["engine"], found["mismatched_blocks"]) == (53, "local", found["blocks"])
    assert found["seconds"] > 0
    assert summary_of(ran)["task_id"] == found["task_id"]


def test_missing_and_extra_depend_on_the_order_of_the_nodes(
    cli: Cli, node_options: NodeOptions, drifted: list[Database]
) -> None:
    found = cli("diff", "items", *node_options(drifted), "--nodes", "n2,n1", "--json").json
    assert list(found["pairs"]) == ["n2/n1"]
    assert (found["pairs"]["n2/n1"]["missing"], found["pairs"]["n2/n1"]["extra"]) == (3, 2)


@pytest.mark.parametrize("verb", ["diff", "check"])
@pytest.mark.parametrize("option", ["--quiet", "-q"])
def test_quiet_prints_nothing(
    cli: Cli, node_options: NodeOptions, drifted: list[Database], verb: str, option: str
) -> None:
    ran = cli(verb, "items", *node_options(drifted), option)
    assert (ran.code, ran.out, ran.err) == (1, "", "")


def test_quiet_and_json_print_the_json(cli: Cli, node_options: NodeOptions, equal: list[Database]) -> None:
    ran = cli("diff", "items", *node_options(equal), "--quiet", "--json")
    assert (ran.code, ran.json["verdict"], ran.err) == (0, "MATCH", "")


def test_check_counts_differing_blocks_and_writes_no_report(
    cli: Cli, node_options: NodeOptions, drifted: list[Database], tmp_path: Path
) -> None:
    ran = cli("check", "items", *node_options(drifted))
    assert ran.code == 1
    assert "53 rows in 2 blocks, 2 differ" in ran.out
    assert "next: trueup diff public.items" in ran.out
    found = cli("check", "items", *node_options(drifted), "--json").json
    assert (found["verdict"], found["mismatched_blocks"], found["report"]) == ("DIFFER", 2, "")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".json"] == []
    drifted[1].execute("TRUNCATE items")
    drifted[0].execute("TRUNCATE items")
    assert cli("check", "items", *node_options(drifted)).code == 0


def test_the_command_as_a_process(
    process: Cli, node_options: NodeOptions, drifted: list[Database], equal: list[Database]
) -> None:
    ran = process("diff", "items", *node_options(drifted), "--json")
    assert (ran.code, ran.json["verdict"], ran.err) == (1, "DIFFER", "")
    ran = process("diff", "itmes", *node_options(drifted))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("trueup: ")
    drifted[1].execute("DELETE FROM items WHERE id < 8")
    drifted[0].execute("DELETE FROM items WHERE id < 8")
    ran = process("check", "items", *node_options(drifted))
    assert (ran.code, ran.err) == (0, "")


def test_a_closed_pipe_is_not_an_error(node_options: NodeOptions, drifted: list[Database]) -> None:
    command = [sys.executable, "-m", "trueup", "diff", "items", *node_options(drifted), "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    output = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=60) == 2
    assert "Traceback" not in output


# Where the nodes come from.


def test_nodes_of_a_configuration(
    cli: Cli, equal: list[Database], write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = write_config(equal, folder=tmp_path / "elsewhere", name="nodes.toml")
    quick = ("--recheck", "0", "--json")
    assert cli("diff", "items", *quick).code == 2
    for cluster in ([], ["--cluster", "both"], ["--nodes", "n1,n2"], ["--cluster", "both", "--nodes", "all"]):
        assert cli("diff", "items", "--config", elsewhere, *cluster, *quick).json["nodes"] == ["n1", "n2"]
    monkeypatch.setenv("TRUEUP_CONFIG", str(elsewhere))
    assert cli("check", "items", *quick).code == 0
    monkeypatch.delenv("TRUEUP_CONFIG")
    write_config(equal)
    found = cli("diff", "items", "--cluster", "both", "--nodes", "n2,n1", *quick)
    assert found.json["nodes"] == ["n2", "n1"]
    assert summary_of(found)["cluster"] == "both"


def test_a_node_given_by_address_overrides_the_file(
    cli: Cli, equal: list[Database], databases: Databases, write_config: WriteConfig
) -> None:
    write_config(databases(2))  # without the table
    nodes = [option for number in (0, 1) for option in ("--node", f"n{number + 1}={equal[number].uri}")]
    assert cli("check", "items", *nodes, "--recheck", "0").code == 0
    assert cli("check", "items", *nodes, "--cluster", "both", "--recheck", "0").code == 0


def test_variables_in_an_address(cli: Cli, equal: list[Database], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT_OF_N1", str(equal[0].server.port))
    address = equal[0].uri.replace(str(equal[0].server.port), "${PORT_OF_N1}")
    nodes = ("--node", f"a={address}", "--node", f"b={equal[1].uri}")
    assert cli("check", "items", *nodes, "--engine", "local").code == 0
    monkeypatch.delenv("PORT_OF_N1")
    ran = cli("check", "items", *nodes, "--engine", "local")
    assert ran.code == 2
    assert "--node a" in ran.err
    assert "PORT_OF_N1" in ran.err


def test_a_setting_from_file_then_environment_then_option(
    cli: Cli, equal: list[Database], write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(equal, "[diff]\nblock_size = 2000\nrecheck = 0")
    assert summary_of(cli("diff", "items", "--json"))["block_size"] == 2000
    monkeypatch.setenv("TRUEUP__DIFF__BLOCK_SIZE", "3000")
    assert summary_of(cli("diff", "items", "--json"))["block_size"] == 3000
    assert summary_of(cli("diff", "items", "--json", "--block-size", 4000))["block_size"] == 4000


def test_a_warning_if_others_can_read_a_file_with_a_password(
    cli: Cli, equal: list[Database], write_config: WriteConfig
) -> None:
    path = write_config(equal, "[nodes.n9]\nhost = 'h'\npassword = 'swordfish'")
    path.chmod(0o644)
    ran = cli("check", "items", "--cluster", "both")
    assert ran.code == 0
    assert "trueup: warning: " in ran.err
    assert "chmod 600" in ran.err
    assert "swordfish" not in ran.err + ran.out
    assert cli("check", "items", "--cluster", "both", "--quiet").err == ""


# Every option takes effect.


def test_columns(cli: Cli, node_options: NodeOptions, drifted: list[Database]) -> None:
    drifted[1].execute("DELETE FROM items WHERE id < 0")
    drifted[0].execute("DELETE FROM items WHERE id < 3")
    base = ("diff", "items", *node_options(drifted))
    assert cli(*base).code == 1
    assert cli(*base, "--columns", "price,note").code == 0
    assert cli(*base, "--columns", "name").code == 1
    assert cli(*base, "--exclude-columns", "name").code == 0
    assert cli(*base, "--exclude-columns", "price, note").code == 1
    assert summary_of(cli(*base, "--columns", "note", "--json"))["columns"] == ["id", "note"]


def test_key(cli: Cli, node_options: NodeOptions, equal: list[Database]) -> None:
    for node in equal:
        node.execute("ALTER TABLE items DROP CONSTRAINT items_pkey, ALTER id DROP NOT NULL")
    equal[1].execute("UPDATE items SET note = 'x' WHERE id = 5")
    keyless = cli("diff", "items", *node_options(equal), "--json")
    assert (keyless.json["pairs"]["n1/n2"]["changed"], keyless.json["pairs"]["n1/n2"]["missing"]) == (0, 1)
    keyed = cli("diff", "items", *node_options(equal), "--json", "--key", "name,id")
    assert keyed.json["pairs"]["n1/n2"]["changed"] == 1
    assert summary_of(keyed)["primary_key"] == ["name", "id"]


def test_table_filter(cli: Cli, node_options: NodeOptions, drifted: list[Database]) -> None:
    ran = cli("diff", "items", *node_options(drifted), "--filter", "id BETWEEN 8 AND 20", "--json")
    assert (ran.code, ran.json["rows_checked"]) == (0, 13)
    assert summary_of(ran)["table_filter"] == "id BETWEEN 8 AND 20"
    assert cli("diff", "items", *node_options(drifted), "--filter", "note = 'n' AND id = 7").code == 1
    # Characters with a meaning in the formatting of Python or psycopg.
    assert (
        cli(
            "diff", "items", *node_options(drifted), "--filter", "name LIKE '%{}%s' AND id % 2 = 0", "--no-require-rows"
        ).code
        == 0
    )


def test_no_snapshot(cli: Cli, node_options: NodeOptions, equal: list[Database]) -> None:
    def proof(*options: str) -> Any:
        ran = cli("diff", "items", *node_options(equal), "--json", *options)
        report = json.loads(Path(ran.json["report"]).read_text(encoding="utf-8"))
        return report["proof"]["one_snapshot_a_node"], bool(report["proof"]["nodes"]["n1"]["snapshot"]), ran.json

    assert proof()[:2] == (True, True)
    one, exported, found = proof("--no-snapshot")
    assert (one, exported) == (False, False)
    assert "no snapshot" in found["remarks"][0]


def test_block_size_and_its_limits(cli: Cli, node_options: NodeOptions, equal: list[Database]) -> None:
    refused = cli("diff", "items", *node_options(equal), "--block-size", 10)
    assert refused.code == 2
    assert "--block-size: must be between 1000 and 1000000" in refused.err
    assert "--override-block-size" in refused.err
    allowed = cli("diff", "items", *node_options(equal), "--block-size", 10, "--override-block-size", "--json")
    assert allowed.code == 0
    assert 5 <= allowed.json["blocks"] <= 8
    assert summary_of(allowed)["block_size"] == 10


def test_settings_are_in_the_report(cli: Cli, node_options: NodeOptions, equal: list[Database]) -> None:
    options = {
        "compare_unit_size": 7,
        "concurrency_factor": 1.5,
        "max_connections": 3,
        "max_diff_rows": 99,
        "recheck": 0,
        "recheck_wait": 0.5,
        "numeric": "representation",
    }
    flat = [part for name, value in options.items() for part in ("--" + name.replace("_", "-"), value)]
    found = summary_of(cli("diff", "items", *node_options(equal), *flat, "--block-timeout", 30, "--json"))
    assert {name: found[name] for name in options} == options


def test_numeric(cli: Cli, node_options: NodeOptions, equal: list[Database]) -> None:
    equal[0].execute("UPDATE items SET price = 3000.00 WHERE id = 9")
    equal[1].execute("UPDATE items SET price = 3000.0 WHERE id = 9")
    assert cli("diff", "items", *node_options(equal)).code == 0
    assert cli("diff", "items", *node_options(equal), "--numeric", "representation").code == 1


def test_compare_unit_size_splits_down(cli: Cli, node_options: NodeOptions, drifted: list[Database]) -> None:
    # The result does not depend on the size of units.
    for size in (1, 2, 7, 1000):
        found = cli("diff", "items", *node_options(drifted), "--compare-unit-size", size, "--json").json["pairs"][
            "n1/n2"
        ]
        assert (found["missing"], found["extra"], found["changed"]) == (2, 3, 1)


def test_recheck_and_its_wait(cli: Cli, node_options: NodeOptions, drifted: list[Database]) -> None:
    def seconds(*options: object) -> float:
        return float(cli("diff", "items", *node_options(drifted), *options, "--json").json["seconds"])

    assert seconds("--recheck", 2, "--recheck-wait", 0.3) >= 0.6
    assert seconds("--recheck", 0, "--recheck-wait", 30) < 20


def test_report_dir_and_task_db(cli: Cli, node_options: NodeOptions, drifted: list[Database], tmp_path: Path) -> None:
    reports, store = tmp_path / "reports", tmp_path / "own" / "tasks.db"
    reports.mkdir()
    ran = cli("diff", "items", *node_options(drifted), "--report-dir", reports, "--task-db", store, "--json")
    assert Path(ran.json["report"]).parent == reports
    assert [path.suffix for path in reports.iterdir()] == [".json"]
    assert oct(Path(ran.json["report"]).stat().st_mode)[-3:] == "600"
    assert not (tmp_path / "tasks.db").exists()
    assert [task["task_id"] for task in cli("tasks", "--task-db", store, "--json").json] == [ran.json["task_id"]]


@pytest.fixture
def sessions_seen(server: Server) -> SessionsSeen:
    """`sessions_seen(database, work)`: the maximum number of sessions of trueup in a database while `work` runs."""

    def watch(database: Database, work: Callable[[], object]) -> int:
        most, done = 0, threading.Event()
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'trueup%%' AND datname = %s"

        def look() -> None:
            nonlocal most
            while not done.is_set():
                row = connection.execute(query, (database.name,)).fetchone()
                most = max(most, int(row[0]) if row else 0)
                time.sleep(0.002)

        import psycopg

        # Connected before the work starts.
        with psycopg.connect(server.uri(), autocommit=True) as connection:
            watcher = threading.Thread(target=look)
            watcher.start()
            try:
                work()
            finally:
                done.set()
                watcher.join()
        return most

    return watch


@pytest.mark.parametrize("most", [2, 3])
def test_max_connections(
    cli: Cli, node_options: NodeOptions, drifted: list[Database], sessions_seen: SessionsSeen, most: int
) -> None:
    slow = "pg_sleep(0.005) IS NOT NULL"
    options = (
        "--block-size",
        5,
        "--override-block-size",
        "--concurrency-factor",
        4,
        "--filter",
        slow,
        "--allow-functions=pg_sleep",
    )

    def work() -> None:
        assert cli("diff", "items", *node_options(drifted), *options, "--max-connections", most).code == 1

    assert sessions_seen(drifted[0], work) == most


def test_the_option_engine(cli: Cli, node_options: NodeOptions, equal: list[Database], spark: Spark) -> None:
    local = node_options(equal)
    assert cli("diff", "items", *local, "--json").json["engine"] == "local"
    ran = cli("diff", "items", *local, "--engine", "spark", "--json")
    assert (ran.code, ran.json["engine"], ran.json["verdict"]) == (0, "spark", "MATCH")


# Help.


def commands() -> dict[str, click.Command]:
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def test_every_option_is_documented() -> None:
    for name, command in commands().items():
        assert command.help, name
        for part in command.params:
            if isinstance(part, click.Option):
                assert part.help, f"trueup {name} {part.opts}"


def test_the_required_options_exist() -> None:
    required = (
        "config cluster nodes node block-size override-block-size concurrency-factor max-connections compare-unit-size "
        "max-diff-rows filter columns exclude-columns key recheck recheck-wait no-snapshot engine master remote "
        "quiet json task-db report-dir"
    )
    known = {option for part in commands()["diff"].params for option in part.opts}
    assert {f"--{name}" for name in required.split()} <= known


@pytest.mark.parametrize("verb", ["", "diff", "check", "completion", "demo", "doctor", "init", "report", "tasks"])
def test_help_is_on_stdout(cli: Cli, verb: str) -> None:
    ran = cli(*verb.split(), "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: trueup {verb}".rstrip())


@pytest.mark.parametrize(
    "arguments", [["--help"], *([verb, "--help"] for verb in ("diff", "tasks", "doctor", "completion")), ["--version"]]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from trueup.cli.main import run; code = run(sys.argv[1:]);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=90, check=True
    )
    assert done.stderr.strip() == "[] 0"


@pytest.mark.parametrize("module", ["diff", "repair", "sync", "switchover", "validate", "tube"])
def test_verbs_for_tables_of_postgresql_do_not_import_what_files_need(module: str) -> None:
    """A comparison of two small tables takes less time than to import Arrow."""
    code = f"import sys, trueup.api.{module}; print(sorted({set(HEAVY[:7])!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_arguments_show_the_help(cli: Cli) -> None:
    ran = cli()
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Usage: trueup")


def test_output_writes_a_page_besides_the_report(
    cli: Cli, node_options: NodeOptions, drifted: list[Database], tmp_path: Path
) -> None:
    ran = cli("diff", "items", *node_options(drifted), "--output", "json", "--output", "html", "--json")
    assert ran.code == 1
    page, report = Path(ran.json["page"]), Path(ran.json["report"])
    assert (page.suffix, page.stem) == (".html", report.stem)
    assert oct(page.stat().st_mode)[-3:] == "600"
    # `trueup report` writes the same page.
    cli("report", report, "--output", "html", "--to", tmp_path / "later.html")
    assert (tmp_path / "later.html").read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    alone = cli("diff", "items", *node_options(drifted), "--output", "html")
    assert "  page: " in alone.out
    assert "next: open the page" in alone.out
    assert cli("diff", "items", *node_options(drifted), "--json").json["page"] == ""


def test_output_can_be_configured(
    cli: Cli, node_options: NodeOptions, drifted: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUEUP__DIFF__OUTPUT", "json, html")
    assert Path(cli("diff", "items", *node_options(drifted), "--json").json["page"]).is_file()
    monkeypatch.setenv("TRUEUP__DIFF__OUTPUT", "pdf")
    ran = cli("diff", "items", *node_options(drifted))
    assert ran.code == 2
    assert "must be some of json, html, parquet" in ran.err


def test_a_page_that_cannot_be_written_does_not_fail_the_diff(
    cli: Cli, node_options: NodeOptions, drifted: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def full(path: Path) -> Iterator[Any]:
        with private_file(path) as file:
            file.write("<html>")
            raise OSError(28, "No space left on device")
            yield file

    monkeypatch.setattr(html, "private_file", full)
    ran = cli("diff", "items", *node_options(drifted), "--output", "html", "--json")
    assert (ran.code, ran.json["verdict"], ran.json["page"]) == (1, "DIFFER", "")
    assert Path(ran.json["report"]).is_file()
    (remark,) = ran.json["remarks"]
    assert "No space left on device" in remark
    assert f"trueup report {ran.json['task_id'][:8]} --output html" in remark
