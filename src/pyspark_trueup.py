"""Where Spark finds the format "trueup" by itself: it looks into modules whose names begin with `pyspark_`."""

from __future__ import annotations

from trueup.spark.table.datasource import TrueupSource as DefaultSource

__all__ = ["DefaultSource"]
