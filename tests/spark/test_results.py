"""Results: their page, and how they are written so that a reader sees a whole one or none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from broker.errors import PipelineError
from broker.flow import COLUMNS
from broker.pipeline import results
from broker.pipeline.jobs import JOBS
from broker.pipeline.results import MEANINGS, RESULTS, VISIT


def test_every_column_of_every_result_has_a_meaning() -> None:
    assert list(JOBS) == list(RESULTS)
    assert all(len(meaning) > 3 for meanings in MEANINGS.values() for meaning in meanings.values())


def test_columns_are_those_of_a_flow_record_and_may_be_null() -> None:
    """Spark trusts a column that must not be null."""
    assert [one.name for one in COLUMNS] == VISIT.names
    assert all(field.nullable for schema in RESULTS.values() for field in schema)


def test_a_result_replaces_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "out" / "paths"

    first = results.write(spark.range(5), target, lambda: {"run": 1})
    second = results.write(spark.range(3), target, lambda: {"run": tmp_path})

    assert (5, 3) == (first, second)
    assert 3 == spark.read.parquet(str(target)).count() == results.rows(target)
    assert {"run": str(tmp_path)} == json.loads((target / results.REPORT).read_text())
    assert [target] == list(target.parent.iterdir())
    assert 0 == results.write(spark.range(0), target, dict)
    assert ["id"] == spark.read.parquet(str(target)).columns


def test_a_run_repairs_what_killed_runs_left(spark: SparkSession, tmp_path: Path) -> None:
    """Unfinished ones are removed; one that was moved away is back, unless another is in its place."""
    left, other = tmp_path / ".unfinished-paths-0a1b", tmp_path / ".unfinished-routes-0a1b"
    left.mkdir()
    other.mkdir()
    results.write(spark.range(5), tmp_path / "paths", dict)
    assert (False, True) == (left.exists(), other.exists())
    (tmp_path / "paths").rename(tmp_path / ".replaced-paths")

    with results.held(tmp_path, ["paths"]):
        assert 5 == results.rows(tmp_path / "paths")
    (tmp_path / ".replaced-paths").mkdir()
    with results.held(tmp_path, ["paths"]):
        assert {"paths", other.name, results.LOCK} == {path.name for path in tmp_path.iterdir()}


def test_one_process_writes_results_to_a_directory(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from broker.pipeline import results as result\n"
    code += "with result.held(Path(sys.argv[1]), []): print('mine', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert "mine\n" == other.stdout.readline()

    with pytest.raises(PipelineError, match=r"another process writes results to .*; wait for it, or give another"):
        results.held(tmp_path, []).__enter__()
    other.communicate("")
    with results.held(tmp_path, []):
        assert 0 == other.returncode


def test_the_one_before_stays_when_a_job_fails(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "paths"
    results.write(spark.range(5), target, dict)

    with pytest.raises(PySparkException):
        results.write(spark.range(3).select(F.raise_error(F.lit("no"))), target, dict)
    results.write(spark.range(2), tmp_path / "routes", dict)

    assert 5 == spark.read.parquet(str(target)).count()
