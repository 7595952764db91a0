"""The reference page is complete and current, its examples are valid, and the variable of every option works."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from support.fixtures import Cli
from trueup.cli import reference_settings
from trueup.cli.diff import diff as diff_command
from trueup.cli.environment import COMMAND_LINE_ONLY, long_name, options_of, shown_variable
from trueup.cli.main import trueup as group
from trueup.cli.reference import contexts, examples_of, reference, undocumented
from trueup.config.load import load
from trueup.errors import ConfigError, TrueupError
from trueup.testing.postgres import Database
from trueup.verbs.difflog.config import load_difflog

ROOT = Path(__file__).parents[2]
CONTEXTS = {context.command_path: context for context in contexts()}
OPTIONS = {
    f"{path} {max(option.opts, key=len)}": option
    for path, context in CONTEXTS.items()
    for option in options_of(context.command)
}
# Variables that a module reads itself, each tested where that module is.
READ_ELSEWHERE = {
    *("TRUEUP_CONFIG", "TRUEUP_DIFFLOG", "TRUEUP_TASKS_DB", "TRUEUP_VERBOSE", "TRUEUP_LOG_LEVEL", "TRUEUP_LOG_FORMAT"),
}
SMALLEST = """
[entity]
name = "visit"
key = ["VisitID"]
fast_version = "V"
[[log]]
name = "money"
key = ["VisitID"]
[log.columns]
Revenue = "sum"
[clickhouse]
path = "ch"
table = "visits"
"""


def test_the_page_matches_the_commands_and_settings() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert page == reference(), "docs/reference.md is stale: run `make reference`"


def test_nothing_is_undocumented() -> None:
    assert undocumented() == []


def test_an_undocumented_option_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = [click.Option(["--mystery"]), click.Argument(["riddle"])]
    monkeypatch.setattr(diff_command, "params", [*diff_command.params, *bare])
    monkeypatch.setattr(group, "help", "No examples.")
    monkeypatch.setattr("trueup.config.template.TEMPLATE", "[diff]\n# Explained.\n#block_size = 1\n#retries = 3\n")
    found = undocumented()
    assert {"trueup diff RIDDLE", "trueup diff --mystery", "trueup: Examples"} <= set(found)
    assert {"[diff] retries", "[diff] columns", "[tasks] task_db"} <= set(found)
    assert "[diff] block_size" not in found


def test_every_example_can_be_typed() -> None:
    for line in (line for context in CONTEXTS.values() for line in examples_of(context.command)):
        words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"'))
        words = words[: words.index(">")] if ">" in words else words
        assert words[0] == "trueup", line
        _parse(group, "trueup", words[1:])


def _parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    """Parse arguments with click, without running the command."""
    context = command.make_context(name, words, parent=parent)
    rest = [*context._protected_args, *context.args]
    if isinstance(command, click.Group) and rest:
        found, part, rest = command.resolve_command(context, rest)
        assert part is not None
        _parse(part, found or "", rest, context)


def test_an_example_with_a_wrong_option_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        _parse(group, "trueup", ["tasks", "show", "3f2a9c1e", "--jsn"])


def test_every_option_has_a_variable() -> None:
    """In one test: there are about a thousand options."""
    seen = set()
    for name, option in OPTIONS.items():
        if long_name(option) not in COMMAND_LINE_ONLY:
            shown = shown_variable(option)
            if not shown.startswith("TRUEUP__") or shown not in seen:
                _check_variable(name, shown)
            seen.add(shown)


def _check_variable(name: str, shown: str) -> None:
    variable, _, value = shown.partition("=")
    assert variable.startswith("TRUEUP_"), name
    if variable.startswith("TRUEUP__"):
        section, setting = variable.removeprefix("TRUEUP__").lower().split("__")
        default = getattr(getattr(load(env={}), section), setting)
        # An unknown setting is refused.
        found = getattr(getattr(load(env={variable: value or str(default)}), section), setting)
        assert (found != default) == bool(value), name
    elif variable not in READ_ELSEWHERE:
        assert OPTIONS[name].envvar == variable, name


def test_variables_replace_options(cli: Cli, equal: list[Database], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a diff with variables only."""
    nodes = " ".join(f"n{number}={node.uri}" for number, node in enumerate(equal, 1))
    monkeypatch.setenv("TRUEUP_DIFF_NODE", nodes)
    monkeypatch.setenv("TRUEUP_DIFF_JSON", "1")
    monkeypatch.setenv("TRUEUP__DIFF__SNAPSHOT", "false")
    monkeypatch.setenv("TRUEUP__DIFF__RECHECK", "0")
    ran = cli("diff", "items")
    assert (ran.code, ran.json["verdict"], ran.json["nodes"]) == (0, "MATCH", ["n1", "n2"])
    assert any("no snapshot" in remark for remark in ran.json["remarks"])
    monkeypatch.setenv("TRUEUP_TASKS_LIMIT", "0")
    monkeypatch.setenv("TRUEUP_TASKS_JSON", "true")
    assert len(cli("tasks").json) == 1


def test_verbose_by_variable(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in cli("diff", "items", "--config", "nowhere.toml").err
    monkeypatch.setenv("TRUEUP_VERBOSE", "1")
    assert "Traceback" in cli("diff", "items", "--config", "nowhere.toml").err


def test_the_help_shows_variables_and_examples(cli: Cli) -> None:
    for path in CONTEXTS:
        shown = cli(*path.split()[1:], "--help").out
        assert "Examples:" in shown, path
        for option in options_of(CONTEXTS[path].command):
            assert f"{shown_variable(option)}]" in shown, path


def test_required_settings_are_required(tmp_path: Path) -> None:
    """All other settings of difflog.toml have the defaults of the page."""
    file = tmp_path / "difflog.toml"
    file.write_text(SMALLEST)
    found = load_difflog(str(file))
    assert (found.work, found.state.path) == (str(tmp_path / "difflog"), str(tmp_path / "difflog" / "state"))
    required = [
        line.split("`")[1] for line in reference().split("## difflog.toml")[1].splitlines() if "| required |" in line
    ]
    assert required == ["name", "key", "fast_version", "name", "key", "table"]
    for line in [line for line in SMALLEST.splitlines() if line.partition(" =")[0] in required]:
        file.write_text(SMALLEST.replace(line + "\n", "", 1))
        with pytest.raises(ConfigError):
            load_difflog(str(file))


def test_a_table_cell_cannot_break_its_table() -> None:
    assert "| `[a\\|b]` |" in reference_settings.table(("x",), [["`[a|b]`"]])
    assert issubclass(ConfigError, TrueupError)
