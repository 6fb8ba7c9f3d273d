"""Instants that Spark gave are right in every zone of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from broker.pipeline.report.digest import Spread
from broker.pipeline.report.tables import course, plain, spread, timeline
from tests.spark.resulting import START, small


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kathmandu"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The machine stands somewhere else."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_instants_are_utc_wherever_the_machine_stands(spark: SparkSession, zone: str) -> None:
    [row] = small(spark)["paths"].select("started_at", "bytes").limit(1).collect()

    assert {"started_at": START, "bytes": 100} == plain(row)


def test_counts_over_time_stand_where_they_were_wherever_the_machine_stands(spark: SparkSession, zone: str) -> None:
    routes = small(spark)["routes"]
    axis = timeline(routes)

    assert axis is not None
    assert axis.first_at == START
    assert (1, 4) == course(routes, axis).traffic.points


def test_percentiles_of_nothing_are_unknown() -> None:
    assert [Spread(), Spread(), Spread(1, 2, 3)] == [spread(None), spread([None] * 3), spread([0.9, 2.2, 3.0])]
