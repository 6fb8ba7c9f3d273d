"""The jobs of the pipeline beside other engines: what is made of what was measured. The engines are not started."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.bench.pipeline import measurement as pipeline
from broker.bench.pipeline.measurement import DUCKDB, MANY, PASSES, SPARK, Scale, UnequalAnswersError
from broker.bench.pipeline.task import Task
from broker.errors import BrokerError, PipelineUnavailableError

TOOK = {DUCKDB: 2.0, "polars": 1.0, SPARK: 6.0}


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """What was asked; each engine takes its own time for a thousand records, and always answers the same."""
    asked: list[Task] = []

    def answered(task: Task) -> list[pipeline.Sample]:
        asked.append(task)
        files = Path(task.journal).glob("date=*/hour=*/*.parquet")
        records = sum(pq.read_metadata(file).num_rows for file in files)
        seconds = TOOK[task.engine] * records / 1_000
        return [{"cpu_seconds": seconds / (1 + number), "seconds": seconds} for number in range(task.passes)]

    monkeypatch.setattr(pipeline, "answered", answered)
    monkeypatch.setattr(pipeline, "fingerprint", lambda _out, jobs: dict.fromkeys(jobs, (1, 2)))
    return asked


def test_every_engine_is_asked_and_duckdb_is_the_yardstick(tasks: list[Task]) -> None:
    rows = pipeline.measure(Scale((500,), 0.2))

    found = {(row.case, row.mode, row.subject): row for row in rows}
    many = ", ".join(MANY)
    first, second = (found[many, pipeline.mode_of(500, which), "Spark"] for which in PASSES)
    assert first.values["cpu_seconds"] == pytest.approx(2 * second.values["cpu_seconds"])
    assert {"DuckDB"} == {row.subject for row in rows if row.is_yardstick}
    assert {many, "reconcile"} == {row.case for row in rows}
    assert all(row.is_less_better for row in rows)
    assert [(SPARK, "8g"), (SPARK, "1g")] == [(task.engine, task.heap) for task in tasks[-2:]]


def test_growth_is_what_the_larger_history_takes_of_the_smaller_one(tasks: list[Task]) -> None:
    rows = pipeline.measure(Scale((400, 1_200), 0.2))

    times = [row for row in rows if row.mode.startswith(pipeline.GROWTH)]
    assert {f"growth, 400 to 1,200 records, {which}" for which in PASSES} == {row.mode for row in times}
    assert all(2 < row.figure < 4 for row in times)


def test_other_answers_with_less_memory_are_an_error(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([{"paths": (1, 2)}, {"paths": (1, 3)}])
    monkeypatch.setattr(pipeline, "fingerprint", lambda _out, _jobs: next(told))

    with pytest.raises(UnequalAnswersError):
        pipeline.measure(Scale((300,), 0.2))


def test_an_engine_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "NEEDED", ("no_such_engine",))

    with pytest.raises(PipelineUnavailableError, match="no_such_engine"):
        pipeline.measure(pipeline.QUICK)


def test_an_engine_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="at least one file"):
        pipeline.answered(Task(DUCKDB, ("paths",), str(tmp_path), str(tmp_path / "out")))


def test_a_fingerprint_does_not_depend_on_order_and_does_on_values(tmp_path: Path) -> None:
    for name, values in (("a", [1, 2, 3]), ("b", [3, 1, 2]), ("c", [1, 2, 4])):
        (tmp_path / name / "paths").mkdir(parents=True)
        table = pa.table({"value": values, "when": ["x"] * 3})
        pq.write_table(table.slice(0, 1), tmp_path / name / "paths" / "1.parquet")
        pq.write_table(table.slice(1), tmp_path / name / "paths" / "2.parquet")

    one, other, third = (pipeline.fingerprint(tmp_path / name, ("paths",)) for name in "abc")

    assert one == other != third
    assert 3 == one["paths"][0]
