"""The command bench: what it asks for, shows and keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.bench import suite
from broker.bench.figures import Result, Row, load
from broker.bench.generator import GeneratorError
from tests.support.command import run

ROWS = (
    Row("codec", "64 B", "encode", "struct.pack", "cpu_us", {"cpu_us": 0.1}, is_yardstick=True),
    Row("codec", "64 B", "encode", "header and body", "cpu_us", {"cpu_us": 0.4}),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was asked for; nothing is measured."""
    seen: list[tuple[Any, ...]] = []

    def fake(benches: Mapping[str, suite.Bench], *, is_full: bool, tell: suite.Tell) -> Result:
        seen.append((*benches, is_full))
        tell("forwarding: measuring")
        return Result({"cpu": "abacus"}, "2026-01-01T00:00:00+00:00", {"before": "0"}, ROWS)

    monkeypatch.setattr(suite, "run", fake)
    return seen


def test_without_a_name_everything_is_measured(asked: list[tuple[Any, ...]]) -> None:
    result = run("bench")

    assert (0, [("forwarding", "dialogs", False)]) == (result.exit_code, asked)
    assert "forwarding: measuring\n" == result.stderr
    assert "cpu abacus" == result.stdout.splitlines()[0]
    assert "4.00" in result.stdout


def test_what_is_named_is_measured_in_full(asked: list[tuple[Any, ...]]) -> None:
    run("bench", "dialogs", "--full")

    assert [("dialogs", True)] == asked


def test_figures_are_kept_and_compared_with(asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    run("bench", "--save", tmp_path / "first.json")

    result = run("bench", "--compare", tmp_path / "first.json")

    assert ROWS == load(tmp_path / "first.json").rows
    assert "│ same" in result.stdout


def test_json_has_rows_and_verdicts(asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    run("bench", "--save", tmp_path / "first.json")

    told = json.loads(run("bench", "-o", "json", "--compare", tmp_path / "first.json").stdout)

    assert ["struct.pack", "header and body"] == [row["subject"] for row in told["rows"]]
    assert [{"row": ["codec", "64 B", "encode", "header and body"], "verdict": "same"}] == told["changes"]


def test_a_file_that_holds_no_figures_is_refused_before_anything_is_measured(
    asked: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    (tmp_path / "none.json").write_text("{}")

    result = run("bench", "--compare", tmp_path / "none.json")

    assert (1, []) == (result.exit_code, asked)
    assert "holds no results of broker bench" in result.stderr


def test_an_unknown_benchmark_is_wrong_usage() -> None:
    assert 2 == run("bench", "weather").exit_code


def test_a_measurement_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Result:
        raise GeneratorError("load generator: connect to the hop: Connection refused")

    monkeypatch.setattr(suite, "run", fail)

    result = run("bench")

    assert (1, "load generator: connect to the hop: Connection refused\n") == (result.exit_code, result.stderr)
