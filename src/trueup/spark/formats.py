"""Register the formats in a Spark session: "trueup" to read, "trueup_tube" and "trueup_changes" to stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trueup.config.load import load
from trueup.config.model import Config
from trueup.engine.python import check_python, use_this_python
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(
    spark: SparkSession, *, nodes: Mapping[str, str] | None = None, config: Config | str | None = None
) -> None:
    """Register the formats of trueup in a Spark session, with the nodes that the option `node` may name.

    `nodes` maps names to addresses; the nodes of `config` (a Config, a path, or by default `trueup.toml`) are available
    too. Their passwords are part of the pickled class, not of the options, which Spark logs.

    With a local master, workers run the Python of this process if PYSPARK_PYTHON is not set. Raises EngineError if the
    Python of the workers does not have trueup.
    """
    from trueup.spark.changes import ChangesSource
    from trueup.spark.table.datasource import TrueupSource
    from trueup.spark.tube.datasource import TubeSource

    if not isinstance(config, Config):
        config = load(config, nodes=nodes)
    elif nodes:
        raise ConfigError("nodes and a Config object cannot be combined", cure="add the nodes to the Config")
    use_this_python(spark)
    check_python(spark)
    for source in (TrueupSource, TubeSource, ChangesSource):
        # cloudpickle pickles a class without an importable module by value, with its nodes.
        attributes = {"nodes": dict(config.nodes), "__module__": "trueup_registered"}
        spark.dataSource.register(type(source.__name__, (source,), attributes))
