"""
One Spark for all tests of this directory: a JVM starts in five seconds and is shared.

It ends with them, since it connects when it likes, and tests elsewhere look at the connections of their process.
"""

from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from broker.pipeline import session


@pytest.fixture(scope="package")
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
