"""Where Spark finds the format "trueup_tube" by itself: it looks into modules whose names begin with `pyspark_`."""

from __future__ import annotations

from trueup.spark.tube.datasource import TubeSource as DefaultSource

__all__ = ["DefaultSource"]
