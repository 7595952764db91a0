"""Sinks of tubes: the targets that the rows of touched keys are written to, each named by an address.

Reading order: `base` (the protocol), `function` (your own Python function), `keys`, `options` and `once` (shared by
sinks), `postgres` and `postgres_target`, `redis` and `redis_client`, `columns` (documents as Arrow) with `clickhouse`,
`staging` (files of Spark tasks before the commit), `parquet` and `delta`, `documents` (rows as JSON) and `http` with
`bulk`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from trueup.errors import ConfigError
from trueup.sinks.options import split_address

if TYPE_CHECKING:
    from trueup.config.model import Node
    from trueup.sinks.base import Sink

__all__ = ["ADDRESSES", "open_sink"]

# Examples of addresses, for messages.
ADDRESSES = (
    "postgresql://host/db?table=copy.{table}, NODE?table=copy.{table}, redis://host:6379/0?mode=set,"
    " clickhouse://host:8123/db, chdb:FOLDER, parquet:FOLDER, delta:FOLDER, https://host:9200/index,"
    " python:module:function"
)


def open_sink(
    address: str, options: Mapping[str, Any] | None = None, *, nodes: Mapping[str, Node] | None = None
) -> Sink:
    """Return the sink of an address, or of the name of one of `nodes`; it connects in `setup`."""
    values = dict(options or {})
    kind, _, rest = address.partition(":")
    if kind == "python":
        from trueup.sinks.function import python_sink

        return python_sink(rest, values)
    if kind in _KINDS:
        return _KINDS[kind](address, values)
    name = address.partition("?")[0]
    if nodes and name in nodes:
        from trueup.sinks.postgres import PostgresSink

        return PostgresSink(nodes[name], split_address(address, "PostgreSQL", values)[1])
    # The address may contain a password: show only its kind.
    unknown = f"unknown kind of sink '{kind[:20]}:'" if ":" in address else f"unknown node '{name[:63]}'"
    raise ConfigError(unknown, cure=f"use one of {ADDRESSES}")


def _need(module: str, extra: str) -> None:
    """Raise ConfigError if an optional library is not installed."""
    if find_spec(module) is None:
        raise ConfigError(f"this sink needs the library {module}", cure=f"run pip install 'trueup[{extra}]'")


def _postgres(address: str, values: Mapping[str, Any]) -> Sink:
    from trueup.config.load import load
    from trueup.sinks.postgres import OPTIONS, PostgresSink

    place, options = split_address(address, "PostgreSQL", values, ours=OPTIONS)
    return PostgresSink(load(nodes={"sink": place}).nodes["sink"], options)


def _redis(address: str, values: Mapping[str, Any]) -> Sink:
    from trueup.sinks.redis import RedisSink

    _need("redis", "redis")
    return RedisSink(*split_address(address, "Redis", values))


def _clickhouse(address: str, values: Mapping[str, Any]) -> Sink:
    from trueup.sinks.clickhouse import OPTIONS, ClickHouseServerSink

    _need("clickhouse_connect", "sinks")
    place, options = split_address(address, "ClickHouse", values, ours=OPTIONS)
    return ClickHouseServerSink(place, options, embedded=False)


def _chdb(address: str, values: Mapping[str, Any]) -> Sink:
    from trueup.sinks.clickhouse import ClickHouseSink

    _need("chdb", "demo")
    place, options = split_address(address, "chdb", values)
    return ClickHouseSink(_folder(place), options, embedded=True)


def _parquet(address: str, values: Mapping[str, Any]) -> Sink:
    from trueup.sinks.parquet import ParquetSink

    place, options = split_address(address, "Parquet", values)
    return ParquetSink(Path(_folder(place)), options)


def _delta(address: str, values: Mapping[str, Any]) -> Sink:
    from trueup.sinks.delta import DeltaSink

    _need("deltalake", "sinks")
    place, options = split_address(address, "Delta", values)
    return DeltaSink(Path(_folder(place)), options)


def _bulk(address: str, values: Mapping[str, Any]) -> Sink:
    from trueup.sinks.bulk import BulkSink

    place, options = split_address(address, "search index", values)
    return BulkSink(urlsplit(place), options)


def _folder(place: str) -> str:
    kind, _, folder = place.partition(":")
    if not folder:
        raise ConfigError(f"the address of the {kind} sink has no folder", cure=f"write {kind}:FOLDER")
    return unquote(folder)


_KINDS: Mapping[str, Callable[[str, Mapping[str, Any]], Sink]] = {
    "postgresql": _postgres,
    "postgres": _postgres,
    "redis": _redis,
    "rediss": _redis,
    "clickhouse": _clickhouse,
    "clickhouses": _clickhouse,
    "chdb": _chdb,
    "parquet": _parquet,
    "delta": _delta,
    "http": _bulk,
    "https": _bulk,
}
