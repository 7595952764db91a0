"""Every option has an environment variable: that of its setting, else one made of the command and the option."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import click

# The log-in of a search index (trueup.sinks.http), which no option may hold.
SINK_VARIABLES = ("TRUEUP_SINK_API_KEY", "TRUEUP_SINK_USER", "TRUEUP_SINK_PASSWORD")
_SHOWN = re.compile(r" ?\[env: ([^\]]+)\]")


def give_variables(command: click.Command, *path: str) -> None:
    """Give every option without a variable its own, as TRUEUP_DIFF_JSON is of `trueup diff --json`; shown in the help.

    An option that stands for a setting says `[env: TRUEUP__SECTION__NAME]` in its help already: the configuration
    reads that one.
    """
    for option in options_of(command):
        if not shown_variable(option):
            option.envvar = "_".join(("TRUEUP", *path, long_name(option))).upper().replace("-", "_")
            option.help = f"{option.help or ''} [env: {option.envvar}]".strip()
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            give_variables(part, *path, name)


def shown_variable(option: click.Option) -> str:
    """The variable that an option's help names; `NAME=value` where only one value makes sense."""
    found = _SHOWN.search(option.help or "")
    return found[1] if found else ""


def without_variable(text: str) -> str:
    """A help text without the variable in it."""
    return _SHOWN.sub("", text)


def long_name(option: click.Option) -> str:
    """`block-size` of `--block-size`."""
    return max(option.opts, key=len).lstrip("-")


def stray_variables(root: click.Context) -> dict[str, str]:
    """Variables of the environment that look like ours and that no option reads -> the one that may be meant."""
    from difflib import get_close_matches

    known = {
        shown_variable(option).partition("=")[0] for command in all_commands(root) for option in options_of(command)
    }
    known.update(SINK_VARIABLES)
    strays = [
        name
        for name in os.environ
        # Whatever has two underscores is a setting: the configuration refuses those that it does not know.
        if name.startswith("TRUEUP_") and not name.startswith(("TRUEUP__", "TRUEUP_TEST_")) and name not in known
    ]
    return {name: next(iter(get_close_matches(name, known, n=1)), "") for name in sorted(strays)}


def all_commands(context: click.Context) -> Iterator[click.Command]:
    """The command of a context, and all below it."""
    yield context.command
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            part = context.command.get_command(context, name)
            if part is not None:
                yield from all_commands(click.Context(part, parent=context, info_name=name))


def options_of(command: click.Command) -> list[click.Option]:
    """The options that say how to do something, and so have a variable: not --help and --version."""
    return [option for option in command.params if isinstance(option, click.Option) and not option.is_eager]


def is_on(variable: str) -> bool:
    """Whether a variable of a flag is set to something that means yes."""
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "t", "yes", "y", "on")
