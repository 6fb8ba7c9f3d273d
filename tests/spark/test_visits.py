"""Windows of time."""

import pyspark.sql.functions as F  # noqa: N812
import pytest
from pyspark.sql import SparkSession

from broker.errors import PipelineError
from broker.pipeline.visits import begin_us, length_us


def test_window_begins_at_or_before_the_instant(spark: SparkSession) -> None:
    instants = spark.createDataFrame([(number,) for number in (-1, 0, 1, 9, 10, 25)], "at long")

    found = [row[0] for row in instants.select(begin_us(F.col("at"), 10)).collect()]

    assert found == [-10, 0, 0, 0, 10, 20]
    for seconds in (0, -5):
        with pytest.raises(PipelineError, match=rf"windows of {seconds} seconds; give a length"):
            length_us(seconds)
