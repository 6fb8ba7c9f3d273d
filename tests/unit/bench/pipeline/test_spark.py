"""The jobs as the benchmark runs them. That they answer right is in tests/spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.bench.pipeline import spark as pipeline_spark
from broker.bench.pipeline.task import Task
from broker.pipeline import entry, session
from tests.support.synthetic import history


class NoSpark:
    """Stands for a session. Shape: `cleared` how often its cache was."""

    def __init__(self) -> None:
        self.cleared = 0
        self.catalog = self

    def clearCache(self) -> None:  # noqa: N802 - Spark's name
        self.cleared += 1


def test_all_passes_share_a_session_of_two_cores_and_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = history(tmp_path / "history", messages=10)
    spark = NoSpark()
    started: list[session.SessionOptions] = []
    requests: list[entry.Request] = []

    def start(options: session.SessionOptions) -> Any:
        started.append(options)
        return spark

    monkeypatch.setattr(session, "start", start)
    monkeypatch.setattr(entry, "run", requests.append)

    answer = pipeline_spark.prepare(Task("spark", ("paths",), str(made.directory), "", heap="1g"))
    for name in "ab":
        answer(tmp_path / name)

    assert [("local[2]", "1g")] == [(one.master, one.driver_memory) for one in started]
    assert [tmp_path / "a", tmp_path / "b"] == [request.out for request in requests]
    assert 2 == spark.cleared
