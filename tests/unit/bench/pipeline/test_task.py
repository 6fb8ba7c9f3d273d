"""A task survives the way to another process."""

from __future__ import annotations

from broker.bench.pipeline.task import Task, decoded


def test_a_task_is_what_it_was() -> None:
    task = Task("duckdb", ("paths", "routes"), "in", "out", 2, "1g")

    assert task == decoded(task.encoded())
