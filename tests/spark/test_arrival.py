"""Incremental runs as they are asked for; `test_incremental` tells what their results must be."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.errors import NoJournalError, PipelineError
from broker.pipeline import arrival
from broker.pipeline.arrival import Arrival, run_incremental
from broker.pipeline.entry import Request
from broker.pipeline.jobs import JOBS, Options
from tests.spark import journalling


@pytest.fixture
def request_(tmp_path: Path, spark: SparkSession) -> Request:
    journalling.write(tmp_path / "flows", *journalling.passage(1), shed=2)
    return Request(("paths",), (tmp_path / "flows",), tmp_path / "out")


def test_a_run_tells_its_files_and_writes_it_down(request_: Request) -> None:
    lines: list[str] = []

    told = run_incremental(request_, Arrival(is_last=True), lines.append)

    report = json.loads((request_.out / "paths" / "_report.json").read_text())
    assert {"a": 2} == report["shed"] == told["jobs"]["paths"]["shed_records"]
    assert 1 == report["totals"]["read"]
    assert "paths step 1: 1 files of 1 instances read, 3 visits; 0 rows, 3 visits carried along" == lines[0]
    assert "  a shed 2 records for want of room: figures lack them" == lines[1]


def test_nothing_follows_a_run_that_finished(request_: Request) -> None:
    run_incremental(request_, Arrival(is_last=True))

    with pytest.raises(PipelineError, match="have finished; give another --out"):
        run_incremental(request_, Arrival())


def test_other_options_are_refused(request_: Request) -> None:
    run_incremental(request_, Arrival())

    with pytest.raises(PipelineError, match=r"grace_seconds was None, is 5"):
        run_incremental(replace(request_, options=Options(grace_seconds=5)), Arrival())


def test_a_result_of_all_files_is_not_mixed_with_parts(request_: Request) -> None:
    (request_.out / "paths").mkdir(parents=True)
    (request_.out / "paths" / "x.parquet").touch()

    with pytest.raises(PipelineError, match="holds a result of all files"):
        run_incremental(request_, Arrival())


def test_a_directory_that_is_not_there_is_told(request_: Request, tmp_path: Path) -> None:
    with pytest.raises(NoJournalError):
        run_incremental(replace(request_, flows=(tmp_path / "nowhere",)), Arrival())


def test_what_a_step_raises_is_told_as_it_was(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would tell words of a callback."""

    def fails(*_: object) -> None:
        raise PipelineError("a step failed", "look")

    monkeypatch.setitem(JOBS, "paths", replace(JOBS["paths"], run=fails))  # type: ignore[arg-type]

    with pytest.raises(PipelineError, match="a step failed; look"):
        run_incremental(request_, Arrival())


def test_with_every_new_files_are_taken_until_it_is_stopped(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several jobs at once; stopped from outside, as Ctrl-C does."""
    lines: list[str] = []
    two_steps = threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        if sum("step" in one for one in lines) == 2:
            journalling.write(request_.flows[0], *journalling.passage(2, at=1_000))
        if sum("step" in one for one in lines) >= 4:
            two_steps.set()

    class Stopped(Exception):  # noqa: N818 - of this test
        pass

    def until(queries: object) -> None:
        assert two_steps.wait(90)
        raise Stopped

    monkeypatch.setattr(arrival, "_wait", until)
    with pytest.raises(Stopped):
        run_incremental(replace(request_, jobs=("paths", "routes")), Arrival(every=0.5), tell)

    assert {"paths step 1", "routes step 1", "paths step 2", "routes step 2"} == {
        line.partition(":")[0] for line in lines if "step" in line
    }
