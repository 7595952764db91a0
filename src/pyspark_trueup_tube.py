"""Makes the format "trueup_tube" available: Spark imports modules whose names start with `pyspark_`."""

from __future__ import annotations

from trueup.spark.tube.datasource import TubeSource as DefaultSource

__all__ = ["DefaultSource"]
