"""One Spark for all tests of this directory: a JVM starts in five seconds and is shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from broker.pipeline import session

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` one worker takes all tests that use the shared Spark, so that one JVM starts."""
    for item in items:
        if item.path.is_relative_to(HERE) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, two shuffle partitions, no web page; the JVM ends with the tests."""
    options = session.SessionOptions(
        master="local[2]",
        driver_memory="1g",
        conf={"spark.sql.shuffle.partitions": "2"},
        java_options="-XX:+UseParallelGC -XX:TieredStopAtLevel=1",  # compiles less: right for tiny frames, wrong else
    )
    started = session.start(options)
    gateway = SparkContext._gateway
    yield started
    started.stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=30)
    SparkContext._gateway = SparkContext._jvm = None
