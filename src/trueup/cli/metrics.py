"""Metrics of commands: `--metrics-port` of commands that last, `--metrics-textfile` and `--metrics-push` of others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import decorated, option
from trueup.cli.serve import need_extra
from trueup.errors import TrueupError

if TYPE_CHECKING:
    from trueup.config.model import Config

_log = logging.getLogger(__name__)

PORT = option(
    *("--metrics-port", "N"),
    "Serve /metrics and /healthz on this port of 127.0.0.1 while it runs; 0: a free one.",
    kind=click.IntRange(0, 65535),
)
SHORT = decorated(
    option("--metrics-textfile", "FILE", "After success: write metrics to this file, for node_exporter (*.prom).", ""),
    option("--metrics-push", "URL", "After success: send metrics to this push gateway of Prometheus.", ""),
)


@contextmanager
def serving_metrics(port: int | None, config: Config, task_db: str | None = None) -> Iterator[None]:
    """Serve the metrics of a configuration during the block; without a port, do nothing."""
    if port is None:
        yield
        return
    need_extra()
    from trueup.serve.app import Application
    from trueup.serve.collector import Collector, Scope
    from trueup.serve.options import ServeOptions
    from trueup.serve.server import in_thread
    from trueup.store import tasks_db_path

    stores = (tasks_db_path(task_db, config.tasks.task_db),)
    options = ServeOptions(port=port, only_metrics=True).checked()
    collector = Collector(Scope(config, stores, with_doctor=False))
    application = Application(collector, options)
    with in_thread(application.asgi, options) as url:
        collector.start()
        _log.info("metrics: %smetrics", url)
        try:
            yield
        finally:
            application.stop()
            collector.stop()


def publish(options: dict[str, Any], config: Config, task_db: str | None, *, is_success: bool) -> None:
    """Write and send the metrics of a task store, if the options ask for it. A failure is a warning only."""
    textfile, push = options["metrics_textfile"], options["metrics_push"]
    if not is_success or not (textfile or push):
        return
    try:
        need_extra()
        from trueup.serve.publish import push_metrics, store_metrics, write_textfile
        from trueup.store import tasks_db_path

        text = store_metrics(tasks_db_path(task_db, config.tasks.task_db), config)
        if textfile:
            write_textfile(Path(textfile), text)
        if push:
            push_metrics(push, text)
    except TrueupError as error:
        _log.warning("%s", error)
