"""The formats that trueup gives to Spark: "trueup" to read, "trueup_tube" and "trueup_changes" to stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trueup.config.load import load
from trueup.config.model import Config
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(
    spark: SparkSession | Any, *, nodes: Mapping[str, str] | None = None, config: Config | str | None = None
) -> None:
    """Give trueup's formats to a Spark session, with the nodes that the option `node` may name.

    `nodes` are names and addresses; with them or without, those of `config` (or of the `trueup.toml` that is found) are
    known too. Their passwords travel inside of the pickled class, not among the options, which Spark logs.
    """
    from trueup.spark.changes import ChangesSource
    from trueup.spark.table.datasource import TrueupSource
    from trueup.spark.tube.datasource import TubeSource

    if not isinstance(config, Config):
        config = load(config, nodes=nodes)
    elif nodes:
        raise ConfigError("addresses and a Config cannot be given together", cure="put the nodes into the Config")
    for source in (TrueupSource, TubeSource, ChangesSource):
        # A class that no module has is pickled whole, with its nodes.
        own = {"nodes": dict(config.nodes), "__module__": "trueup_registered"}
        spark.dataSource.register(type(source.__name__, (source,), own))
