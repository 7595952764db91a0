"""`trueup validate`: check every row change on the target, soon after it happened."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trueup.cli.options import inline_nodes, verbose_option
from trueup.errors import CheckFailed, ConfigError, TrueupError

if TYPE_CHECKING:
    from trueup.api.validate import Validations

F = TypeVar("F", bound=Callable[..., Any])

_CONFIG = click.option("--config", metavar="FILE", help="The configuration file. [env: TRUEUP_CONFIG]")
_INLINE = click.option(
    "--node", "inline", multiple=True, metavar="NAME=URI", help="A node by address, ${VAR} in it filled in."
)
_META = click.option(
    "--meta", default="", metavar="NODE", help="Where the validation is kept; without it, the node that knows it."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON value.")
_BEGIN_SECONDS = 60.0
_SIZES = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}


class _Bytes(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().upper()
        digits = text.rstrip("KMGTB ")
        unit = text[len(digits) :].strip()
        if not digits.isdigit() or unit not in _SIZES:
            self.fail(f"{value!r} is no size: write it like 64GB", param, ctx)
        return int(digits) * _SIZES[unit]


def _common(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    def give(command: F) -> F:
        for option in reversed((*options, _META, _CONFIG, _INLINE, _JSON, verbose_option)):
            command = option(command)
        return command

    return give


_CHANGEABLE = (
    click.option(
        "--mode", type=click.Choice(["full", "fast"]), help="full compares columns, fast existence. [default: full]"
    ),
    click.option("--check-interval", type=float, metavar="S", help="Seconds between two looks at a row. [default: 1]"),
    click.option(
        "--row-error-delay", type=float, metavar="S", help="Seconds until a row that differs is an error. [default: 30]"
    ),
    click.option(
        "--initial-delay",
        type=float,
        metavar="S",
        help="Seconds after which errors are told even if the syncer was never reached; 0: not before. [default: 0]",
    ),
    click.option(
        "--float-tolerance", type=float, metavar="R", help="Floats are equal within this relative error. [default: 0]"
    ),
    click.option(
        "--max-rows-per-second", type=int, metavar="N", help="Rows read on each node at most; 0: no limit. [default: 0]"
    ),
    click.option(
        "--max-retained-wal",
        type=_Bytes(),
        metavar="SIZE",
        help="Drop the slot and stop if it keeps more log on the source; 0: no limit. [default: 64GB]",
    ),
    click.option(
        "--sweep",
        type=float,
        metavar="SHARE",
        help="Also look at rows that do not change, block by block, for this share of the time. [default: 0]",
    ),
    click.option("--cutover", metavar="LSN", help="Judge changes up to this position of the log only, and stop there."),
)
_START = (
    click.option("--from", "source", metavar="NODE", help="The node that is written to."),
    click.option("--to", "target", metavar="NODE", help="The node that is filled from it."),
    click.option(
        "--tables",
        multiple=True,
        metavar="T,…",
        help="Tables of the source, also SCHEMA.*; may be given several times.",
    ),
    click.option("--name", default="", metavar="V", help="Its name. [default: FROM_TO]"),
    click.option("--route", "routes", multiple=True, metavar="T=T2", help="Another name on the target; S.*=S2.* too."),
    click.option("--rename", "renames", multiple=True, metavar="T.C=C2", help="Another name of a column there."),
    click.option("--filter", "filters", multiple=True, metavar="'T: SQL'", help="Only these rows go to the target."),
    click.option(
        "--constant", "constants", multiple=True, metavar="T.C=V", help="A column of the target with one value."
    ),
    click.option("--exclude", "excludes", multiple=True, metavar="T.C", help="A column that is not compared."),
    click.option(
        "--syncer",
        metavar="KIND:NAME",
        help="Who applies: subscription:NAME, slot:NAME (on the source), sync:NAME, lag:SECONDS. [default: found]",
    ),
    click.option("--lag", type=float, metavar="S", help="The same as --syncer lag:S."),
    click.option(
        "--source",
        "changes",
        type=click.Choice(["log", "tube", "changelog"]),
        help="Where changes come from; tube and changelog (its own triggers) need no wal_level=logical. [default: log]",
    ),
    click.option("--tube", metavar="NAME", help="With --source tube: the tube that the tables are attached to."),
    click.option("--publication", metavar="NAME", help="Use this publication instead of one of its own."),
    click.option(
        "--max-connections", type=int, metavar="N", help="Connections to each node at most, 3 or more. [default: 6]"
    ),
    click.option(
        "--engine",
        type=click.Choice(["auto", "spark", "local"]),
        default="auto",
        show_default=True,
        help="local: threads of this process; spark: a streaming job; auto: spark if a master or remote is configured.",
    ),
    click.option("--detach", is_flag=True, help="Run in the background, with a log file."),
    click.option("--log", "log_file", metavar="FILE", help="Of --detach. [default: trueup-validate-NAME.log]"),
    click.option("--quiet", "-q", is_flag=True, help="Say nothing while it runs."),
)


@click.group()
def validate() -> None:
    """Check every row change on the target, soon after it happened, while something replicates.

    \b
    Examples:
      trueup validate start --from n1 --to n2 --tables public.orders,public.items --name shop
      trueup validate status shop --watch
      trueup validate errors shop
      trueup validate fence shop
      trueup validate stop shop
    """


@validate.command()
@_common(*_START, *_CHANGEABLE)
def start(**options: Any) -> int:
    """Begin a validation, or go on with one, until it is stopped.

    It runs here until Ctrl-C or `trueup validate stop`; --detach leaves it in the background. A validation that is
    known goes on where it was: its name is enough.

    \b
    Examples:
      trueup validate start --from n1 --to n2 --tables public.orders
      trueup validate start --from n1 --to n2 --tables 'shop.*' --route 'shop.*=public.*' --mode fast --name shop
      trueup validate start --from n1 --to n2 --tables public.orders --lag 10 --sweep 0.05 --detach
      trueup validate start --name shop
    """
    given = dict(options)
    detach, log_file, quiet = given.pop("detach"), given.pop("log_file"), given.pop("quiet")
    engine, as_json, lag = given.pop("engine"), given.pop("as_json"), given.pop("lag")
    name = given.pop("name") or f"{given['source']}_{given['target']}".lower().replace("-", "_").replace(".", "_")
    validations = _validations(given)
    if lag is not None:
        if given["syncer"]:
            raise ConfigError("--lag and --syncer cannot be given together", cure="give one of them")
        given["syncer"] = f"lag:{lag:g}"
    given["tables"] = tuple(part.strip() for text in given["tables"] for part in text.split(",") if part.strip())
    for key in ("routes", "renames", "filters", "constants", "excludes", "tables"):
        given[key] = tuple(given[key]) or None
    validations.create(name, **given)
    if detach:
        log, pid = _detached(validations, name, log_file)
        _show(as_json, {"name": name, "pid": pid, "log": str(log)}, f"{name} runs as process {pid}; its log is {log}")
        return 0
    reason = validations.start(name, engine=engine, say=_silent if quiet else _say)
    _show(as_json, {"name": name, "reason": reason}, f"{name}: {reason}")
    return 0


@validate.command()
@click.argument("name")
@_common(
    click.option("--timeout", type=float, default=60.0, show_default=True, metavar="S", help="Seconds to wait for it.")
)
def stop(name: str, timeout: float, as_json: bool, **options: Any) -> None:
    """End the running validation NAME; `trueup validate start` goes on with it.

    \b
    Examples:
      trueup validate stop shop
    """
    was = _validations(options).stop(name, timeout=timeout)
    _show(as_json, {"stopped": was}, f"{name} is stopped" if was else f"{name} was not running")


@validate.command()
@click.argument("name", required=False)
@_common(
    click.option("--watch", is_flag=True, help="Show it again and again."),
    click.option("--every", type=float, default=2.0, show_default=True, metavar="S", help="Of --watch, in seconds."),
)
def status(name: str | None, watch: bool, every: float, as_json: bool, **options: Any) -> int:
    """How validations stand: all of them, or NAME; exit code 1 if there are errors, 2 if something is not looked at.

    \b
    Examples:
      trueup validate status
      trueup validate status shop --watch
      trueup validate status shop --json
    """
    from trueup.verbs.validate.status import status_text

    validations = _validations(options)
    while True:
        names = [name] if name else [each for each, _ in validations.names()]
        found = [validations.status(each) for each in names]
        plain = [each.as_json() for each in found]
        text = "\n".join(status_text(each) for each in found) or "there are no validations"
        _show(as_json, plain[0] if name else plain, text)
        if not watch:
            return 2 if any(each.blind_spots for each in found) else 1 if any(each.open_errors for each in found) else 0
        time.sleep(every)


@validate.command()
@click.argument("name")
@_common(
    click.option(
        "--state",
        type=click.Choice(["new", "ignored", "resolved", "all"]),
        default="new",
        show_default=True,
        help="Errors in this state.",
    ),
    click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="At most."),
)
def errors(name: str, state: str, limit: int, as_json: bool, **options: Any) -> int:
    """The rows of NAME that stayed wrong, with both sides; exit code 1 if there are any.

    \b
    Examples:
      trueup validate errors shop
      trueup validate errors shop --state all --json
    """
    found = _validations(options).errors(name, state=state, most=limit)
    text = "\n".join(_error_text(each) for each in found) or "no errors"
    _show(as_json, [each.as_json() for each in found], text)
    return 1 if found else 0


_IDS = click.argument("ids", nargs=-1, type=int, metavar="[ID]...")
_ALL = click.option("--all", "everything", is_flag=True, help="All of them.")


@validate.command()
@click.argument("name")
@_IDS
@_common(_ALL)
def ignore(name: str, ids: tuple[int, ...], everything: bool, as_json: bool, **options: Any) -> None:
    """Ignore the errors ID of NAME: they stay listed, and are no errors any more.

    \b
    Examples:
      trueup validate ignore shop 3 4
      trueup validate ignore shop --all
    """
    count = _validations(options).mark(name, _chosen(ids, everything), "ignored")
    _show(as_json, {"ignored": count}, f"{count} errors are ignored")


@validate.command()
@click.argument("name")
@_IDS
@_common(_ALL)
def resolve(name: str, ids: tuple[int, ...], everything: bool, as_json: bool, **options: Any) -> None:
    """Call the errors ID of NAME resolved, by hand; rows that became equal are resolved by themselves.

    \b
    Examples:
      trueup validate resolve shop 3
    """
    count = _validations(options).mark(name, _chosen(ids, everything), "resolved")
    _show(as_json, {"resolved": count}, f"{count} errors are resolved")


@validate.command()
@click.argument("name")
@_IDS
@_common(_ALL)
def clear(name: str, ids: tuple[int, ...], everything: bool, as_json: bool, **options: Any) -> None:
    """Forget the errors ID of NAME.

    \b
    Examples:
      trueup validate clear shop --all
    """
    count = _validations(options).clear(name, _chosen(ids, everything))
    _show(as_json, {"cleared": count}, f"{count} errors are forgotten")


@validate.command()
@click.argument("name")
@_common(*_CHANGEABLE)
def update(name: str, as_json: bool, **options: Any) -> None:
    """Change settings of NAME, also while it runs.

    \b
    Examples:
      trueup validate update shop --row-error-delay 5 --mode fast
      trueup validate update shop --cutover 16/B374D848
    """
    validations = _validations(options)
    given = {key: value for key, value in options.items() if value is not None}
    if not given:
        raise ConfigError("nothing to change was given", cure="see trueup validate update --help")
    validations.update(name, **given)
    _show(as_json, given, f"{name}: {', '.join(f'{key} = {value}' for key, value in given.items())}")


@validate.command()
@click.argument("name")
@_common()
def delete(name: str, as_json: bool, **options: Any) -> None:
    """Stop NAME, and remove its slot and publication, or its change log, and all that it noted.

    \b
    Examples:
      trueup validate delete shop
    """
    dropped = _validations(options).delete(name)
    tail = "with its slot or change log" if dropped else "(there was no slot, and no change log)"
    _show(as_json, {"deleted": name, "slot": dropped}, f"{name} is deleted, {tail}")


@validate.command()
@click.argument("name")
@_common(click.option("--timeout", type=float, default=300.0, show_default=True, metavar="S", help="Seconds to wait."))
def fence(name: str, timeout: float, as_json: bool, **options: Any) -> int:
    """Write a marker on the source, and wait until all before it is validated by NAME.

    Exit codes: 0 all is proven, 1 there are errors, 2 it is not validated, or not all of it was looked at.

    \b
    Examples:
      trueup validate fence shop --timeout 60
    """
    found = _validations(options).fence(name, timeout=timeout)
    word = "validated" if found.validated else "not validated"
    lines = [f"{name}: {word} through {found.position} after {found.seconds:.1f} s, {found.errors:,} errors"]
    _show(as_json, found.as_json(), "\n".join([*lines, *(f"  {reason}" for reason in found.reasons)]))
    return found.exit_code


def _error_text(each: Any) -> str:
    columns = f" in {', '.join(each.columns)}" if each.columns else ""
    lines = [
        f"{each.id}: {each.source} ({', '.join(each.key)}) {each.kind}{columns}, {each.state},"
        f" since {each.first_at.isoformat(timespec='seconds')}, last seen {each.last_at.isoformat(timespec='seconds')}"
    ]
    names = each.columns or list(each.source_row or each.target_row or {})
    for name in names:
        mine = "(no row)" if each.source_row is None else repr(each.source_row.get(name))
        theirs = "(no row)" if each.target_row is None else repr(each.target_row.get(name))
        lines.append(f"   {name}: {mine} -> {theirs}")
    return "\n".join(lines)


def _chosen(ids: tuple[int, ...], everything: bool) -> list[int] | None:
    if bool(ids) == everything:
        raise ConfigError("which errors?", cure="give their numbers (trueup validate errors), or --all")
    return None if everything else list(ids)


def _validations(options: dict[str, Any]) -> Validations:
    from trueup.api.validate import Validations

    return Validations(
        meta=options.pop("meta"), nodes=inline_nodes(options.pop("inline")), config=options.pop("config")
    )


def _detached(validations: Validations, name: str, log_file: str | None) -> tuple[Path, int]:
    """The same command as a process of its own, in a session of its own; it lives on when this one ends.

    It is waited for until it validates: one that cannot begin is an error here, and not a line in a file.
    """
    import os
    import subprocess
    import sys

    if validations.status(name).state == "running":
        raise CheckFailed([f"the validation {name} is running already"], cure=f"trueup validate status {name}")
    with validations.meta_of(name) as meta:
        before = meta.need(name).started_at
    path = Path(log_file or f"trueup-validate-{name}.log").absolute()
    arguments = [each for each in sys.argv[1:] if each != "--detach"]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        written = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "trueup", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={key: value for key, value in os.environ.items() if key != "TRUEUP_VALIDATE_START_DETACH"},
        )
    give_up = time.monotonic() + _BEGIN_SECONDS
    while process.poll() is None and time.monotonic() < give_up:
        with validations.meta_of(name) as meta:
            # Written down when its sessions are open and its tables planned.
            if meta.need(name).started_at != before:
                return path, process.pid
        time.sleep(0.1)
    said = path.read_bytes()[written:].decode(errors="replace").strip()
    if process.poll() is None:
        raise TrueupError(f"{name} (process {process.pid}) does not validate yet: {said}", cure=f"look at {path}")
    raise TrueupError(f"{name} could not begin: {said}", cure=f"its log is {path}")


def _show(as_json: bool, value: Any, text: str) -> None:
    click.echo(json.dumps(value) if as_json else text)


def _say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def _silent(text: str) -> None:
    return None
