"""The command `trueup`: its verbs by name, the options of every command, and how errors are printed."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from types import FrameType

import click

from trueup.cli.alerts import after_command, before_command
from trueup.cli.environment import add_variables, is_on
from trueup.cli.every import add_log_options, show_logs
from trueup.cli.output import echo
from trueup.config.logs import hide, shows_json
from trueup.config.secrets import mask
from trueup.config.visible import one_line
from trueup.errors import CheckFailed, ConfigError, Interrupted, TrueupError

# Verb -> the module and the name of its command; a module is imported only when its verb is used.
_VERBS = {
    "accept": ("trueup.cli.accept", "accept"),
    "certificate": ("trueup.cli.certificate", "certificate"),
    "check": ("trueup.cli.diff", "check"),
    "completion": ("trueup.cli.complete", "completion"),
    "demo": ("trueup.cli.demo", "demo"),
    "diff": ("trueup.cli.diff", "diff"),
    "difflog": ("trueup.cli.difflog", "difflog"),
    "doctor": ("trueup.cli.doctor", "doctor"),
    "history": ("trueup.cli.history", "history"),
    "init": ("trueup.cli.init", "init"),
    "repair": ("trueup.cli.repair", "repair"),
    "report": ("trueup.cli.tasks", "report"),
    "rerun": ("trueup.cli.repair", "rerun"),
    "schedule": ("trueup.cli.schedule", "schedule"),
    "serve": ("trueup.cli.serve", "serve"),
    "switchover": ("trueup.cli.switchover", "switchover"),
    "schema-diff": ("trueup.cli.schema", "schema_diff"),
    "sync": ("trueup.cli.sync", "sync"),
    "tasks": ("trueup.cli.tasks", "tasks"),
    "tube": ("trueup.cli.tube", "tube"),
    "undo": ("trueup.cli.repair", "undo"),
    "validate": ("trueup.cli.validate", "validate"),
    "prove": ("trueup.cli.prove", "prove"),
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_VERBS)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # click would print an empty line to stderr, which is no log record.
            raise click.Abort from None

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _VERBS:
            near = get_close_matches(name, _VERBS, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; commands: {', '.join(sorted(_VERBS))}"
            raise click.UsageError(f"there is no command '{name}'{hint}", ctx)
        module, attribute = _VERBS[name]
        command: click.Command = getattr(import_module(module), attribute)
        add_log_options(command)
        add_variables(command, name)
        if ctx.resilient_parsing:
            from trueup.cli.complete import add_completion

            add_completion(command)
        return command


# New objects between two garbage collections. Python's 700 are exceeded hundreds of times by the imports of a command.
_NEW_OBJECTS = 50_000
# The end of the cures of errors of Spark: see `engine.failures`.
_OR_LOCAL = ", or use --engine local"
# For an error of a server, whose message says what to fix. A defect has its own cure.
_NO_CURE = "fix what the message names, and run the command again"


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="trueup", message="trueup %(version)s")
def trueup() -> None:
    """Compare, repair and synchronise tables of PostgreSQL databases, and prove the result.

    \b
    Examples:
      trueup demo
      trueup init
      trueup doctor
      trueup diff public.orders --cluster shop
      trueup --log-format json check public.orders --cluster shop

    Exit codes: 0 all that was requested was compared and is equal, 1 differences, 2 an error or anything not compared,
    130 interrupted.
    """


add_log_options(trueup)


def main() -> None:
    """Run the command and exit with its code."""
    gc.set_threshold(max(_NEW_OBJECTS, gc.get_threshold()[0]), *gc.get_threshold()[1:])
    # What is still needed at the end is given back by the system: Python would visit all of it, several times.
    atexit.register(gc.freeze)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command with these arguments; returns the exit code."""
    if "_TRUEUP_COMPLETE" in os.environ:
        from trueup.cli.complete import answer

        return answer(trueup)
    signal.signal(signal.SIGTERM, _stop)
    try:
        before_command()
        code = _run(arguments)
        after_command(arguments)
        return code
    finally:
        hide()


def _run(arguments: list[str]) -> int:
    verbose = "-v" in arguments or "--verbose" in arguments or is_on("TRUEUP_VERBOSE")
    try:
        show_logs()
        code = trueup.main(arguments, prog_name="trueup", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _print_error(Interrupted("stopped by the user"), verbose)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _print_error(_usage_error(error), verbose=False)
    except TrueupError as error:
        return _print_error(_with_fitting_cure(error, arguments), verbose)
    except SystemExit:
        # The reader of stdout has closed it. Click would exit with 1, which means "differences".
        return 2
    except Exception as error:
        from trueup.engine.failures import error_of

        shown = error_of(error)
        shown.__cause__ = error
        return _print_error(_with_fitting_cure(shown, arguments), verbose)


def _with_fitting_cure(error: TrueupError, arguments: Sequence[str]) -> TrueupError:
    """Return the error without the advice to use another engine if the command has no option for it."""
    if not error.cure.endswith(_OR_LOCAL):
        return error
    command: click.Command = trueup
    for word in arguments:
        if isinstance(command, click.Group):
            # A word that is not a command is the value of an option.
            with suppress(click.UsageError):
                command = command.get_command(click.Context(command), word) or command
    if not any(parameter.name == "engine" for parameter in command.params):
        error.cure = error.cure.removesuffix(_OR_LOCAL)
    return error


def _print_error(error: TrueupError, verbose: bool) -> int:
    """Print what failed, where, and what to do; as one log record if the log is JSON. Return the exit code."""
    cure = error.cure or ("" if isinstance(error, Interrupted) else _NO_CURE)
    trace = "".join(traceback.format_exception(error)) if verbose and not isinstance(error, Interrupted) else ""
    if shows_json():
        fields = {"node": error.node, "table": error.table, "block": error.block, "cure": cure, "traceback": trace}
        known = {name: value for name, value in fields.items() if value}
        logging.getLogger(__name__).error("%s", error, extra={**known, "exit_code": error.exit_code})
        return error.exit_code
    # Indented: the message of an error at its end may have several lines.
    lines = [f"  {line}" for line in mask(trace).rstrip().split("\n")] if trace else []
    if isinstance(error, CheckFailed) and len(error.reasons) > 1:
        lines += ["trueup: cannot start:", *(f"  - {one_line(reason)}" for reason in error.reasons)]
    else:
        first, *more = str(error).splitlines() or [""]
        lines += [f"trueup: {first}", *(f"  {line.strip()}" for line in more)]
    lines += [f"  what to do: {one_line(cure)}"] if cure else []
    echo("\n".join(lines), err=True)
    return error.exit_code


def _usage_error(error: click.ClickException) -> TrueupError:
    """Return an error of click as one of trueup."""
    context = getattr(error, "ctx", None)
    cure = f"see {context.command_path if context else 'trueup'} --help"
    return ConfigError(error.format_message().rstrip("."), cure=cure)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
