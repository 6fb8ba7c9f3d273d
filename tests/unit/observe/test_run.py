"""What runs, and whether its loop keeps time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from broker.observe.metrics import run_readers
from tests.support.scraped import samples_of


async def test_lag_is_the_clock_s(start: Any) -> None:
    instance = await start("near")
    instance.lag.note(0.25)

    samples = await samples_of(instance)

    assert samples["broker_event_loop_lag_seconds"] == {(): 0.25}


async def test_task_that_dies_is_counted(start: Any, until: Any) -> None:
    instance = await start("near")
    before = await samples_of(instance)
    next(task for task in asyncio.all_tasks() if task.get_name() == "near poll").cancel()
    await until(lambda: instance.supervision.failures["near poll"])

    samples = await samples_of(instance)

    assert before["broker_task_failures_total"]["near poll",] == 0
    assert samples["broker_task_failures_total"]["near poll",] == 1
    assert samples["broker_task_failures_total"]["peers tick",] == 0


async def test_no_line_of_the_log_is_lost_at_first(start: Any) -> None:
    assert (await samples_of(await start("near")))["broker_log_lines_dropped_total"] == {(): 0}


async def test_journal_whose_writer_has_died_is_counted(start: Any) -> None:
    instance = await start("near")
    instance.journal = SimpleNamespace(status=lambda: {"failures": 1})

    told = dict(run_readers()["broker_task_failures_total"](instance))

    instance.journal = None
    assert told["journal",] == 1
