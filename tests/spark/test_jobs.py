"""Runs from files to results, and parts of a history."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from broker.errors import NoJournalError, PipelineError
from broker.journal.schema import FileState, Fitness
from broker.pipeline import jobs
from broker.pipeline.jobs import (
    JOBS,
    Job,
    Options,
    PeriodBounds,
    RunRequest,
    fitting_window,
    micros,
    result_of_job,
    visits_of,
)
from broker.pipeline.results import RESULTS
from tests.spark import journalling
from tests.spark.visiting import START, visits

HOUR = timedelta(hours=1)
MINUTE_US = 60_000_000


@pytest.fixture
def request_(tmp_path: Path, spark: SparkSession) -> RunRequest:
    """Paths and windows of two messages, an hour apart."""
    rows = [*journalling.passage(1), *journalling.passage(2, at=60 * MINUTE_US)]
    journalling.write(tmp_path / "flows", *rows)
    return RunRequest(("paths", "routes"), (tmp_path / "flows",), tmp_path / "out")


def record(request: RunRequest, name: str) -> Any:
    """What a run wrote with a result."""
    return json.loads((request.out / name / "_report.json").read_text())


# --- runs ---


def test_results_are_written_with_what_was_read(request_: RunRequest, spark: SparkSession) -> None:
    lines: list[str] = []

    done = jobs.run(replace(request_, bounds=PeriodBounds(START)), lines.append)

    assert (2, 6) == (done["jobs"]["paths"]["rows"], done["files"]["rows"])
    assert 2 == spark.read.parquet(str(request_.out / "paths")).count()
    assert (1, START.isoformat(), None) == (
        *(record(request_, "paths")["files"]["read"], record(request_, "routes")["from"]),
        record(request_, "routes")["to"],
    )
    assert ["paths: 2 rows", "routes: 6 rows"] == [line.partition(",")[0] for line in lines]


def test_a_pool_is_recommended_only_for_instances_that_followed_all_dialogs(
    tmp_path: Path, spark: SparkSession
) -> None:
    for instance, sample in (("g", 0.01), ("h", 1.0)):
        rows = [one | {"instance": instance} for one in journalling.passage(1) if one["instance"] == "g"]
        journalling.write(tmp_path / "flows", *rows, sample=sample)

    jobs.run(RunRequest(("capacity",), (tmp_path / "flows",), tmp_path / "out"), print)

    found = spark.read.parquet(str(tmp_path / "out" / "capacity")).collect()
    assert {("g", True), ("h", False)} == {(row.instance, row.recommended_bytes is None) for row in found}


def test_what_an_instance_has_not_written_yet_is_under_way(tmp_path: Path, spark: SparkSession) -> None:
    """Files close at different times: that of `b` ends when the second message has not arrived yet."""
    first, second = journalling.passage(1), journalling.passage(2, at=10 * MINUTE_US, sequence_number=1)
    for number, instance in enumerate("agb"):
        rows = [first[number], second[number]] if instance != "b" else [first[number]]
        journalling.write(tmp_path / "flows", *rows)
    request = RunRequest(("paths", "reconcile"), (tmp_path / "flows",), tmp_path / "out")

    jobs.run(request, print)
    before = _judged(spark, request)
    for visit in journalling.passage(3, at=40 * MINUTE_US, sequence_number=2):
        journalling.write(tmp_path / "flows", visit)
    jobs.run(request, print)

    assert (["delivered", "under way"], 1, 0) == before
    assert (["delivered", "lost", "delivered"], 0, 1) == _judged(spark, request)


def _judged(spark: SparkSession, request: RunRequest) -> tuple[list[str], int, int]:
    """How transmissions ended, how many messages are under way and how many are missing."""
    paths = spark.read.parquet(str(request.out / "paths")).orderBy("sequence_number").collect()
    total = spark.read.parquet(str(request.out / "reconcile")).where("conversation_id IS NULL").collect()[0]
    return [row.end for row in paths], total.under_way, total.missing


def test_a_period_has_the_visits_of_files_begun_long_before(tmp_path: Path, spark: SparkSession) -> None:
    """One of six hours; and one that ended before is not read."""
    rows = [row for hour in range(7) for row in journalling.passage(hour + 1, at=hour * 60 * MINUTE_US)]
    journalling.write(tmp_path / "flows", *rows)
    journalling.write(tmp_path / "flows", *journalling.passage(9))
    bounds = PeriodBounds(START + 5 * HOUR, START + 6 * HOUR)

    done = jobs.run(RunRequest(("paths",), (tmp_path / "flows",), tmp_path / "out", bounds=bounds), print)

    assert (1, 1) == (done["jobs"]["paths"]["rows"], done["files"]["read"])


def test_what_spark_raises_is_a_sentence_and_names_a_broken_file(
    request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Job(lambda visits: visits.select(F.raise_error(F.lit("broken"))))
    with monkeypatch.context() as patch:
        patch.setitem(JOBS, "paths", failing)
        with pytest.raises(PipelineError, match=r"Spark gave up: .*broken"):
            jobs.run(request_, print)
    (path,) = request_.flows[0].rglob("*.parquet")
    content = bytearray(path.read_bytes())
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[4:footer] = bytes(footer - 4)
    path.write_bytes(content)

    with pytest.raises(PipelineError, match=r"^.*[0-9a-f]{8}\.parquet cannot be read; .* copy it again or remove it"):
        jobs.run(request_, print)


def test_a_file_that_vanished_while_it_was_read_is_counted_with_the_result(
    request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = JOBS["routes"]

    def transform(visits: DataFrame, **options: Any) -> DataFrame:
        next(request_.flows[0].rglob("*.parquet")).unlink()
        return real.transform(visits, **options)

    monkeypatch.setitem(JOBS, "routes", replace(real, transform=transform))

    jobs.run(replace(request_, jobs=("routes",)), print)

    assert 1 == record(request_, "routes")["files"]["vanished_while_read"]


def test_nothing_to_read_has_a_reason(request_: RunRequest, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(NoJournalError, match=r"none: no file \*.parquet below it"):
        jobs.run(replace(request_, flows=(tmp_path / "none",)), print)

    with pytest.raises(NoJournalError, match="below it that has visits of that time; an instance completes one after"):
        jobs.run(replace(request_, bounds=PeriodBounds(START + timedelta(days=9))), print)


@pytest.mark.parametrize(("files", "rest"), [(3, ""), (4, "; and 1 other"), (25, "; and 22 others")])
def test_of_many_files_that_cannot_be_read_the_first_are_named(
    request_: RunRequest, tmp_path: Path, files: int, rest: str
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    for number in range(files):
        (bad / f"{number:02}.parquet").write_bytes(b"PAR1 no")

    with pytest.raises(NoJournalError) as caught:
        jobs.run(replace(request_, flows=(bad,)), print)

    problem = str(caught.value)
    assert f"of {files} files none can be read; {files} files truncated or damaged" in problem
    assert ["00.parquet", "01.parquet", "02.parquet"] == re.findall(r"\d\d\.parquet(?=: damaged)", problem)
    assert problem.endswith(rest)
    assert ("other" in problem) == bool(rest)


@pytest.mark.parametrize("name", list(RESULTS))
def test_a_job_gives_the_columns_of_its_schema(spark: SparkSession, name: str) -> None:
    """Of any visits, and of none."""
    frame = visits(spark, *journalling.passage(1))

    for history in (frame, frame.limit(0)):
        found = JOBS[name].run(history, None, Options(grace_seconds=10, window_seconds=300, pool_bytes=1 << 20))
        assert RESULTS[name].names == found.columns
        assert RESULTS[name].simpleString() == found.schema.simpleString()
    assert JOBS[name].time in {"", *found.columns}


# --- periods ---

BOUNDS = PeriodBounds(START, START + HOUR)
MICROSECOND = timedelta(microseconds=1)


def test_files_are_chosen_by_their_hour_with_a_margin() -> None:
    """A day and two hours on both sides: one for what is read around the period, and the age that a file may have."""
    may = {
        "/x/date=2026-02-28/hour=09/a.parquet": False,
        "/x/date=2026-02-28/hour=10/a.parquet": True,
        "/x/date=2026-03-02/hour=14/a.parquet": True,
        "/x/date=2026-03-02/hour=15/a.parquet": False,
        "/x/a.parquet": True,
    }

    assert may == {path: BOUNDS.may_have(Path(path)) for path in may}
    assert all(PeriodBounds().may_have(Path(path)) for path in may)


def test_files_are_chosen_by_their_footers() -> None:
    """With the hour around; a file whose footer has no instants may have anything."""
    has = {
        (-7 * HOUR, -HOUR - MICROSECOND): False,
        (-7 * HOUR, -HOUR): True,
        (-7 * HOUR, 9 * HOUR): True,
        (2 * HOUR - MICROSECOND, 9 * HOUR): True,
        (2 * HOUR, 9 * HOUR): False,
    }

    assert has == {
        (first, last): BOUNDS.has(
            FileState(Path("x"), Fitness.GOOD, first_us=micros(START + first), last_us=micros(START + last))
        )
        for first, last in has
    }
    assert BOUNDS.has(FileState(Path("x"), Fitness.GOOD))


def test_paths_are_not_cut_at_the_bounds(spark: SparkSession) -> None:
    """Their visits are read from an hour before to an hour after, and then the rows are chosen."""
    rows = [
        {"message_id": 10 + number, "entered_at": START + number * HOUR / 2, "left_at": None} for number in range(-4, 6)
    ]
    frame = visits(spark, *rows)

    job = Job(lambda visits: visits, "entered_at")
    found = [
        result_of_job(RunRequest((), (), Path(), bounds=one), job, frame, None) for one in (BOUNDS, PeriodBounds())
    ]

    assert (6, 2) == (visits_of(frame, job, BOUNDS).count(), found[0].count())
    assert frame is found[1]


def test_of_dialogs_those_are_chosen_that_began_in_the_period(spark: SparkSession) -> None:
    """With the hour after it and both directions; one whose first message is not in sight is an older one."""
    rows: list[dict[str, Any]] = [
        {"conversation_id": 1, "entered_at": START - HOUR / 2},
        {"conversation_id": 1, "entered_at": START + HOUR / 2},
        {"conversation_id": 2, "entered_at": START + HOUR / 4},
        {"conversation_id": 2, "entered_at": START + HOUR / 2, "from_target": True},
        {"conversation_id": 2, "entered_at": START + 1.5 * HOUR},
        {"conversation_id": 2, "entered_at": START + 5 * HOUR},
        {"conversation_id": 3, "entered_at": START + HOUR / 2, "sequence_number": 7},
        {"conversation_id": 3, "entered_at": START + HOUR / 2, "from_target": True},
    ]

    for job in ("reconcile", "dialogs"):
        chosen = visits_of(visits(spark, *rows), JOBS[job], BOUNDS).collect()
        assert [(2, False), (2, False), (2, True)] == sorted(
            (int.from_bytes(row.conversation_id, "big"), row.from_target) for row in chosen
        )


def test_windows_fit_the_length_of_the_history() -> None:
    windows = {0: 1, 34: 1, 91: 2, 3_600: 60, 8_000: 300, 1e9: 300}

    assert windows == {seconds: fitting_window(seconds) for seconds in windows}


def test_windows_fit_the_period_and_not_its_margins(tmp_path: Path, spark: SparkSession) -> None:
    rows = [row for hour in range(3) for row in journalling.passage(hour + 1, at=hour * 60 * MINUTE_US)]
    journalling.write(tmp_path / "flows", *rows)
    bounds = PeriodBounds(START + HOUR, START + HOUR + timedelta(minutes=11))

    jobs.run(RunRequest(("routes",), (tmp_path / "flows",), tmp_path / "out", bounds=bounds), print)

    assert {10} == {row.window_seconds for row in spark.read.parquet(str(tmp_path / "out" / "routes")).collect()}
