"""What a shell may complete: commands and options by click; nodes, clusters, tables and tasks from this disk.

A completion never fails, never says anything but its answer, and never asks a server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

VARIABLE = "_TRUEUP_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
Shell = Literal["bash", "zsh", "fish"]
Item = CompletionItem[str]
_MOST = 50


def script(command: click.Command, shell: Shell) -> str:
    """The script that teaches a shell to ask us."""
    return get_completion_class(shell)(command, {}, "trueup", VARIABLE).source()


def answer(command: click.Command) -> int:
    """What the script asks, answered on stdout; where nothing is known, nothing is said."""
    try:
        return shell_complete(command, {}, "trueup", VARIABLE, os.environ[VARIABLE])
    except Exception:
        return 1


def give_completion(command: click.Command) -> None:
    """Let the parameters of a command complete what they name; told by their names and metavars."""
    for part in command.params:
        known = _BY_NAME.get(part.name or "") or _BY_METAVAR.get(part.metavar or "")
        if known and part.type.name == "text":
            part.type = _Known(known)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            give_completion(each)


class _Known(click.types.StringParamType):
    """A text of which some values are known."""

    def __init__(self, find: Callable[[Mapping[str, Any], str], Iterable[Item]]) -> None:
        self._find = find

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
        """The known values that go on as the word begins."""
        # Options of a group count for its commands too: `trueup tasks --task-db F show <TAB>`.
        given: dict[str, Any] = {}
        for context in (ctx.parent, ctx):
            given.update({name: value for name, value in (context.params if context else {}).items() if value})
        found = self._find(given, incomplete)
        return [item for item in found if item.type != "plain" or item.value.startswith(incomplete)]


def _clusters(given: Mapping[str, Any], word: str) -> Iterable[Item]:
    settings = _settings(given)["clusters"]
    return [CompletionItem(name, help=_shown_words(setting.value)) for name, setting in settings.items()]


def _nodes(given: Mapping[str, Any], word: str) -> Iterable[Item]:
    """A list with commas: what stands before the last one stays."""
    settings = _settings(given)
    before, comma, _ = word.rpartition(",")
    taken = before.split(",")
    cluster = settings["clusters"].get(given.get("cluster", ""))
    names = cluster.words({}) if cluster else tuple(settings["nodes"])
    return [CompletionItem(before + comma + name) for name in names if name not in taken]


def _tables(given: Mapping[str, Any], word: str) -> Iterable[Item]:
    """Tables that were compared before, the last one first."""
    from trueup.db.names import display_name

    names = dict.fromkeys(
        display_name(task.schema, task.table_name) for task in _tasks(given) if task.schema and task.table_name
    )
    return [CompletionItem(name) for name in names]


def _task_ids(given: Mapping[str, Any], word: str) -> Iterable[Item]:
    # The short form is enough for every command; a longer word goes on to the whole.
    size = 8 if len(word) <= 8 else None
    return [
        CompletionItem(task.task_id[:size], help=f"{task.task_type} {task.schema}.{task.table_name} {task.task_status}")
        for task in _tasks(given)
    ]


def _files(given: Mapping[str, Any], word: str) -> Iterable[Item]:
    return [CompletionItem(word, type="file")]


def _folders(given: Mapping[str, Any], word: str) -> Iterable[Item]:
    return [CompletionItem(word, type="dir")]


_BY_NAME = {"cluster": _clusters, "names": _nodes, "table": _tables, "tables": _tables, "task_id": _task_ids}
_BY_METAVAR = {"FILE": _files, "DIR": _folders, "ID": _task_ids, "TASK": _task_ids}


def _settings(given: Mapping[str, Any]) -> Any:
    """The raw settings: names are wanted, so no address is read and no ${VAR} needs to be set."""
    from trueup.config import sources

    file = sources.find_file(given.get("config"), os.environ)
    settings = sources.from_file(sources.read_file(file) if file else {}, file)
    sources.add_environment(settings, os.environ)
    return settings


def _tasks(given: Mapping[str, Any]) -> Any:
    from trueup.store.file import tasks_db_path
    from trueup.store.look import recent_tasks

    known = given.get("own_db") or given.get("task_db") or os.environ.get("TRUEUP_TASKS_DB")
    configured = None if known else _settings(given)["tasks"].get("task_db")
    path = tasks_db_path(known, str(configured.convert(str, os.environ)) if configured else "")
    return recent_tasks(path, _MOST)


def _shown_words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
