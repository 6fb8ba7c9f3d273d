"""The commands of `broker pipeline`: what they ask for, and how they end. Spark is not started."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broker.cli.pipeline import JOBS
from broker.errors import PipelineError
from broker.pipeline import jobs
from broker.pipeline import jobs as entry
from broker.pipeline.jobs import PeriodBounds, RunRequest
from broker.pipeline.report import file as report_file
from tests.support.command import run

FILES = {"read": 1, "instances": 1, "rows": 3, "left_out": [], "shed_records": {}, "samples": {}} | dict.fromkeys(
    ("damaged", "foreign", "copy", "vanished", "vanished_while_read", "newer", "older"), 0
)
DONE = {"jobs": {"paths": {"rows": 3, "seconds": 0.1, "out": "o/paths"}}, "files": FILES}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests; nothing runs."""
    seen: list[Any] = []

    def fake(request: RunRequest, tell: entry.Tell) -> dict[str, Any]:
        seen.append(request)
        tell("paths: 3 rows, 0.1 s")
        return DONE

    monkeypatch.setattr(entry, "run", fake)
    monkeypatch.setattr(report_file, "run", fake)
    return seen


def test_the_jobs_are_those_that_there_are() -> None:
    assert list(JOBS) == list(jobs.JOBS)


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
