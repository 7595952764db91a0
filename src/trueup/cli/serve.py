"""`trueup serve`: a web page, metrics and an API over the task stores and the nodes of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import SHARED, flag, option, repeated, shared
from trueup.cli.output import echo
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.serve.options import ServeOptions

_PORT = click.IntRange(0, 65535)


@click.command()
@option("--host", "ADDRESS", "Address to listen on.", "127.0.0.1")
@option("--port", "N", "Port to listen on; 0: a free one.", 8470, _PORT)
@option("--token-file", "FILE", "File with tokens that requests need: NAME TOKEN per line, readable by you only.")
@option("--auth-proxy-header", "NAME", "Header in which a proxy names the user, such as X-Forwarded-User.", "")
@repeated("--proxy-address", "IP", "Address of that proxy; can be repeated. [default: this machine]", key="proxies")
@option("--proxy-secret-file", "FILE", "File with a secret that the proxy sends as X-Trueup-Proxy-Secret.", "")
@option("--tls-cert", "FILE", "Certificate (PEM); needed for other addresses than loopback, or --insecure.", "")
@option("--tls-key", "FILE", "Key of the certificate (PEM, without a password).", "")
@flag("--insecure", "Allow connections without TLS, for example behind a proxy that encrypts them.")
@repeated("--allow-host", "NAME", "Name of this server in requests, besides its address; can be repeated.", key="hosts")
@flag("--show-rows", "Show keys and values of rows; they are hidden otherwise.")
@flag("--allow-actions", "Allow to pause, resume, stop and repeat tasks, and to ignore errors of validations.")
@option("--interval", "S", "Seconds between two polls.", 5.0, click.FloatRange(min=0.2))
@flag("--no-doctor", "Do not run the checks of doctor.")
@repeated("--task-db", "FILE", "Task store; can be repeated. [env: TRUEUP_TASKS_DB]", key="task_dbs")
@SHARED["config"]
@shared("quiet")
@click.pass_context
def serve(ctx: click.Context, /, config: str | None, quiet: bool, **options: Any) -> int:
    """Serve a web page, Prometheus metrics (/metrics) and a JSON API (/api/v1) until stopped.

    It shows what is proven and how old each proof is, tables, tasks, validations, tubes, syncs, switchovers, the
    schedule and the findings of doctor. A collector reads the task stores and the nodes at an interval; no page view
    opens a session on a node. Nothing can be changed, except with --allow-actions.

    \b
    Examples:
      trueup serve
      trueup serve --port 9000 --show-rows
      trueup serve --host 10.0.0.5 --token-file tokens --tls-cert cert.pem --tls-key key.pem --allow-host db-watch
      trueup serve --auth-proxy-header X-Forwarded-User --proxy-secret-file secret --allow-host db-watch --allow-actions

    Requires the extra serve: pip install 'trueup[serve]'. Ctrl-C or SIGTERM ends it with exit code 0.
    """
    need_extra()
    from trueup.config.load import load
    from trueup.serve.collector import Scope
    from trueup.serve.run import run
    from trueup.store import tasks_db_path

    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    settings = load(config)
    stores = tuple(tasks_db_path(path) for path in options["task_dbs"])
    scope = Scope(
        settings,
        stores or (tasks_db_path(None, settings.tasks.task_db),),
        options["interval"],
        tuple(root.command.list_commands(root)),
        with_doctor=not options["no_doctor"],
    )
    run(scope, _options(options), lambda url: echo(f"trueup serves {url}"))
    return 0


def need_extra() -> None:
    """Raise ConfigError if the packages of the extra are not installed."""
    try:
        import jinja2
        import prometheus_client
        import starlette
        import uvicorn
    except ImportError as error:
        raise ConfigError(
            f"the package {error.name} is not installed", cure="install it with: pip install 'trueup[serve]'"
        ) from None
    del jinja2, prometheus_client, starlette, uvicorn


def _options(given: dict[str, Any]) -> ServeOptions:
    from trueup.serve.options import ServeOptions, read_secret, read_tokens

    return ServeOptions(
        host=given["host"],
        port=given["port"],
        tokens=read_tokens(given["token_file"]) if given["token_file"] else (),
        proxy_header=given["auth_proxy_header"],
        proxies=tuple(given["proxies"]) or ServeOptions.proxies,
        proxy_secret=read_secret(given["proxy_secret_file"]) if given["proxy_secret_file"] else b"",
        tls_cert=_path(given["tls_cert"]),
        tls_key=_path(given["tls_key"]),
        insecure=given["insecure"],
        allowed_hosts=tuple(given["hosts"]),
        show_rows=given["show_rows"],
        allow_actions=given["allow_actions"],
        interval=given["interval"],
    )


def _path(text: str) -> str:
    return str(Path(text).expanduser()) if text else ""
