"""What the commands of the pipeline have in common."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from broker.cli import pipeline
from broker.cli.options import Duration
from broker.cli.pipeline import JOBS
from broker.errors import PipelineError
from broker.pipeline import jobs as entry
from broker.pipeline.jobs import PeriodBounds, RunRequest
from broker.pipeline.report import file as report_file
from tests.support.command import run


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30s", 30), ("15m", 900), ("1.5h", 5400), ("1d", 86400)])
def test_durations(text: str, seconds: float) -> None:
    assert timedelta(seconds=seconds) == Duration().convert(text, None, None)


@pytest.mark.parametrize(("text", "size"), [("1048576", 1 << 20), ("64MiB", 64 << 20), ("2 GiB", 2 << 30)])
def test_sizes(text: str, size: int) -> None:
    assert size == pipeline.Size().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-01T12:30", datetime(2026, 3, 1, 12, 30, tzinfo=UTC)),
        ("2026-03-01T12:30+02:00", datetime(2026, 3, 1, 10, 30, tzinfo=UTC)),
    ],
)
def test_instants(text: str, instant: datetime) -> None:
    assert instant == pipeline.Instant().convert(text, None, None)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Duration(), "soon"), (Duration(), "-1s"), (pipeline.Size(), "0"), (pipeline.Instant(), "now")],
)
def test_what_is_none_of_them_is_refused_with_examples(kind: click.ParamType[Any], text: str) -> None:
    with pytest.raises(click.BadParameter, match="write"):
        kind.convert(text, None, None)


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (Duration(), "99999999999d", "36500d is the longest"),
        (Duration(), "9" * 400, "36500d is the longest"),
        (pipeline.Instant(), "0001-01-01", "from 1971 to 9000"),
        (pipeline.Instant(), "9999-12-31T23:59-14:00", "from 1971 to 9000"),
    ],
)
def test_what_no_calendar_holds_is_refused(kind: click.ParamType[Any], text: str, told: str) -> None:
    with pytest.raises(click.BadParameter, match=told):
        kind.convert(text, None, None)


def test_a_report_of_nothing_is_refused_before_spark_starts(tmp_path: Path) -> None:
    """A master that nobody has would be told otherwise."""
    result = run("pipeline", "report", "--out", str(tmp_path), "--master", "nothing://at-all")

    assert (1, True) == (result.exit_code, f"{tmp_path} has no result of paths" in result.stderr), result.stderr


@pytest.mark.parametrize("command", [["paths"], ["run"], ["report"]])
@pytest.mark.parametrize(
    ("flows", "out", "told"),
    [("{}", "{}/x", "would lie among the journals"), ("s3a://bucket/flows", "{}", "s3a://bucket/flows is not on a")],
)
def test_a_place_that_no_run_can_take_is_wrong_usage(
    command: list[str], flows: str, out: str, told: str, tmp_path: Path
) -> None:
    words = ["--flows", flows.format(tmp_path), "--out", out.format(tmp_path)]

    result = run("pipeline", *command, *words, "--master", "nothing://at-all")

    assert (2, True) == (result.exit_code, told in " ".join(result.stderr.split())), result.stderr


def test_what_is_only_explained_lies_nowhere(tmp_path: Path) -> None:
    """The working directory may be a journal: nothing is written. Without a file there is nothing to explain."""
    result = run("pipeline", "paths", "--flows", str(tmp_path), "--out", str(tmp_path), "--explain")

    assert 3 == result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--out", "o", "--from", "2026-03-02", "--to", "2026-03-01"], "--from is not before --to"),
        ([], "--out is missing"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(words: list[str], told: str, tmp_path: Path) -> None:
    result = run("pipeline", "paths", "--flows", str(tmp_path), *words)

    assert (2, True) == (result.exit_code, told in result.stderr), result.stderr


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None if name == "pyspark" else object())

    result = run("pipeline", "paths", "--flows", str(tmp_path), "--out", str(tmp_path))

    assert (1, "the pipeline needs pyspark: pip install 'broker[pipeline]'\n") == (result.exit_code, result.stderr)


# --- jobs ---


FILES = {"read": 1, "instances": 1, "rows": 3, "left_out": [], "shed_records": {}, "samples": {}} | dict.fromkeys(
    ("damaged", "foreign", "copy", "vanished", "vanished_while_read", "newer", "older"), 0
)
DONE = {"jobs": {"paths": {"rows": 3, "seconds": 0.1, "out": "o/paths"}}, "files": FILES}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests; nothing runs."""
    seen: list[Any] = []

    def fake(request: RunRequest, tell: entry.Report) -> dict[str, Any]:
        seen.append(request)
        tell("paths: 3 rows, 0.1 s")
        return DONE

    monkeypatch.setattr(entry, "run", fake)
    monkeypatch.setattr(report_file, "run", fake)
    return seen


def test_options_become_a_request(asked: list[Any]) -> None:
    words = "--master spark://h:7077 --conf a.b=c=d --driver-memory 2g --from 2026-03-01 --grace 5m"

    result = run("pipeline", "paths", "--flows", "a", "--flows", "b", "--out", "o", *words.split())

    (request,) = asked
    assert (0, ("paths",)) == (result.exit_code, request.jobs)
    assert ((Path("a"), Path("b")), Path("o"), 300) == (request.flows, request.out, request.options.grace_seconds)
    assert ("spark://h:7077", "2g", {"a.b": "c=d"}) == (
        request.session.master, request.session.driver_memory, request.session.conf
    )  # fmt: skip
    assert PeriodBounds(datetime(2026, 3, 1, tzinfo=UTC)) == request.bounds


def test_what_is_read_is_told_on_the_error_channel(asked: list[Any]) -> None:
    result = run("pipeline", "routes", "--flows", "a", "--out", "o", "--window", "1h", "-o", "json")

    assert DONE == json.loads(result.stdout)
    assert ["paths: 3 rows, 0.1 s", "1 files of 1 instances read, 3 visits"] == result.stderr.splitlines()
    assert 3600 == asked[0].options.window_seconds


def test_all_jobs_run_when_none_is_named(asked: list[Any]) -> None:
    run("pipeline", "run", "--flows", "a", "--out", "o")
    run("pipeline", "run", "routes", "paths", "routes", "--flows", "a", "--out", "o", "--pool", "64MiB")

    assert [JOBS, ("routes", "paths")] == [request.jobs for request in asked]
    assert 64 << 20 == asked[1].options.pool_bytes


def test_a_report_of_journals_runs_its_jobs(asked: list[Any]) -> None:
    result = run("pipeline", "report", "--flows", "a", "--out", "o")

    assert (0, JOBS) == (result.exit_code, asked[0].jobs)


def test_jobs_need_journals(asked: list[Any]) -> None:
    result = run("pipeline", "reconcile", "--out", "o")

    assert (2, True) == (result.exit_code, "--flows is missing" in result.stderr)


def test_a_window_is_whole_seconds(asked: list[Any]) -> None:
    assert 2 == run("pipeline", "capacity", "--flows", "a", "--out", "o", "--window", "0.5s").exit_code


def test_no_journal_is_not_found(tmp_path: Path) -> None:
    """Before Spark is started."""
    (tmp_path / "flows").mkdir()

    result = run("pipeline", "paths", "--flows", str(tmp_path / "flows"), "--out", str(tmp_path / "o"))

    assert (3, True) == (result.exit_code, "no file *.parquet below it" in result.stderr)


def test_a_failure_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise PipelineError("Spark gave up: it", "see above")

    monkeypatch.setattr(entry, "run", fails)

    result = run("pipeline", "paths", "--flows", "a", "--out", "o")

    assert (1, "Spark gave up: it; see above\n") == (result.exit_code, result.stderr)
