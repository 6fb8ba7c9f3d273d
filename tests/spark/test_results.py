"""The page of the pipeline tells every column of every result."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from broker.errors import PipelineError
from broker.flow import COLUMNS
from broker.pipeline import results as result
from broker.pipeline.jobs import JOBS
from broker.pipeline.results import BEGIN, MEANINGS, RESULTS, VISIT, renew_page

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_page_is_what_would_be_written() -> None:
    """Else: python -m broker.pipeline.results docs/pipeline.md."""
    text = PAGE.read_text(encoding="utf-8")

    assert renew_page(text) == text


def test_every_result_and_column_has_its_row() -> None:
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2]

    assert list(JOBS) == list(RESULTS)
    assert list(RESULTS) == re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert [name for schema in RESULTS.values() for name in schema.names] == re.findall(
        r"^\| (\w+) \| [a-z][^|]* \| [^|]{4,} \|$", text, re.MULTILINE
    )  # fmt: skip
    assert {name: schema.names for name, schema in RESULTS.items()} == {
        name: list(says) for name, says in MEANINGS.items()
    }  # fmt: skip


@pytest.mark.parametrize("page", ["no marker", BEGIN])
def test_a_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="lacks"):
        renew_page(page)


# --- test_result ---
# Results that appear whole.


def test_a_result_replaces_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "out" / "paths"

    first = result.write(spark.range(5), target, lambda: {"run": 1})
    second = result.write(spark.range(3), target, lambda: {"run": 2})

    assert (5, 3) == (first, second)
    assert 3 == spark.read.parquet(str(target)).count() == result.rows(target)
    assert {"run": 2} == json.loads((target / result.REPORT).read_text())
    assert [target] == list(target.parent.iterdir())


def test_no_dictionary_is_tried_for_what_hardly_comes_twice(spark: SparkSession, tmp_path: Path) -> None:
    """Not even where it would pay, as here; other columns have one there."""
    two = F.col("id") % 2
    rows = spark.range(1000, numPartitions=1).select(two.alias("message_id"), two.alias("kind"))

    result.write(rows, tmp_path / "paths", dict)

    (file,) = (tmp_path / "paths").glob("*.parquet")
    columns = pq.read_metadata(file).row_group(0)
    is_told = {columns.column(one).path_in_schema: columns.column(one).has_dictionary_page for one in range(2)}
    assert {"message_id": False, "kind": True} == is_told


def test_the_one_before_stays_when_a_job_fails(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "paths"
    result.write(spark.range(5), target, dict)

    with pytest.raises(PySparkException):
        result.write(spark.range(3).select(F.raise_error(F.lit("no"))), target, dict)
    result.write(spark.range(2), tmp_path / "routes", dict)

    assert 5 == spark.read.parquet(str(target)).count()


def test_what_a_killed_run_left_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    """Under whatever name, but not that of another result."""
    left, other = tmp_path / ".unfinished-paths-0a1b", tmp_path / ".unfinished-routes-0a1b"
    left.mkdir()
    other.mkdir()

    result.write(spark.range(1), tmp_path / "paths", dict)

    assert (False, True) == (left.exists(), other.exists())


def test_a_result_that_a_killed_run_moved_away_is_put_back(spark: SparkSession, tmp_path: Path) -> None:
    """It was killed between its two renames: nothing was in place."""
    target = tmp_path / "paths"
    result.write(spark.range(5), target, dict)
    target.rename(tmp_path / ".replaced-paths")

    with result.held(tmp_path, ["paths"]):
        assert 5 == result.rows(target)

    assert not (tmp_path / ".replaced-paths").exists()


def test_what_was_replaced_is_removed_once_the_new_one_is_in_place(tmp_path: Path) -> None:
    (tmp_path / "paths").mkdir()
    (tmp_path / ".replaced-paths").mkdir()

    with result.held(tmp_path, ["paths"]):
        pass

    assert {"paths", result.LOCK} == {path.name for path in tmp_path.iterdir()}


def test_one_process_writes_results_to_a_directory(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from broker.pipeline import results as result\n"
    code += "with result.held(Path(sys.argv[1]), []): print('mine', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert "mine\n" == other.stdout.readline()

    with pytest.raises(
        PipelineError, match=r"another process writes results to .*; wait for it, or give another --out"
    ):
        result.held(tmp_path, []).__enter__()
    other.communicate("")
    with result.held(tmp_path, []):
        assert 0 == other.returncode


def test_a_result_without_rows_has_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    assert 0 == result.write(spark.range(0), tmp_path / "paths", dict)
    assert ["id"] == spark.read.parquet(str(tmp_path / "paths")).columns


def test_json_appears_whole(tmp_path: Path) -> None:
    result.write_json(tmp_path / "deep" / "a.json", {"at": tmp_path})

    assert {"at": str(tmp_path)} == json.loads((tmp_path / "deep" / "a.json").read_text())
    assert 1 == len(list((tmp_path / "deep").iterdir()))


# --- test_schema ---
# What the jobs read and write.


def test_the_pipeline_reads_the_columns_of_a_flow_record() -> None:
    """In their order."""
    assert [one.name for one in COLUMNS] == VISIT.names


def test_every_column_of_a_result_may_be_missing() -> None:
    """Spark takes a column that must not be null at its word."""
    assert all(field.nullable for schema in RESULTS.values() for field in schema)
