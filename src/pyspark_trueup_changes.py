"""Where Spark finds the format "trueup_changes" by itself: it looks into modules whose names begin with `pyspark_`."""

from __future__ import annotations

from trueup.spark.changes import ChangesSource as DefaultSource

__all__ = ["DefaultSource"]
