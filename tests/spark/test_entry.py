"""Runs over all that is there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from broker.errors import NoJournalError, PipelineError
from broker.pipeline import jobs
from broker.pipeline import jobs as entry
from broker.pipeline.jobs import PeriodBounds, RunRequest
from tests.spark import journalling
from tests.spark.visiting import START


@pytest.fixture
def request_(tmp_path: Path, spark: SparkSession) -> RunRequest:
    """Paths and windows of two messages, an hour apart."""
    rows = [*journalling.passage(1), *journalling.passage(2, at=3_600_000_000)]
    journalling.write(tmp_path / "flows", *rows)
    return RunRequest(("paths", "routes"), (tmp_path / "flows",), tmp_path / "out")


def test_results_are_written_with_what_was_read(request_: RunRequest, spark: SparkSession) -> None:
    lines: list[str] = []

    told = entry.run(request_, lines.append)

    assert (2, 6) == (told["jobs"]["paths"]["rows"], told["files"]["rows"])
    assert 2 == spark.read.parquet(str(request_.out / "paths")).count()
    assert 1 == json.loads((request_.out / "paths" / "_report.json").read_text())["files"]["read"]
    assert ["paths: 2 rows", "routes: 6 rows"] == [line.partition(",")[0] for line in lines]


def test_a_pool_is_recommended_only_to_who_followed_all_dialogs(tmp_path: Path, spark: SparkSession) -> None:
    """Each instance by its own files."""
    for instance, sample in (("g", 0.01), ("h", 1.0)):
        rows = [one | {"instance": instance} for one in journalling.passage(1) if one["instance"] == "g"]
        journalling.write(tmp_path / "flows", *rows, sample=sample)

    entry.run(RunRequest(("capacity",), (tmp_path / "flows",), tmp_path / "out"))

    told = spark.read.parquet(str(tmp_path / "out" / "capacity")).collect()
    assert {("g", True), ("h", False)} == {(row.instance, row.recommended_bytes is None) for row in told}


def test_a_period_is_a_part_of_the_results(request_: RunRequest) -> None:
    bounds = PeriodBounds(START + timedelta(minutes=30))

    assert 1 == entry.run(replace(request_, bounds=bounds))["jobs"]["paths"]["rows"]


def test_what_an_instance_has_not_told_yet_is_under_way(tmp_path: Path, spark: SparkSession) -> None:
    """Files close at different times: that of `b` ends when the second message has not arrived yet."""
    minute = 60_000_000
    first, second = journalling.passage(1), journalling.passage(2, at=10 * minute, sequence_number=1)
    for number, instance in enumerate("agb"):
        told = [first[number], second[number]] if instance != "b" else [first[number]]
        journalling.write(tmp_path / "flows", *told)
    request = RunRequest(("paths", "reconcile"), (tmp_path / "flows",), tmp_path / "out")

    entry.run(request)
    before = _judged(spark, request)
    third = journalling.passage(3, at=40 * minute, sequence_number=2)
    journalling.write(tmp_path / "flows", *third[:1])
    journalling.write(tmp_path / "flows", *third[1:2])
    journalling.write(tmp_path / "flows", *third[2:])
    entry.run(request)

    assert (["delivered", "under way"], 1, 0) == before
    assert (["delivered", "lost", "delivered"], 0, 1) == _judged(spark, request)


def _judged(spark: SparkSession, request: RunRequest) -> tuple[list[str], int, int]:
    """How transmissions ended, how many messages are under way and how many are missing."""
    paths = spark.read.parquet(str(request.out / "paths")).orderBy("sequence_number").collect()
    total = spark.read.parquet(str(request.out / "reconcile")).where("conversation_id IS NULL").collect()[0]
    return [row.end for row in paths], total.under_way, total.missing


def test_a_period_has_the_visits_of_files_begun_long_before(tmp_path: Path, spark: SparkSession) -> None:
    """One of six hours; and one that ended before is not read."""
    rows = [row for hour in range(7) for row in journalling.passage(hour + 1, at=hour * 3_600_000_000)]
    journalling.write(tmp_path / "flows", *rows)
    journalling.write(tmp_path / "flows", *journalling.passage(9))
    request = RunRequest(
        ("paths",), (tmp_path / "flows",), tmp_path / "out",
        bounds=PeriodBounds(START + timedelta(hours=5), START + timedelta(hours=6)),
    )  # fmt: skip

    told = entry.run(request)

    assert (1, 1) == (told["jobs"]["paths"]["rows"], told["files"]["read"])


def test_results_among_the_journals_are_refused(request_: RunRequest) -> None:
    """The next run would take them for journals."""
    with pytest.raises(PipelineError, match="would lie among the journals"):
        entry.run(replace(request_, out=request_.flows[0] / "out"))


def test_a_file_with_broken_pages_is_named(request_: RunRequest) -> None:
    (path,) = request_.flows[0].rglob("*.parquet")
    content = bytearray(path.read_bytes())
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[4:footer] = bytes(footer - 4)
    path.write_bytes(content)

    with pytest.raises(
        PipelineError, match=r"^.*[0-9a-f]{8}\.parquet cannot be read; .* copy it again or take it away"
    ):
        entry.run(request_)


def test_a_file_that_vanished_while_it_was_read_is_told_beside_the_result(
    request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to whoever started the run alone."""
    real = jobs.JOBS["routes"]

    def run(visits: DataFrame, end: datetime | None, options: jobs.Options) -> DataFrame:
        next(request_.flows[0].rglob("*.parquet")).unlink()
        return real.run(visits, end, options)

    monkeypatch.setitem(jobs.JOBS, "routes", replace(real, run=run))

    entry.run(replace(request_, jobs=("routes",)))

    told = json.loads((request_.out / "routes" / "_report.json").read_text())
    assert 1 == told["files"]["vanished_while_read"]


def test_the_period_is_told_beside_the_result(request_: RunRequest) -> None:
    entry.run(replace(request_, jobs=("routes",), bounds=PeriodBounds(START)))

    told = json.loads((request_.out / "routes" / "_report.json").read_text())
    assert (START.isoformat(), None) == (told["from"], told["to"])


def test_explain_prints_the_plan_and_writes_nothing(request_: RunRequest, capsys: pytest.CaptureFixture[str]) -> None:
    entry.explain(request_)

    assert 2 == capsys.readouterr().out.count("== Physical Plan ==")
    assert not request_.out.exists()


def test_nothing_to_read_is_told_with_the_reason(request_: RunRequest, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(NoJournalError, match=r"none: no file \*.parquet below it"):
        entry.run(replace(request_, flows=(tmp_path / "none",)))

    with pytest.raises(NoJournalError, match="below it that has visits of that time"):
        entry.run(replace(request_, bounds=PeriodBounds(START + timedelta(days=9))))

    (tmp_path / "none" / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(NoJournalError, match="of 1 files none can be read; 1 broken off or unreadable"):
        entry.run(replace(request_, flows=(tmp_path / "none",)))


@pytest.mark.parametrize(("files", "rest"), [(3, ""), (4, "; and 1 other"), (25, "; and 22 others")])
def test_of_many_files_that_cannot_be_read_the_first_are_named(
    request_: RunRequest, tmp_path: Path, files: int, rest: str
) -> None:
    """One line is read, not searched: the number of the others says how many there are."""
    bad = tmp_path / "bad"
    bad.mkdir()
    for number in range(files):
        (bad / f"{number:02}.parquet").write_bytes(b"PAR1 no")

    with pytest.raises(NoJournalError) as caught:
        entry.run(replace(request_, flows=(bad,)))

    told = str(caught.value)
    assert ["00.parquet", "01.parquet", "02.parquet"] == re.findall(r"\d\d\.parquet(?=: damaged)", told)
    assert told.endswith(rest) or not rest
    assert ("other" in told) == bool(rest)


def test_a_url_is_refused(request_: RunRequest) -> None:
    with pytest.raises(PipelineError, match="s3a://bucket/flows is not on a file system; mount it"):
        entry.run(replace(request_, flows=(Path("s3a://bucket/flows"),)))


def test_what_spark_raises_is_told_in_a_sentence(request_: RunRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = replace(jobs.JOBS["paths"], run=lambda visits, *_: visits.select(F.raise_error(F.lit("broken"))))
    monkeypatch.setitem(jobs.JOBS, "paths", failing)

    with pytest.raises(PipelineError, match=r"Spark gave up: .*broken"):
        entry.run(request_)
