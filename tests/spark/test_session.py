"""How a session is started."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.pipeline import session
from broker.pipeline.session import SessionOptions


def test_times_are_utc_and_workers_take_this_python(spark: SparkSession) -> None:
    assert "UTC" == spark.conf.get("spark.sql.session.timeZone")
    assert sys.executable == spark.sparkContext.pythonExec


@pytest.mark.parametrize(
    ("master", "partitions"), [("local", "2"), ("local[3]", "6"), ("local[2,4]", "4"), ("spark://head:7077", None)]
)
def test_partitions_are_two_a_core_on_this_machine(master: str, partitions: str | None) -> None:
    assert partitions == session.settings(SessionOptions(master=master)).get("spark.sql.shuffle.partitions")


def test_the_user_and_spark_submit_have_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = session.settings(SessionOptions(driver_memory="3g", conf={"spark.sql.shuffle.partitions": "7"}))
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    submitted = session.settings(SessionOptions())

    assert ("3g", "7") == (asked["spark.driver.memory"], asked["spark.sql.shuffle.partitions"])
    assert {"spark.master", "spark.driver.memory"}.isdisjoint(submitted)
    assert session.MEMORY_MIN_MIB <= session.memory_default_mib() <= session.MEMORY_MAX_MIB


def test_a_session_prints_nothing_and_one_that_does_not_start_is_a_sentence(tmp_path: Path) -> None:
    """Started, used and stopped, on a host whose name does not resolve or does."""
    program = (
        "from broker.errors import PipelineUnavailableError\n"
        "from broker.pipeline.session import *\n"
        "try: start(SessionOptions(driver_memory='much'))\n"
        "except PipelineUnavailableError as error: print(error)\n"
        "print('---', file=sys.stderr, flush=True)\n"
        "spark = start(SessionOptions(master='local[1]', driver_memory='512m'))\n"
        "print(spark.range(3).count())\n"
        "spark.stop()"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)

    refusal, count = done.stdout.splitlines()
    assert refusal.startswith("the pipeline cannot run: ")
    assert "--driver-memory" in refusal
    assert ("3", "\n") == (count, done.stderr.partition("---")[2])
