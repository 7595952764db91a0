"""The size of the next batch follows the time of the last ones, within the limits of the engine."""

from __future__ import annotations

from trueup.verbs.tube.pace import Pace
from trueup.verbs.tube.pipeline import LocalPipeline
from trueup.verbs.tube.pipeline_spark import SparkPipeline


def test_batches_of_slow_spark_jobs_do_not_become_tiny() -> None:
    """A Spark job has a fixed cost: on a busy machine, ever smaller batches would take as long."""
    sizes = {}
    for pipeline in (LocalPipeline, SparkPipeline):
        pace = Pace(pipeline)
        first = pace.keys
        for _ in range(20):
            pace.learn(pace.keys, 2.0)
        slow = pace.keys
        for _ in range(20):
            pace.learn(pace.keys, 0.01)
        sizes[pipeline] = first, slow, pace.keys
    assert sizes == {LocalPipeline: (2_000, 250, 10_000), SparkPipeline: (8_000, 8_000, 50_000)}
    assert Pace(SparkPipeline, 100).keys == 100
