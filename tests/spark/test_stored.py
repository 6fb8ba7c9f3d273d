"""Results read back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.errors import PipelineError
from broker.pipeline.jobs import PeriodBounds, RunRequest, run
from broker.pipeline.report import file as stored
from broker.pipeline.report.page import NEEDED
from broker.pipeline.results import REPORT
from tests.spark import journalling
from tests.spark.visiting import START


@pytest.fixture
def request_(tmp_path: Path, spark: SparkSession) -> RunRequest:
    journalling.write(tmp_path / "flows", *journalling.passage(1), shed=2)
    return RunRequest(tuple(NEEDED), (tmp_path / "flows",), tmp_path / "out")


def test_the_report_is_made_of_results_that_are_there(request_: RunRequest, spark: SparkSession) -> None:
    run(request_)

    page = stored.render(spark, request_.out)

    assert request_.out / "report.html" == page
    assert str(request_.flows[0]) in page.read_text()


def test_results_of_different_histories_are_told_apart(request_: RunRequest, spark: SparkSession) -> None:
    """Each was made of what was there; the report says which is of something else."""
    bounds = PeriodBounds(START, START + timedelta(hours=1))
    for job in NEEDED:
        run(replace(request_, jobs=(job,), bounds=bounds if job == "routes" else PeriodBounds()))

    [line] = stored.differences(request_.out, NEEDED)
    page = stored.render(spark, request_.out).read_text()

    assert line.startswith("routes and paths are not of the same history: routes was made of 1 files with 3 visits")
    assert "from 2026-03-01T12:00:00+00:00 to 2026-03-01T13:00:00+00:00, paths of 1 files" in line
    assert "routes and paths are not of the same history" in page


def test_a_result_that_is_missing_is_told(request_: RunRequest, spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"out has no result of paths; run `broker pipeline paths` with --out"):
        stored.render(spark, request_.out)
    with pytest.raises(PipelineError, match=r"has no _report.json; run the jobs again"):
        stored.facts(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", "5", '{"files": 1}', '{"files": {}, "flows": 3}', "[" * 9999])
def test_what_a_run_has_not_written_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / REPORT).write_text(text)

    with pytest.raises(PipelineError, match=r"_report\.json cannot be read: .*; run the jobs again"):
        stored.facts(tmp_path)
