"""Options across all commands: one name, one type, one meaning; and what `trueup --help` imports."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import click
import pytest

from trueup.cli.environment import COMMAND_LINE_ONLY, long_name, options_of, shown_variable, without_variable
from trueup.cli.every import EVERY
from trueup.cli.main import run
from trueup.cli.reference import contexts, default_of

COMMANDS = {context.command_path: context.command for context in contexts()}

# Options whose meaning depends on the command, and why.
DIFFERENT = {
    "config": "trueup difflog reads difflog.toml",
    "from": "the node has another role in a sync, a switchover and a validation",
    "to": "a node, a sink, or a file",
    "name": "the name of a sync or of a validation",
    "schema": "schemas to compare, or the schema of the tubes",
    "partitions": "the number of partitions, or a list of them",
    "output": "the formats depend on the command",
    "query": "the keys to touch, or what is compared of a node",
    "map": "names of a target, or the mapping of a comparison",
    "list": "what is listed depends on the command",
    "key": "the columns of a key, or a public key",
    "force": "what is overwritten or lost depends on the command",
    "keep": "the number of runs to keep, or a flag of the demos",
    "insecure": "what is not encrypted depends on the command",
    "task-db": "trueup serve reads several",
    "log": "a log of the version log, or a log file",
    "validation": "instead of a report, or as a proof",
}
# Options whose help text starts with the same words in every command; the rest depends on the command.
SAME_START = {
    "engine": "Where ",
    "exclude-columns": "Do not compare these columns",
    "exclude-tables": "Exclude ",
    "filter": "Only rows that meet this condition",
    "limit": "Maximum entries to show",
    "max-connections": "Maximum connections per node",
    "meta": "Node of the meta database",
    "quiet": "Print no progress and no summary",
    "tables": "Only tables",
    "watch": "Repeat until Ctrl-C",
}
# Names that were replaced, and by what.
SYNONYMS = {
    "skip": "exclude-tables",
    "skip-file": "exclude-tables-file",
    "leave-out": "exclude-tables",
    "exclude": "exclude-columns",
    "table-filter": "filter",
    "every": "interval",
    "patience": "timeout",
    "route": "map",
    "rename": "map-columns",
}
# Flags that a variable may set: they write no more than the command does without them, and give up no protection.
HARMLESS_FLAGS = {
    "both-sides",
    *("bidirectional", "fix-nulls", "insert-only", "majority", "upsert-only", "fire-triggers"),
    *(
        "create-schema",
        "detach",
        "dry-run",
        "explain",
        "follow",
        "gentle",
        "json",
        "keep",
        "list",
        "no-snapshot",
        "no-spark",
    ),
    *(
        "no-doctor",
        "once",
        "override-block-size",
        "quiet",
        "restart",
        "rollback",
        "sample",
        "schedule",
        "until-close",
        "until-empty",
        "verbose",
        "watch",
        "with-ended",
    ),
}


def meaning(name: str, option: click.Option) -> str:
    """Return what must be the same in all commands: help text without default, type, placeholder, repeatable."""
    text = without_variable(option.help or "").replace(f" [default: {default_of(option)}]", "")
    if name in SAME_START:
        return text[: len(SAME_START[name])]
    return f"{text} ({option.type.name.removesuffix(' range')}, {option.metavar}, {option.multiple})"


def test_an_option_means_the_same_in_every_command() -> None:
    meanings: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, command in COMMANDS.items():
        for option in options_of(command):
            meanings[long_name(option)][meaning(long_name(option), option)].append(path)
    several = {name: dict(texts) for name, texts in meanings.items() if len(texts) > 1}
    assert {name: texts for name, texts in several.items() if name not in DIFFERENT} == {}
    assert {*DIFFERENT} <= {*several}, "an option of the list that no longer differs"
    assert {name: list(meanings[name]) for name in SAME_START} == {name: [text] for name, text in SAME_START.items()}


def test_no_variable_turns_reading_into_writing_or_confirms_a_danger() -> None:
    flags = {long_name(option) for command in COMMANDS.values() for option in options_of(command) if option.is_flag}
    decided = HARMLESS_FLAGS | COMMAND_LINE_ONLY
    assert flags - decided == set(), "decide for each new flag: COMMAND_LINE_ONLY of cli/environment.py, or harmless"
    assert set() == HARMLESS_FLAGS & COMMAND_LINE_ONLY
    assert decided <= {long_name(option) for command in COMMANDS.values() for option in options_of(command)}
    for command in COMMANDS.values():
        for option in options_of(command):
            if long_name(option) in COMMAND_LINE_ONLY:
                assert (option.envvar, shown_variable(option)) == (None, "")


@pytest.mark.parametrize(
    ("path", "option"),
    [
        (path, option)
        for path, command in COMMANDS.items()
        for option in options_of(command)
        if long_name(option) in COMMAND_LINE_ONLY
    ],
)
def test_a_variable_of_such_an_option_is_refused(
    path: str, option: click.Option, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *words = path.split()
    variable = "_".join(("TRUEUP", *words, long_name(option))).upper().replace("-", "_")
    monkeypatch.setenv(variable, "1" if option.is_flag else "apply")
    required = [
        argument
        for part in COMMANDS[path].params
        if part.required
        for argument in ([part.opts[0], "x"] if isinstance(part, click.Option) else ["x"])
    ]
    assert run([*words, *required]) == 2
    assert (
        f"{variable} is set, but --{long_name(option)} can be given on the command line only" in capsys.readouterr().err
    )


def test_no_option_has_a_replaced_name() -> None:
    names = {long_name(option) for command in COMMANDS.values() for option in options_of(command)}
    assert names & set(SYNONYMS) == set()


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_the_options_of_every_command(path: str) -> None:
    assert set(EVERY) <= {long_name(option) for option in options_of(COMMANDS[path])}


@pytest.mark.parametrize("path", COMMANDS)
def test_help_texts_are_sentences(path: str) -> None:
    for option in options_of(COMMANDS[path]):
        text = without_variable(option.help or "").split(" [default:")[0].strip()
        assert text[:1].isupper() or text[:1].isdigit() or text.split()[0].rstrip(":").islower(), text
        assert text.endswith("."), f"{path} --{long_name(option)}: {text}"


def test_help_imports_no_slow_package() -> None:
    program = (
        "import sys\n"
        "from trueup.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "print(sorted(name for name in sys.modules if '.' not in name), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.replace("'", "").strip("[]\n").split(", "))
    assert "trueup" in loaded
    assert loaded & {"psycopg", "pyspark", "pandas", "pyarrow", "numpy", "rich", "jinja2", "yaml", "deltalake"} == set()
