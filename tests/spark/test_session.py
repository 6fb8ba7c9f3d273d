"""How a session is started."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.pipeline import session
from broker.pipeline.results import VISIT
from broker.pipeline.session import SessionOptions
from tests.spark import visiting


def test_visits_have_the_schema_that_the_jobs_read(spark: SparkSession) -> None:
    frame = visiting.visits(spark, {}, {"left_at": None, "message_id": 7})

    assert VISIT == frame.schema
    assert [bytes(15) + b"\1", bytes(15) + b"\7"] == [bytes(row.message_id) for row in frame.collect()]


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


def test_only_what_runs_very_often_is_compiled_twice() -> None:
    """By the Java that Spark gets, which has to know the options: ten times its own thresholds."""
    seen = [_thresholds(), _thresholds(*session.JAVA_OPTIONS.split())]

    assert 4 == len(seen[0])
    assert {name: 10 * value for name, value in seen[0].items()} == seen[1]


def test_a_file_is_opened_without_asking_its_pages_for_a_filter(spark: SparkSession, tmp_path: Path) -> None:
    """Files are chosen by their footers; what Spark would ask of each costs more than many a small file."""
    path = str(tmp_path / "one")
    spark.range(10).write.parquet(path)

    assert 1 == spark.read.parquet(path).where("id = 7").count()
    assert "false" == spark.conf.get("spark.sql.parquet.filterPushdown")


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


def _thresholds(*options: str) -> dict[str, int]:
    """What a Java makes of some options, by name."""
    asked = [str(session.find() / "bin" / "java"), *options, "-XX:+PrintFlagsFinal", "-version"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True)
    return {name: int(value) for name, value in re.findall(r"(Tier4\w+Threshold) += (\d+)", told.stdout)}
