"""The table of jobs."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from broker.pipeline import results as schema
from broker.pipeline.jobs import JOBS, Options, Period
from tests.spark import journalling
from tests.spark.visiting import visits


def test_every_job_of_the_schema_is_there() -> None:
    assert list(schema.RESULTS) == list(JOBS)


@pytest.mark.parametrize("name", list(JOBS))
def test_a_job_gives_the_columns_of_its_schema(spark: SparkSession, name: str) -> None:
    """Of any visits, and of none."""
    frame = visits(spark, *journalling.passage(1))

    for history in (frame, frame.limit(0)):
        found = JOBS[name].run(history, None, Options(grace_seconds=10, pool_bytes=1 << 20))
        assert schema.RESULTS[name].names == found.columns
        assert schema.RESULTS[name].simpleString() == found.schema.simpleString()


def test_the_column_that_a_period_is_asked_of_is_there() -> None:
    assert all(
        job.time in schema.RESULTS[name].names for name, job in JOBS.items() if job.period is Period.RESULT
    )  # fmt: skip


def test_options_are_told_as_json() -> None:
    told = Options(window_seconds=60).told()

    assert told == json.loads(json.dumps(told))
