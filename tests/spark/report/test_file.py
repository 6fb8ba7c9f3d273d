"""The report as a file: jobs that run once, and a page of what they wrote."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from broker.errors import PipelineError
from broker.journal.schema import JOURNAL, file_metadata
from broker.pipeline.jobs import PeriodBounds, RunRequest
from broker.pipeline.jobs import run as jobs_run
from broker.pipeline.report import file as stored
from broker.pipeline.report.file import FILE, run, write, written
from broker.pipeline.report.page import NEEDED
from broker.pipeline.results import LOCK, REPORT, RESULTS
from tests.spark import journalling
from tests.spark.visiting import START, table


def write_journal(directory: Path) -> None:
    """A message from `a` through `g` to `b`; the file of `x` is broken."""
    for place, (instance, outcome) in enumerate([("a", "sent"), ("g", "forwarded"), ("b", "delivered")]):
        hops = {"a": 0, "g": 0, "b": 1}[instance]
        rows = table(
            {
                "instance": instance,
                "outcome": outcome,
                "hop_count": hops,
                "entered_at": 10_000 * place,
                "to_service": "<b>",
            }
        )
        path = directory / "date=2026-03-01" / "hour=12" / f"{instance}-000001-0000000{place}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = file_metadata(file=f"{place:032x}", instance=instance, sample=1.0, shed=place)
        pq.write_table(rows.cast(pa.schema(JOURNAL, metadata=metadata)), path)
    (path.parent / "x-000001-00000009.parquet").write_bytes(b"PAR1 and no more")


@pytest.mark.usefixtures("spark")
def test_a_journal_becomes_a_page_and_results(tmp_path: Path) -> None:
    write_journal(tmp_path / "flows")
    heard: list[str] = []

    done = run(RunRequest((), (tmp_path / "flows",), tmp_path / "out"), heard.append)

    html = (tmp_path / "out" / FILE).read_text(encoding="utf-8")
    assert str(tmp_path / "out" / FILE) == done["report"]
    assert set(NEEDED) == set(done["jobs"])
    assert "The ledger adds up" in html
    assert "&lt;b&gt;" in html
    assert "1 file truncated or damaged, left out" in html
    assert "shed 2 records" in html
    assert heard[-1].startswith("report: ")
    assert {FILE, LOCK, *NEEDED} == {path.name for path in (tmp_path / "out").iterdir()}


def test_what_was_written_is_read_with_the_columns_of_its_schema(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame([], RESULTS["routes"]).write.parquet(str(tmp_path / "routes"))

    found = written(spark, tmp_path, ("routes",))

    assert {"routes": RESULTS["routes"]} == {name: frame.schema for name, frame in found.items()}


def test_a_report_replaces_the_one_before_and_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / FILE
    write(target, "first")
    seen: list[str] = []
    real = Path.rename

    def rename(path: Path, to: Path) -> Path:
        seen.append(target.read_text(encoding="utf-8"))
        return real(path, to)

    monkeypatch.setattr(Path, "rename", rename)
    write(target, "second")

    assert ["first"] == seen
    assert "second" == target.read_text(encoding="utf-8")
    assert [target] == list(tmp_path.iterdir())


# --- test_stored ---
# Results read back.


@pytest.fixture
def request_(tmp_path: Path, spark: SparkSession) -> RunRequest:
    journalling.write(tmp_path / "flows", *journalling.passage(1), shed=2)
    return RunRequest(tuple(NEEDED), (tmp_path / "flows",), tmp_path / "out")


def test_the_report_is_made_of_results_that_are_there(request_: RunRequest, spark: SparkSession) -> None:
    jobs_run(request_)

    page = stored.render(spark, request_.out)

    assert request_.out / "report.html" == page
    assert str(request_.flows[0]) in page.read_text()


def test_results_of_different_histories_are_told_apart(request_: RunRequest, spark: SparkSession) -> None:
    """Each was made of what was there; the report says which is of something else."""
    bounds = PeriodBounds(START, START + timedelta(hours=1))
    for job in NEEDED:
        jobs_run(replace(request_, jobs=(job,), bounds=bounds if job == "routes" else PeriodBounds()))

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
