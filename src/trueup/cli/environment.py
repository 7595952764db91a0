"""Environment variables of options: the variable of the setting, or one made of the command and the option."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import partial

import click

from trueup.errors import ConfigError

# The credentials of a search index (trueup.sinks.http); no option holds them.
SINK_VARIABLES = ("TRUEUP_SINK_API_KEY", "TRUEUP_SINK_USER", "TRUEUP_SINK_PASSWORD")
# Options that no variable and no setting can set: they turn reading into writing, delete, overwrite what another writer
# changed, or give up a protection. A variable that was exported once, for another command, must not do that.
COMMAND_LINE_ONLY = frozenset(
    (
        "abandon",
        "allow-actions",
        "accept-loss",
        "accept-schema",
        "all",
        "apply",
        "create-roles",
        "drop",
        "execute",
        "follow-ddl",
        "force",
        "insecure",
        "keep-closed",
        "no-owner",
        "no-recompute",
        "other-database",
        "reopen-old",
        "replicate",
        "require-rows",
        "retry",
        "show-rows",
        "stale",
        "stop",
        "with-history",
        "without-new",
        "without-old",
        "without-source",
        "without-target",
    )
)
_SHOWN = re.compile(r" ?\[env: ([^\]]+)\]")


def add_variables(command: click.Command, *path: str) -> None:
    """Add a variable to every option without one, such as TRUEUP_DIFF_JSON for `trueup diff --json`.

    The help of an option that overrides a setting has `[env: TRUEUP__SECTION__NAME]` already: the configuration reads
    that variable. The options of COMMAND_LINE_ONLY have none.
    """
    for option in options_of(command):
        variable = "_".join(("TRUEUP", *path, long_name(option))).upper().replace("-", "_")
        if long_name(option) in COMMAND_LINE_ONLY:
            option.callback = partial(_refuse_variable, variable)
        elif not shown_variable(option):
            option.envvar = variable
            option.help = f"{option.help or ''} [env: {option.envvar}]".strip()
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            add_variables(part, *path, name)


def _refuse_variable(variable: str, ctx: click.Context, option: click.Parameter, value: object) -> object:
    """Raise ConfigError if the variable is set; ignoring it would surprise the user who set it."""
    if os.environ.get(variable) and not ctx.resilient_parsing:
        name = option.opts[0]
        raise ConfigError(
            f"{variable} is set, but {name} can be given on the command line only",
            cure=f"unset the variable, and write {name} into the command where you want it",
        )
    return value


def shown_variable(option: click.Option) -> str:
    """Return the variable in an option's help; `NAME=value` if only one value makes sense."""
    match = _SHOWN.search(option.help or "")
    return match[1] if match else ""


def without_variable(text: str) -> str:
    """Return a help text without the variable."""
    return _SHOWN.sub("", text)


def long_name(option: click.Option) -> str:
    """Return `block-size` for `--block-size`."""
    return max(option.opts, key=len).lstrip("-")


def stray_variables(root: click.Context) -> dict[str, str]:
    """Return the TRUEUP_… variables of the environment that no option reads, with the most similar known name."""
    known = {
        shown_variable(option).partition("=")[0] for command in all_commands(root) for option in options_of(command)
    }
    known.update(SINK_VARIABLES)
    strays = [
        name
        for name in os.environ
        # A name with two underscores is a setting: the configuration refuses unknown settings itself.
        if name.startswith("TRUEUP_") and not name.startswith(("TRUEUP__", "TRUEUP_TEST_")) and name not in known
    ]
    return {name: next(iter(get_close_matches(name, known, n=1)), "") for name in sorted(strays)}


def all_commands(context: click.Context) -> Iterator[click.Command]:
    """Yield the command of a context and all commands below it."""
    yield context.command
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            part = context.command.get_command(context, name)
            if part is not None:
                yield from all_commands(click.Context(part, parent=context, info_name=name))


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options of a command: all but --help and --version."""
    return [option for option in command.params if isinstance(option, click.Option) and not option.is_eager]


def is_on(variable: str) -> bool:
    """Return whether a variable of a flag is set to a true value."""
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "t", "yes", "y", "on")
