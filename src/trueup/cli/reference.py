"""The reference, made from the commands and the settings themselves: `make reference` writes docs/reference.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from trueup.cli.environment import long_name, options_of, shown_variable, without_variable
from trueup.cli.main import trueup
from trueup.cli.reference_settings import code, settings_part, table, undocumented_settings

_HEAD = """\
# Reference

<!-- Made by `make reference` from the commands and the settings: change those, not this page. -->

Every command, option and setting. `trueup COMMAND --help` says the same of one command; the how-tos are in the
[index](README.md).

## Exit codes

| code | meaning |
|---|---|
| 0 | what was asked for is done; of a comparison: all was compared and is equal; of the doctor: no check failed |
| 1 | of a comparison or a proof: there are differences |
| 2 | trouble, wrong usage, a failed check, or anything that was not looked at. Trouble outranks difference |
| 130 | interrupted: Ctrl-C, or a stop signal |

## Environment variables

Every option has one, named in the tables below. An option wins over a variable, a variable over the file.

- `TRUEUP__SECTION__NAME`, with two underscores, is a setting of `trueup.toml`, for all commands:
  `TRUEUP__DIFF__BLOCK_SIZE=5000`, `TRUEUP__NODES__N1=postgresql://db1/shop`, `TRUEUP__CLUSTERS__SHOP=n1,n2`,
  `TRUEUP__SPARK__CONF__SPARK_EXECUTOR_MEMORY=2g`.
- `TRUEUP_COMMAND_OPTION` is an option of one command: `TRUEUP_DIFF_CLUSTER=shop`. A flag is set by `1`, `true`, `yes`
  or `on`. An option that may be given several times takes values with blanks between them.
- `TRUEUP_CONFIG`, `TRUEUP_DIFFLOG`, `TRUEUP_TASKS_DB` name files; `TRUEUP_VERBOSE=1` is `-v` everywhere.
- `TRUEUP_SINK_API_KEY`, or `TRUEUP_SINK_USER` and `TRUEUP_SINK_PASSWORD`, log in to a search index (`trueup tube run`).
- `PGPASSWORD`, `PGSERVICE` and the others of libpq work, and those of Spark: `JAVA_HOME`, `SPARK_LOCAL_DIRS`.
"""
_DEFAULT = re.compile(r" ?\[default: ([^\]]+)\]")
_EXAMPLES = re.compile(r"\x08\s*\nExamples?:\n((?:[ \t]+.*\n?)+)")


def reference() -> str:
    """The whole page."""
    parts = [_HEAD, "## Commands\n"]
    parts += [_command_part(context) for context in contexts()]
    parts.append(settings_part())
    return "\n".join(parts).rstrip() + "\n"


def undocumented() -> list[str]:
    """Commands, arguments, options and settings of which the reference could not say what they are for."""
    return [*_undocumented_commands(), *undocumented_settings()]


def _undocumented_commands() -> Iterator[str]:
    for context in contexts():
        path, command = context.command_path, context.command
        if not help_of(command):
            yield path
        if not examples_of(command):
            yield f"{path}: Examples"
        for part in command.params:
            if isinstance(part, click.Argument):
                # Click's arguments have no help of their own: the command's text speaks of them, or of every choice.
                name = (part.metavar or part.name or "").strip("[].").upper()
                choices = [word in help_of(command) for word in getattr(part.type, "choices", ())]
                if name not in help_of(command) and not (choices and all(choices)):
                    yield f"{path} {name}"
        for option in options_of(command):
            if not _meaning(option):
                yield f"{path} --{long_name(option)}"
            elif not shown_variable(option):
                yield f"{path} --{long_name(option)}: environment variable"


def contexts(parent: click.Context | None = None, name: str = "trueup") -> Iterator[click.Context]:
    """A context for every command, as if it had been called."""
    if parent is None:
        context = click.Context(trueup, info_name=name, **trueup.context_settings)
    else:
        assert isinstance(parent.command, click.Group)
        command = parent.command.get_command(parent, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=parent)
    yield context
    if isinstance(context.command, click.Group):
        for part in context.command.list_commands(context):
            yield from contexts(context, part)


def help_of(command: click.Command) -> str:
    """A command's help, as its docstring has it."""
    return inspect.cleandoc(command.help or "")


def examples_of(command: click.Command) -> list[str]:
    """The command lines of the section Examples."""
    found = _EXAMPLES.search(help_of(command) + "\n")
    return [line.strip() for line in found[1].splitlines() if line.strip()] if found else []


def default_of(option: click.Option) -> str:
    """The default as text; empty where there is none."""
    said = _DEFAULT.search(option.help or "")
    if said:
        return said[1]
    return str(option.default) if option.show_default and option.default is not None else ""


def _command_part(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"### {context.command_path}\n", f"```text\n{usage}\n```\n"]
    lines += [f"{paragraph}\n" for paragraph in _paragraphs(_EXAMPLES.sub("", help_of(command) + "\n"))]
    if isinstance(command, click.Group):
        parts = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        rows = [(_link(f"{context.command_path} {name}"), part.get_short_help_str(200)) for name, part in parts if part]
        lines.append(table(("command", "meaning"), rows))
    examples = "\n".join(examples_of(command))
    lines.append(f"Examples:\n\n```sh\n{examples}\n```\n")
    arguments = [part for part in command.params if isinstance(part, click.Argument)]
    if arguments:
        lines.append(table(("argument", "", "default"), [_argument_row(part, context) for part in arguments]))
    options = [_option_row(part, context) for part in command.get_params(context) if isinstance(part, click.Option)]
    lines.append(table(("option", "meaning", "default", "variable"), options))
    return "\n".join(lines)


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _argument_row(argument: click.Argument, context: click.Context) -> tuple[str, ...]:
    shape = argument.make_metavar(context).strip("[]").removesuffix("]...")
    needed = "required" if argument.required else "may be left out"
    many = ", may be given several times" if argument.nargs == -1 else ""
    default = "" if argument.required or not isinstance(argument.default, (str, int)) else code(str(argument.default))
    choices = getattr(argument.type, "choices", ())
    one_of = f": one of {', '.join(map(code, choices))}" if choices else ""
    path = str(argument.default) if hasattr(argument.default, "__fspath__") else ""
    name = (argument.name or "").upper() if choices else shape
    return code(name), f"{needed}{many}{one_of}", default or (code(path) if path else "")


def _option_row(option: click.Option, context: click.Context) -> tuple[str, ...]:
    names = ", ".join(sorted((*option.opts, *option.secondary_opts), key=len))
    shape = "" if option.is_flag else f" {option.make_metavar(context)}"
    meaning = _meaning(option)
    if option.multiple:
        meaning += " May be given several times."
    if option.required:
        meaning += " Required."
    least = getattr(option.type, "min", None)
    if least is not None:
        meaning += f" At least {least}."
    default = default_of(option)
    variable = shown_variable(option)
    return (
        code(names + shape),
        meaning,
        code(default) if default else "",
        code(variable) if variable else "",
    )


def _meaning(option: click.Option) -> str:
    return _DEFAULT.sub("", without_variable(option.help or "")).strip()


def _link(path: str) -> str:
    return f"[{path}](#{path.replace(' ', '-')})"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
