"""The table of jobs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from broker.errors import NoJournalError, PipelineError
from broker.journal.schema import FileState, Fitness
from broker.pipeline import jobs
from broker.pipeline import jobs as entry
from broker.pipeline import results as schema
from broker.pipeline.jobs import JOBS, Options, Period, PeriodBounds, RunRequest, files_of, micros, result_of, visits_of
from tests.spark import journalling
from tests.spark.visiting import START, visits

# --- test_entry ---
# Runs over all that is there.


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

    with pytest.raises(PipelineError, match=r"^.*[0-9a-f]{8}\.parquet cannot be read; .* copy it again or remove it"):
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
    with pytest.raises(NoJournalError, match="of 1 files none can be read; 1 truncated or damaged"):
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


def test_every_job_of_the_schema_is_there() -> None:
    assert list(schema.RESULTS) == list(JOBS)


@pytest.mark.parametrize("name", list(JOBS))
def test_a_job_gives_the_columns_of_its_schema(spark: SparkSession, name: str) -> None:
    """Of any visits, and of none."""
    frame = visits(spark, *journalling.passage(1))

    for history in (frame, frame.limit(0)):
        found = JOBS[name].run(history, None, Options(grace_seconds=10, pool_bytes=1 << 20))
        assert schema.RESULTS[name].names == found.columns
        assert schema.RESULTS[name].simpleString() == found.schema.simpleString()


def test_the_column_that_a_period_is_asked_of_is_there() -> None:
    assert all(
        job.time in schema.RESULTS[name].names for name, job in JOBS.items() if job.period is Period.RESULT
    )  # fmt: skip


def test_options_are_told_as_json() -> None:
    told = Options(window_seconds=60).to_json()

    assert told == json.loads(json.dumps(told))


# --- test_period ---
# Parts of a history.


HOUR = timedelta(hours=1)
BOUNDS = PeriodBounds(START, START + HOUR)


@pytest.mark.parametrize(
    ("path", "may"),
    [
        ("/x/date=2026-02-28/hour=09/a.parquet", False),
        ("/x/date=2026-02-28/hour=10/a.parquet", True),
        ("/x/date=2026-03-02/hour=14/a.parquet", True),
        ("/x/date=2026-03-02/hour=15/a.parquet", False),
        ("/x/a.parquet", True),
    ],
)
def test_files_are_chosen_by_their_hour_with_a_margin(path: str, *, may: bool) -> None:
    """A day and two hours on both sides: one for what is read around the period, and the age that a file may have."""
    assert may == bool(files_of([Path(path)], BOUNDS))


@pytest.mark.parametrize(
    ("first", "last", "has"),
    [
        (-7 * HOUR, -HOUR - timedelta(microseconds=1), False),
        (-7 * HOUR, -HOUR, True),
        (-7 * HOUR, 9 * HOUR, True),
        (2 * HOUR - timedelta(microseconds=1), 9 * HOUR, True),
        (2 * HOUR, 9 * HOUR, False),
        (None, None, True),
    ],
)
def test_files_are_chosen_by_what_their_footers_tell(
    first: timedelta | None, last: timedelta | None, *, has: bool
) -> None:
    """With the hour around; a file that does not tell may have anything."""
    begun, ended = (None if one is None else micros(START + one) for one in (first, last))
    state = FileState(Path("x"), Fitness.GOOD, first_us=begun, last_us=ended)

    assert has == BOUNDS.has(state)


def test_bounds_at_the_end_of_the_calendar_have_no_margin() -> None:
    assert PeriodBounds() == PeriodBounds(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)).wider()


def test_without_bounds_every_file_is_read() -> None:
    path = Path("/x/date=1999-01-01/hour=00/a.parquet")

    assert [path] == files_of([path], PeriodBounds())


def test_paths_are_not_cut_at_the_bounds(spark: SparkSession) -> None:
    """Their visits are read from an hour before to an hour after, and then the rows are chosen."""
    frame = visits(
        spark,
        *(
            {"message_id": 10 + number, "entered_at": START + number * HOUR / 2, "left_at": None}
            for number in range(-4, 6)
        ),
    )

    chosen = visits_of(frame, JOBS["paths"], BOUNDS)
    rows = result_of(chosen.select(F.col("entered_at").alias("started_at")), JOBS["paths"], BOUNDS)

    assert 6 == chosen.count()
    assert 2 == rows.count()


def test_of_dialogs_those_are_taken_that_began_in_the_period(spark: SparkSession) -> None:
    """With what they did in the hour after it."""
    rows = [
        {"conversation_id": 1, "entered_at": START - HOUR / 2},
        {"conversation_id": 1, "entered_at": START + HOUR / 2},
        {"conversation_id": 2, "entered_at": START + HOUR / 4},
        {"conversation_id": 2, "entered_at": START + 1.5 * HOUR},
        {"conversation_id": 2, "entered_at": START + 5 * HOUR},
    ]

    chosen = visits_of(visits(spark, *rows), JOBS["reconcile"], BOUNDS).collect()

    assert [2, 2] == [int.from_bytes(row.conversation_id, "big") for row in chosen]


def test_a_dialog_whose_first_message_is_not_in_sight_is_an_older_one(spark: SparkSession) -> None:
    """However long it was silent; and the direction of the target belongs to the dialog."""
    rows = [
        {"conversation_id": 1, "sequence_number": 7, "entered_at": START + HOUR / 2},
        {"conversation_id": 1, "from_target": True, "entered_at": START + HOUR / 2},
        {"conversation_id": 2, "entered_at": START + HOUR / 4},
        {"conversation_id": 2, "from_target": True, "entered_at": START + HOUR / 2},
    ]

    chosen = visits_of(visits(spark, *rows), JOBS["dialogs"], BOUNDS).collect()

    assert [(2, False), (2, True)] == sorted(
        (int.from_bytes(row.conversation_id, "big"), row.from_target) for row in chosen
    )


def test_without_bounds_nothing_is_left_out(spark: SparkSession) -> None:
    frame = visits(spark, {"entered_at": datetime(1999, 1, 1, tzinfo=UTC)})

    assert frame is visits_of(frame, JOBS["paths"], PeriodBounds())
    assert frame is result_of(frame, JOBS["paths"], PeriodBounds())
