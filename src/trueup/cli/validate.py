"""`trueup validate`: check every row change on the target soon after it is applied."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from trueup.cli import validate_options as options_of
from trueup.cli.metrics import PORT, serving_metrics
from trueup.cli.options import SHARED, comma_separated, inline_nodes, interval_option, timeout_option
from trueup.cli.output import show, show_cut
from trueup.cli.validate_options import with_options
from trueup.config.visible import as_lines
from trueup.config.wording import counted
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.api.validate import Validation
    from trueup.verbs.validate.row_errors import ErrorRow

_LISTS = ("tables", "routes", "renames", "filters", "constants", "exclude_columns", "allow_functions")


@click.group()
def validate() -> None:
    """Check every row change on the target, soon after the syncer has applied it.

    \b
    Examples:
      trueup validate start --from n1 --to n2 --tables public.orders,public.items --name shop
      trueup validate status shop --watch
      trueup validate errors shop
      trueup validate fence shop
      trueup validate stop shop
    """


@validate.command()
@with_options(*options_of.START, *options_of.CHANGEABLE, PORT)
def start(**options: Any) -> int:
    """Start a new validation, or continue an existing one.

    It runs in this process until Ctrl-C or `trueup validate stop`, or with --detach in the background. An existing
    validation continues from its last checkpoint; it needs only --name.

    \b
    Examples:
      trueup validate start --from n1 --to n2 --tables public.orders
      trueup validate start --from n1 --to n2 --tables 'shop.*' --map 'shop.*=public.*' --mode fast --name shop
      trueup validate start --from n1 --to n2 --tables public.orders --lag 10 --scrub-share 0.05 --detach
      trueup validate start --name shop
    """
    detach, log_file, quiet = options.pop("detach"), options.pop("log_file"), options.pop("quiet")
    engine, as_json, lag = options.pop("engine"), options.pop("as_json"), options.pop("lag")
    port = options.pop("metrics_port")
    default = f"{options['source']}_{options['target']}".lower().replace("-", "_").replace(".", "_")
    validation = _validation(options.pop("name") or default, options)
    if lag is not None:
        if options["syncer"]:
            raise ConfigError("--lag and --syncer cannot be used together", cure="use one of them")
        options["syncer"] = f"lag:{lag:g}"
    options["tables"] = comma_separated(",".join(options["tables"]))
    for key in _LISTS:
        options[key] = tuple(options[key]) or None
    validation.create(**options)
    name = validation.name
    if detach:
        from trueup.cli.validate_detach import start_detached

        path, pid = start_detached(validation, log_file)
        show(
            {"name": name, "pid": pid, "log": str(path)},
            f"{name} runs as process {pid}; its log is {path}",
            as_json=as_json,
        )
        return 0
    with serving_metrics(port, validation.config):
        reason = validation.start(engine=engine)
    show({"name": name, "reason": reason}, f"{name}: {reason}", as_json=as_json, quiet=quiet)
    return 0


@validate.command()
@click.argument("name")
@with_options(timeout_option(60.0))
def stop(name: str, timeout: float, as_json: bool, **options: Any) -> None:
    """Stop the running validation NAME. Continue it with `trueup validate start`.

    \b
    Examples:
      trueup validate stop shop
    """
    was_running = _validation(name, options).stop(timeout=timeout)
    show({"stopped": was_running}, f"{name} is stopped" if was_running else f"{name} was not running", as_json=as_json)


@validate.command()
@click.argument("name", required=False)
@with_options(SHARED["watch"], interval_option(2.0))
def status(name: str | None, watch: bool, interval: float, as_json: bool, **options: Any) -> int:
    """Show the status of all validations, or of NAME.

    Exit codes: 0 no open errors, 1 open errors, 2 something was not checked, or the validation does not run and has not
    reached its cut-over position: changes since then are not checked.

    \b
    Examples:
      trueup validate status
      trueup validate status shop --watch
      trueup validate status shop --json
    """
    from trueup.api.validate import Validation
    from trueup.verbs.validate.status import status_text

    meta = options["meta"]
    named = _validation(name or "", options)
    while True:
        validations = (named,) if name else Validation.all(meta=meta, config=named.config)
        statuses = [validation.status() for validation in validations]
        plain = [status.as_json() for status in statuses]
        text = "\n".join(status_text(status) for status in statuses) or "no validations exist"
        show(plain[0] if name else plain, text, as_json=as_json)
        if not watch:
            return max((status.exit_code for status in statuses), default=0)
        time.sleep(interval)


@validate.command()
@click.argument("name")
@with_options(options_of.STATE, SHARED["limit"])
def errors(name: str, state: str, limit: int, as_json: bool, **options: Any) -> int:
    """List the rows of NAME that stayed wrong, with the values on both nodes.

    Exit codes: 0 no errors in this state, 1 errors.

    \b
    Examples:
      trueup validate errors shop
      trueup validate errors shop --state all --json
    """
    validation = _validation(name, options)
    rows = validation.errors(state=state, limit=limit)
    show([row.as_json() for row in rows], "\n".join(_error_text(row) for row in rows) or "no errors", as_json=as_json)
    total = validation.count_errors(state=state) if len(rows) == limit else 0
    if total > len(rows):
        show_cut(len(rows), total, "errors", option=f"--limit {total}")
    return 1 if rows else 0


@validate.command()
@click.argument("name")
@options_of.IDS
@with_options(options_of.ALL)
def ignore(name: str, ids: tuple[int, ...], all_errors: bool, as_json: bool, **options: Any) -> None:
    """Ignore the errors ID of NAME: they stay listed and no longer count.

    \b
    Examples:
      trueup validate ignore shop 3 4
      trueup validate ignore shop --all
    """
    count = _validation(name, options).ignore(_selected(ids, all_errors))
    show({"ignored": count}, f"{counted(count, 'error')} ignored", as_json=as_json)


@validate.command()
@click.argument("name")
@options_of.IDS
@with_options(options_of.ALL)
def resolve(name: str, ids: tuple[int, ...], all_errors: bool, as_json: bool, **options: Any) -> None:
    """Resolve the errors ID of NAME by hand. Errors whose rows became equal are resolved automatically.

    \b
    Examples:
      trueup validate resolve shop 3
    """
    count = _validation(name, options).resolve(_selected(ids, all_errors))
    show({"resolved": count}, f"{counted(count, 'error')} resolved", as_json=as_json)


@validate.command()
@click.argument("name")
@options_of.IDS
@with_options(options_of.ALL)
def clear(name: str, ids: tuple[int, ...], all_errors: bool, as_json: bool, **options: Any) -> None:
    """Delete the errors ID of NAME from the list.

    \b
    Examples:
      trueup validate clear shop --all
    """
    count = _validation(name, options).clear(_selected(ids, all_errors))
    show({"cleared": count}, f"{counted(count, 'error')} deleted", as_json=as_json)


@validate.command()
@click.argument("name")
@with_options(*options_of.CHANGEABLE)
def update(name: str, as_json: bool, **options: Any) -> None:
    """Change settings of NAME, also while it runs.

    \b
    Examples:
      trueup validate update shop --row-error-delay 5 --mode fast
      trueup validate update shop --cutover 16/B374D848
    """
    validation = _validation(name, options)
    values = {key: value for key, value in options.items() if value is not None}
    if not values:
        raise ConfigError("no setting to change was given", cure="see trueup validate update --help")
    validation.update(**values)
    show(values, f"{name}: {', '.join(f'{key} = {value}' for key, value in values.items())}", as_json=as_json)


@validate.command()
@click.argument("name")
@options_of.TABLES
@with_options(*options_of.OF_TABLES, timeout_option(60.0))
def add(name: str, tables: tuple[str, ...], timeout: float, as_json: bool, **options: Any) -> None:
    """Add each TABLE to NAME, also while it runs. Rows that are there already are scrubbed once.

    \b
    Examples:
      trueup validate add shop public.customers
      trueup validate add shop 'stock.*' --map 'stock.*=public.*'
      trueup validate add shop public.events --filter "public.events: region = 'EU'"
    """
    validation = _validation(name, options)
    _show_tables(validation, "added", validation.add(tables, **options, timeout=timeout), as_json=as_json)


@validate.command()
@click.argument("name")
@options_of.TABLES
@with_options(timeout_option(60.0))
def remove(name: str, tables: tuple[str, ...], timeout: float, as_json: bool, **options: Any) -> None:
    """Remove each TABLE from NAME, with its errors, also while it runs.

    \b
    Examples:
      trueup validate remove shop public.customers
    """
    validation = _validation(name, options)
    _show_tables(validation, "removed", validation.remove(tables, timeout=timeout), as_json=as_json)


@validate.command()
@click.argument("name")
@options_of.TABLES
@with_options(timeout_option(60.0))
def restart(name: str, tables: tuple[str, ...], timeout: float, as_json: bool, **options: Any) -> None:
    """Forget what NAME found about each TABLE, scrub all its rows once, and validate its changes from now on.

    Works also while NAME runs, and for a table that was stopped.

    \b
    Examples:
      trueup validate restart shop public.customers
    """
    validation = _validation(name, options)
    _show_tables(validation, "restarted", validation.restart(tables, timeout=timeout), as_json=as_json)


@validate.command()
@click.argument("name")
@with_options()
def delete(name: str, as_json: bool, **options: Any) -> None:
    """Stop NAME and delete it, with its slot and publication or its change log, and its errors.

    \b
    Examples:
      trueup validate delete shop
    """
    existed = _validation(name, options).delete()
    rest = "with its slot or change log" if existed else "(it had no slot and no change log)"
    show({"deleted": name, "slot": existed}, f"{name} deleted, {rest}", as_json=as_json)


@validate.command()
@click.argument("name")
@with_options(timeout_option(300.0))
def fence(name: str, timeout: float, as_json: bool, **options: Any) -> int:
    """Write a marker on the source and wait until NAME has validated every change before it.

    Exit codes: 0 every change is proven, 1 open errors, 2 not validated in time, or something was not checked.

    \b
    Examples:
      trueup validate fence shop --timeout 60
    """
    result = _validation(name, options).fence(timeout=timeout)
    word = "validated" if result.validated else "not validated"
    lines = [
        f"{name}: {word} through {result.position} after {result.seconds:.1f} s, {counted(result.errors, 'error')}"
    ]
    lines += [f"  {reason}" for reason in (*result.reasons, *result.remarks)]
    show(result.as_json(), as_lines(lines), as_json=as_json)
    return result.exit_code


def _show_tables(validation: Validation, done: str, tables: tuple[str, ...], *, as_json: bool) -> None:
    is_running = validation.status().state == "running"
    rest = "" if is_running else f"; {validation.name} does not run, the next start uses it"
    show({"tables": tables, "running": is_running}, f"{done}: {', '.join(tables)}{rest}", as_json=as_json)


def _error_text(row: ErrorRow) -> str:
    columns = f" in {', '.join(row.columns)}" if row.columns else ""
    lines = [
        f"{row.id}: {row.source} ({', '.join(row.key)}) {row.kind}{columns}, {row.state},"
        f" since {row.first_at.isoformat(timespec='seconds')}, last seen {row.last_at.isoformat(timespec='seconds')}"
    ]
    for name in row.columns or list(row.source_row or row.target_row or {}):
        source = "(no row)" if row.source_row is None else repr(row.source_row.get(name))
        target = "(no row)" if row.target_row is None else repr(row.target_row.get(name))
        lines.append(f"   {name}: {source} -> {target}")
    return as_lines(lines)


def _selected(ids: tuple[int, ...], all_errors: bool) -> list[int] | None:
    if bool(ids) == all_errors:
        raise ConfigError(
            "the command needs either error numbers or --all",
            cure="give the numbers that trueup validate errors shows, or --all",
        )
    return None if all_errors else list(ids)


def _validation(name: str, options: dict[str, Any]) -> Validation:
    from trueup.api.validate import Validation

    nodes = inline_nodes(options.pop("inline"))
    return Validation(name, meta=options.pop("meta"), nodes=nodes, config=options.pop("config"))
