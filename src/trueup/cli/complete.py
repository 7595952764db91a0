"""`trueup completion`: commands and options by click; nodes, clusters, tables and tasks from local files.

A completion never fails, prints nothing but its answer, and connects to no server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from trueup.cli.output import echo

VARIABLE = "_TRUEUP_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
Shell = Literal["bash", "zsh", "fish"]
Item = CompletionItem[str]
_MAX_TASKS = 50


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: Shell) -> None:
    """Print the completion script for SHELL.

    It completes commands, options and their choices, the nodes and clusters of the configuration, tables that were
    compared before, and the ids of tasks. It connects to no server.

    \b
    Examples:
      eval "$(trueup completion bash)"
      trueup completion bash > ~/.local/share/bash-completion/completions/trueup
      trueup completion zsh > ~/.zfunc/_trueup
      trueup completion fish > ~/.config/fish/completions/trueup.fish

    The first example is for the current shell or for ~/.bashrc (with zsh: ~/.zshrc); the others are for new shells.
    Needs bash 4.4 or newer. For zsh, write `fpath+=~/.zfunc` before `autoload -Uz compinit && compinit`.
    """
    echo(script(ctx.find_root().command, shell))


def script(command: click.Command, shell: Shell) -> str:
    """Return the completion script of a shell."""
    return get_completion_class(shell)(command, {}, "trueup", VARIABLE).source()


def answer(command: click.Command) -> int:
    """Print the completions that the script requests; nothing if there are none."""
    try:
        return shell_complete(command, {}, "trueup", VARIABLE, os.environ[VARIABLE])
    except Exception:
        return 1


def add_completion(command: click.Command) -> None:
    """Add completion to the parameters of a command, by their names and metavars."""
    for part in command.params:
        complete = _BY_NAME.get(part.name or "") or _BY_METAVAR.get(part.metavar or "")
        if complete and part.type.name == "text":
            part.type = _Completed(complete)
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            add_completion(subcommand)


class _Completed(click.types.StringParamType):
    """A text with completion."""

    def __init__(self, find: Callable[[Mapping[str, Any], str], Iterable[Item]]) -> None:
        self._find = find

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
        """Return the completions that start with the incomplete word."""
        # Options of a group apply to its commands too: `trueup tasks --task-db F show <TAB>`.
        options: dict[str, Any] = {}
        for context in (ctx.parent, ctx):
            options.update({name: value for name, value in (context.params if context else {}).items() if value})
        # A shell prints an item as it is: a name with control characters is not completed.
        items = [item for item in self._find(options, incomplete) if f"{item.value}{item.help or ''}".isprintable()]
        return [item for item in items if item.type != "plain" or item.value.startswith(incomplete)]


def _clusters(options: Mapping[str, Any], word: str) -> Iterable[Item]:
    settings = _settings(options)["clusters"]
    return [CompletionItem(name, help=_shown_words(setting.value)) for name, setting in settings.items()]


def _nodes(options: Mapping[str, Any], word: str) -> Iterable[Item]:
    """Complete the last name of a list with commas."""
    settings = _settings(options)
    before, comma, _ = word.rpartition(",")
    named = before.split(",")
    cluster = settings["clusters"].get(options.get("cluster", ""))
    names = cluster.words({}) if cluster else tuple(settings["nodes"])
    return [CompletionItem(before + comma + name) for name in names if name not in named]


def _tables(options: Mapping[str, Any], word: str) -> Iterable[Item]:
    """Return the tables that were compared before, the most recent first."""
    from trueup.db.names import display_name

    names = dict.fromkeys(
        display_name(task.schema, task.table_name) for task in _tasks(options) if task.schema and task.table_name
    )
    return [CompletionItem(name) for name in names]


def _task_ids(options: Mapping[str, Any], word: str) -> Iterable[Item]:
    # Commands accept the first characters of an id; a longer word is completed to the full id.
    size = 8 if len(word) <= 8 else None
    return [
        CompletionItem(task.task_id[:size], help=f"{task.task_type} {task.schema}.{task.table_name} {task.task_status}")
        for task in _tasks(options)
    ]


def _files(options: Mapping[str, Any], word: str) -> Iterable[Item]:
    return [CompletionItem(word, type="file")]


def _folders(options: Mapping[str, Any], word: str) -> Iterable[Item]:
    return [CompletionItem(word, type="dir")]


_BY_NAME = {"cluster": _clusters, "names": _nodes, "table": _tables, "tables": _tables, "task_id": _task_ids}
_BY_METAVAR = {"FILE": _files, "DIR": _folders, "ID": _task_ids, "TASK": _task_ids}


def _settings(options: Mapping[str, Any]) -> Any:
    """Return the raw settings: only names are needed, so no address is parsed and no ${VAR} is replaced."""
    from trueup.config import sources

    file = sources.find_file(options.get("config"), os.environ)
    settings = sources.from_file(sources.read_file(file) if file else {}, file)
    sources.add_environment(settings, os.environ)
    return settings


def _tasks(options: Mapping[str, Any]) -> Any:
    from trueup.store.file import tasks_db_path
    from trueup.store.look import recent_tasks

    known = options.get("own_db") or options.get("task_db") or os.environ.get("TRUEUP_TASKS_DB")
    configured = None if known else _settings(options)["tasks"].get("task_db")
    path = tasks_db_path(known, str(configured.convert(str, os.environ)) if configured else "")
    return recent_tasks(path, _MAX_TASKS)


def _shown_words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
