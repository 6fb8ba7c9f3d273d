"""Runs over all that is there."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from broker.errors import NoJournalError, PipelineError
from broker.pipeline import entry, jobs
from broker.pipeline.entry import Request
from broker.pipeline.period import Bounds
from tests.spark import journalling
from tests.spark.visiting import START


@pytest.fixture
def request_(tmp_path: Path, spark: SparkSession) -> Request:
    """Paths and windows of two messages, an hour apart."""
    rows = [*journalling.passage(1), *journalling.passage(2, at=3_600_000_000)]
    journalling.write(tmp_path / "flows", *rows)
    return Request(("paths", "routes"), (tmp_path / "flows",), tmp_path / "out")


def test_results_are_written_with_what_was_read(request_: Request, spark: SparkSession) -> None:
    lines: list[str] = []

    told = entry.run(request_, lines.append)

    assert (2, 6) == (told["jobs"]["paths"]["rows"], told["files"]["rows"])
    assert 2 == spark.read.parquet(str(request_.out / "paths")).count()
    assert 1 == json.loads((request_.out / "paths" / "_report.json").read_text())["files"]["read"]
    assert ["paths: 2 rows", "routes: 6 rows"] == [line.partition(",")[0] for line in lines]


def test_a_period_is_a_part_of_the_results(request_: Request) -> None:
    bounds = Bounds(START + timedelta(minutes=30))

    assert 1 == entry.run(replace(request_, bounds=bounds))["jobs"]["paths"]["rows"]


def test_explain_prints_the_plan_and_writes_nothing(request_: Request, capsys: pytest.CaptureFixture[str]) -> None:
    entry.explain(request_)

    assert 2 == capsys.readouterr().out.count("== Physical Plan ==")
    assert not request_.out.exists()


def test_nothing_to_read_is_told_with_the_reason(request_: Request, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(NoJournalError, match=r"none: no file \*.parquet below it"):
        entry.run(replace(request_, flows=(tmp_path / "none",)))

    (tmp_path / "none" / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(NoJournalError, match="of 1 files none can be read; 1 broken off or unreadable"):
        entry.run(replace(request_, flows=(tmp_path / "none",)))


def test_a_url_is_refused(request_: Request) -> None:
    with pytest.raises(PipelineError, match="s3a:/bucket/flows is not on a file system; mount it"):
        entry.run(replace(request_, flows=(Path("s3a://bucket/flows"),)))


def test_what_incremental_runs_wrote_is_not_written_over(request_: Request) -> None:
    (request_.out / entry.STATE / "paths").mkdir(parents=True)

    with pytest.raises(PipelineError, match="is of incremental runs; give another --out"):
        entry.run(request_)


def test_what_spark_raises_is_told_in_a_sentence(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = replace(
        jobs.JOBS["paths"], run=lambda visits, *_: {"paths": visits.select(F.raise_error(F.lit("broken")))}
    )
    monkeypatch.setitem(jobs.JOBS, "paths", failing)

    with pytest.raises(PipelineError, match=r"Spark gave up: .*broken"):
        entry.run(request_)
