"""What the commands of the pipeline have in common."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from broker.cli import pipeline
from broker.cli.options import DURATION
from broker.cli.pipeline import JOBS
from broker.pipeline import jobs as entry
from broker.pipeline.jobs import PeriodBounds, RunRequest
from broker.pipeline.report import file as report_file
from tests.support.command import run


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *(
            (DURATION, text, timedelta(seconds=s))
            for text, s in [("90", 90), ("30s", 30), ("1.5h", 5400), ("1d", 86400)]
        ),
        *(
            (pipeline.SIZE, text, size)
            for text, size in [("1048576", 1 << 20), ("64MiB", 64 << 20), ("2 GiB", 2 << 30)]
        ),
        (pipeline.INSTANT, "2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        (pipeline.INSTANT, "2026-03-01T12:30+02:00", datetime(2026, 3, 1, 10, 30, tzinfo=UTC)),
    ],
)
def test_values(kind: click.ParamType[Any], text: str, value: object) -> None:
    assert value == kind.convert(text, None, None)


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (DURATION, "soon", "write"),
        (DURATION, "-1s", "write"),
        (DURATION, "99999999999d", "36500d is the longest"),
        (DURATION, "9" * 400, "write"),
        (pipeline.SIZE, "0", "write"),
        (pipeline.SIZE, "much", "write"),
        (pipeline.INSTANT, "now", "write"),
        (pipeline.INSTANT, "0001-01-01", "from 1971 to 9000"),
        (pipeline.INSTANT, "9999-12-31T23:59-14:00", "from 1971 to 9000"),
    ],
)
def test_what_is_none_of_them_is_refused(kind: click.ParamType[Any], text: str, told: str) -> None:
    with pytest.raises(click.BadParameter, match=told):
        kind.convert(text, None, None)


def test_a_report_of_nothing_is_refused_before_spark_starts(tmp_path: Path) -> None:
    """A master that nobody has would be told otherwise."""
    result = run("pipeline", "report", "--out", str(tmp_path), "--master", "nothing://at-all")

    assert (1, True) == (result.exit_code, f"{tmp_path} has no result of paths" in result.stderr), result.stderr


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None if name == "pyspark" else object())

    result = run("pipeline", "paths", "--journal", str(tmp_path), "--out", str(tmp_path))

    install = "pip install 'service-broker[pipeline]' (in a checkout, pip install '.[pipeline]')"
    assert (1, f"the pipeline needs pyspark: {install}\n") == (result.exit_code, result.stderr)


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

    result = run("pipeline", "paths", "--flows", "a", "--journal", "b", "--out", "o", *words.split(), "-o", "json")

    [request] = asked
    session = request.session
    assert (("paths",), (Path("b"), Path("a")), Path("o")) == (request.jobs, request.flows, request.out)
    assert ("spark://h:7077", "2g", {"a.b": "c=d"}) == (session.master, session.driver_memory, session.conf)
    assert (300, None) == (request.options.grace_seconds, request.options.window_seconds)
    assert PeriodBounds(datetime(2026, 3, 1, tzinfo=UTC)) == request.bounds
    assert DONE == json.loads(result.stdout)
    note = "DeprecationWarning: The option 'flows' is deprecated. Use --journal instead."
    assert [note, "paths: 3 rows, 0.1 s", "1 file of 1 instance read, 3 visits"] == result.stderr.splitlines()


def test_all_jobs_run_when_none_is_named(asked: list[Any]) -> None:
    for words in ("run", "run routes paths routes --pool 64MiB", "report --grace 5m"):
        assert 0 == run("pipeline", *words.split(), "--journal", "a", "--out", "o").exit_code

    assert [JOBS, ("routes", "paths"), JOBS] == [request.jobs for request in asked]
    assert {None} == {request.options.window_seconds for request in asked}
    assert (64 << 20, 300) == (asked[1].options.pool_bytes, asked[2].options.grace_seconds)


@pytest.mark.parametrize("more", [[], ["--explain"]])
def test_no_journal_is_not_found(tmp_path: Path, more: list[str]) -> None:
    """Before Spark is started; what is only explained may lie anywhere, for nothing is written."""
    out = tmp_path / "o" if not more else tmp_path / "flows"
    (tmp_path / "flows").mkdir()

    result = run("pipeline", "paths", "--journal", tmp_path / "flows", "--out", out, *more)

    assert (3, True) == (result.exit_code, "no file *.parquet below it" in result.stderr)
