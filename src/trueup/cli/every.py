"""Options of every command: --verbose, --log-level and --log-format; and --quiet, which hides notes as well."""

from __future__ import annotations

import os

import click

from trueup.cli.environment import long_name
from trueup.config.logs import FORMATS, LEVELS, hide_notes, set_format, set_level, show
from trueup.errors import ConfigError

LEVEL_VARIABLE = "TRUEUP_LOG_LEVEL"
FORMAT_VARIABLE = "TRUEUP_LOG_FORMAT"


def show_logs() -> None:
    """Show log records on stderr, as the environment says; options change that when they are parsed."""
    show(_from_environment(LEVEL_VARIABLE, LEVELS), _from_environment(FORMAT_VARIABLE, FORMATS))


def add_log_options(command: click.Command) -> None:
    """Add the options of every command to this one and all commands below it, once."""
    options = {long_name(option): option for option in command.params if isinstance(option, click.Option)}
    command.params += [make() for name, make in _OPTIONS.items() if name not in options]
    if "quiet" in options:
        options["quiet"].callback = _quiet
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            add_log_options(subcommand)


def _verbose_option() -> click.Option:
    # Read by `main` before the command is parsed.
    text = "Show the traceback of an error. [env: TRUEUP_VERBOSE]"
    return click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, help=text)


def _level_option() -> click.Option:
    return click.Option(
        ["--log-level"],
        type=click.Choice(LEVELS, case_sensitive=False),
        expose_value=False,
        callback=lambda ctx, option, value: set_level(value) if value else None,
        help=f"Lowest level of log records on stderr. [default: info; with --quiet: error] [env: {LEVEL_VARIABLE}]",
    )


def _format_option() -> click.Option:
    return click.Option(
        ["--log-format"],
        type=click.Choice(FORMATS, case_sensitive=False),
        expose_value=False,
        callback=lambda ctx, option, value: set_format(value) if value else None,
        help=f"Format of log records on stderr. [default: text] [env: {FORMAT_VARIABLE}]",
    )


# The reference lists them once.
_OPTIONS = {"verbose": _verbose_option, "log-level": _level_option, "log-format": _format_option}
EVERY = tuple(_OPTIONS)


def _quiet(ctx: click.Context, option: click.Parameter, value: bool) -> bool:
    if value:
        hide_notes()
    return value


def _from_environment(variable: str, choices: tuple[str, ...]) -> str:
    value = os.environ.get(variable, "").strip().lower()
    if value and value not in choices:
        raise ConfigError(f"{variable}: '{value}' is not known", cure=f"use one of {', '.join(choices)}")
    return value
