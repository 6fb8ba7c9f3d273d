"""The report as a file, made of what jobs wrote."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.errors import PipelineError
from broker.pipeline.jobs import PeriodBounds, RunRequest
from broker.pipeline.jobs import run as jobs_run
from broker.pipeline.report import file as stored
from broker.pipeline.report.file import FILE, run
from broker.pipeline.report.tables import NEEDED
from broker.pipeline.results import LOCK, REPORT
from tests.spark import journalling
from tests.spark.visiting import START


@pytest.fixture
def request_(tmp_path: Path, spark: SparkSession) -> RunRequest:
    journalling.write(tmp_path / "flows", *journalling.passage(1, to_service="<b>"), shed=2)
    return RunRequest(NEEDED, (tmp_path / "flows",), tmp_path / "out")


def test_a_journal_becomes_a_page_and_results(request_: RunRequest) -> None:
    (request_.flows[0] / "x-000001-00000009.parquet").write_bytes(b"PAR1 and no more")
    lines: list[str] = []

    done = run(replace(request_, jobs=()), lines.append)

    html = (request_.out / FILE).read_text(encoding="utf-8")
    assert str(request_.out / FILE) == done["report"]
    assert set(NEEDED) == set(done["jobs"])
    for words in ("The ledger adds up", "&lt;b&gt;", "1 file truncated or damaged, left out", "shed 2 records"):
        assert words in html
    assert lines[-1].startswith("report: ")
    assert {FILE, LOCK, *NEEDED} == {path.name for path in request_.out.iterdir()}


def test_results_of_different_histories_are_distinguished(request_: RunRequest, spark: SparkSession) -> None:
    bounds = PeriodBounds(START, START + timedelta(hours=1))
    for job in NEEDED:
        jobs_run(replace(request_, jobs=(job,), bounds=bounds if job == "routes" else PeriodBounds()), print)

    [line] = stored.differences(request_.out, NEEDED)
    page = stored.render(spark, request_.out).read_text()

    assert line.startswith("routes and paths are not of the same history: routes was made of 1 file with 3 visits")
    assert "from 2026-03-01T12:00:00+00:00 to 2026-03-01T13:00:00+00:00, paths of 1 file" in line
    assert "routes and paths are not of the same history" in page
    assert str(request_.flows[0]) in page


def test_a_result_that_is_missing_is_named(request_: RunRequest, spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"out has no result of paths; run `broker pipeline paths` with --out"):
        stored.render(spark, request_.out)
    with pytest.raises(PipelineError, match=r"has no _report.json; run the jobs again"):
        stored.facts(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", "5", '{"files": 1}', '{"files": {}, "flows": 3}', "[" * 9999])
def test_a_record_that_no_run_has_written_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / REPORT).write_text(text)

    with pytest.raises(PipelineError, match=r"_report\.json cannot be read: .*; run the jobs again"):
        stored.facts(tmp_path)
