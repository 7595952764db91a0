"""The command `trueup`: its verbs by name, and what an error looks like."""

from __future__ import annotations

import os
import signal
import sys
from difflib import get_close_matches
from importlib import import_module
from types import FrameType

import click

from trueup.cli.environment import give_variables, is_on
from trueup.errors import CheckFailed, ConfigError, Interrupted, TrueupError

# Verb -> the module and the name of its command; a module is imported only when its verb is asked for.
_VERBS = {
    "check": ("trueup.cli.diff", "check"),
    "completion": ("trueup.cli.completion", "completion"),
    "demo": ("trueup.cli.demo", "demo"),
    "diff": ("trueup.cli.diff", "diff"),
    "difflog": ("trueup.cli.difflog", "difflog"),
    "doctor": ("trueup.cli.doctor", "doctor"),
    "init": ("trueup.cli.init", "init"),
    "repair": ("trueup.cli.repair", "repair"),
    "report": ("trueup.cli.tasks", "report"),
    "rerun": ("trueup.cli.repair", "rerun"),
    "schedule": ("trueup.cli.schedule", "schedule"),
    "switchover": ("trueup.cli.switchover", "switchover"),
    "schema-diff": ("trueup.cli.schema", "schema_diff"),
    "sync": ("trueup.cli.sync", "sync"),
    "tasks": ("trueup.cli.tasks", "tasks"),
    "tube": ("trueup.cli.tube", "tube"),
    "undo": ("trueup.cli.repair", "undo"),
    "validate": ("trueup.cli.validate", "validate"),
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _VERBS:
            near = get_close_matches(name, _VERBS, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(sorted(_VERBS))}"
            raise click.UsageError(f"there is no command '{name}'{hint}", ctx)
        module, command = _VERBS[name]
        found: click.Command = getattr(import_module(module), command)
        give_variables(found, name)
        if ctx.resilient_parsing:
            from trueup.cli.complete import give_completion

            give_completion(found)
        return found


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="trueup", message="trueup %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Show where an error came from. [env: TRUEUP_VERBOSE]")
def trueup(verbose: bool) -> None:
    """Keep copies of database tables true, and prove it.

    \b
    Examples:
      trueup demo
      trueup init
      trueup doctor
      trueup diff public.orders --cluster shop

    Exit codes: 0 all compared and equal, 1 differences, 2 trouble or anything not looked at, 130 interrupted.
    """


def main() -> None:
    """Run the command and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command with these arguments; returns the exit code."""
    if "_TRUEUP_COMPLETE" in os.environ:
        from trueup.cli.complete import answer

        return answer(trueup)
    signal.signal(signal.SIGTERM, _stop)
    verbose = "-v" in arguments or "--verbose" in arguments or is_on("TRUEUP_VERBOSE")
    try:
        code = trueup.main(arguments, prog_name="trueup", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Abort:
        return _tell(Interrupted("stopped by the user"), verbose)
    except KeyboardInterrupt:
        return _tell(Interrupted("stopped by the user"), verbose)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _tell(_wrong_usage(error), verbose=False)
    except TrueupError as error:
        return _tell(error, verbose)
    except SystemExit:
        # Whoever read our output has gone. Click would exit with 1, which says "differences".
        return 2
    except Exception as error:
        from trueup.config.secrets import mask

        defect = TrueupError(
            f"unexpected {type(error).__name__}: {mask(str(error))}",
            cure="this is a defect of trueup: run again with -v and report what it prints",
        )
        defect.__cause__ = error
        return _tell(defect, verbose)


def _tell(error: TrueupError, verbose: bool) -> int:
    """One clear message: what happened, where, and what to do."""
    if verbose and not isinstance(error, Interrupted):
        import traceback

        from trueup.config.secrets import mask

        _say(mask("".join(traceback.format_exception(error))).rstrip())
    reasons = error.reasons if isinstance(error, CheckFailed) else str(error).splitlines()
    if len(reasons) > 1:
        _say("trueup: cannot start:")
        for reason in reasons:
            _say(f"  - {reason}")
    else:
        _say(f"trueup: {error}")
    cure = error.cure or ("" if isinstance(error, Interrupted) else "run again with -v to see where it came from")
    if cure:
        _say(f"  what to do: {cure}")
    return error.exit_code


def _wrong_usage(error: click.ClickException) -> TrueupError:
    """What click says of wrong arguments, in the words of all our errors."""
    context = getattr(error, "ctx", None)
    cure = f"see {context.command_path if context else 'trueup'} --help"
    return ConfigError(error.format_message().rstrip("."), cure=cure)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
