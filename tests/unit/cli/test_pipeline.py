"""What the commands of the pipeline have in common."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from broker.cli import pipeline
from tests.support.command import run


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30s", 30), ("15m", 900), ("1.5h", 5400), ("1d", 86400)])
def test_durations(text: str, seconds: float) -> None:
    assert timedelta(seconds=seconds) == pipeline.Duration().convert(text, None, None)


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
    [(pipeline.Duration(), "soon"), (pipeline.Duration(), "-1s"), (pipeline.Size(), "0"), (pipeline.Instant(), "now")],
)
def test_what_is_none_of_them_is_refused_with_examples(kind: click.ParamType[Any], text: str) -> None:
    with pytest.raises(click.BadParameter, match="write"):
        kind.convert(text, None, None)


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (pipeline.Duration(), "99999999999d", "36500d is the longest"),
        (pipeline.Duration(), "9" * 400, "36500d is the longest"),
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
