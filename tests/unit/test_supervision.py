"""A task that ends by itself is told, counted and begun anew; one that is stopped is not."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from structlog.testing import capture_logs

from broker import supervision
from broker.supervision import Supervision, TaskGroup
from tests.support.loopback import until


async def test_task_is_kept_until_it_ends_and_a_bug_is_told_under_its_name() -> None:
    async def fail() -> None:
        raise AssertionError("a bug")

    tasks = TaskGroup()
    with capture_logs() as logs:
        tasks.spawn(fail(), "broken")
        tasks.spawn(asyncio.sleep(1000), "long")
        await until(lambda: len(tasks) == 1)
    await tasks.cancel()

    assert ([("task failed", "broken")], 0) == ([(entry["event"], entry["task"]) for entry in logs], len(tasks))


class Worker:
    """Begins as often as it is asked to. Shape: `begun` how often; `blow` makes the one under way fail."""

    def __init__(self) -> None:
        self.begun = 0
        self.blow = asyncio.Event()
        self.error: Exception | None = ValueError("a bug")

    async def run(self) -> None:
        """Wait, and end as `error` says."""
        self.begun += 1
        await self.blow.wait()
        self.blow.clear()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("reason", ["ValueError('a bug')", "it has ended", "it was cancelled"])
async def test_task_that_dies_is_told_counted_and_begun_anew(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    watch, worker = Supervision(), Worker()
    kept = watch.keep("tick", worker.run)
    await until(lambda: worker.begun == 1)
    well = {"name": "tick", "running": True, "failures": 0, "problem": ""}
    assert ({"tick": ""}, [well]) == (watch.problems, watch.status())
    watch.note("journal")

    with capture_logs() as logs:
        if reason == "it was cancelled":
            next(task for task in asyncio.all_tasks() if task.get_name() == "tick").cancel()
        else:
            worker.error = None if reason == "it has ended" else worker.error
            worker.blow.set()
        await until(lambda: worker.begun == 2)

    told = [(entry["event"], entry["task"], entry["reason"], entry["restart_in_s"]) for entry in logs]
    assert told == [("task failed", "tick", reason, supervision.PAUSE_FIRST)]
    assert ("ValueError" in reason) == ("exc_info" in logs[0])
    assert {"tick": 1, "journal": 1} == watch.failures
    assert watch.problems["tick"].endswith(f"{reason}; it works again")
    monkeypatch.setattr(supervision, "YOUNG_SECONDS", 0.0)
    assert {"tick": ""} == watch.problems  # after a while
    await kept.stop()


async def test_task_that_dies_young_again_and_again_rests_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "PAUSE_FIRST", 0.001)
    monkeypatch.setattr(supervision, "PAUSE_MAX", 0.004)
    watch, worker = Supervision(), Worker()
    kept = watch.keep("tick", worker.run)

    with capture_logs() as logs:
        for deaths in range(1, 5):
            await until(lambda deaths=deaths: worker.begun == deaths)  # type: ignore[misc]
            worker.blow.set()
            await until(lambda deaths=deaths: kept.failures == deaths)  # type: ignore[misc]

    assert [entry["restart_in_s"] for entry in logs] == [0.001, 0.002, 0.004, 0.004]
    await kept.stop()


@pytest.mark.parametrize("is_dead", [False, True])
async def test_task_that_is_stopped_is_not_begun_anew(is_dead: bool) -> None:  # noqa: FBT001 - a case
    watch, worker = Supervision(), Worker()
    kept = watch.keep("tick", worker.run)
    await until(lambda: worker.begun == 1)
    if is_dead:
        worker.blow.set()
        await until(lambda: not kept.is_running)

    await kept.stop()
    await asyncio.sleep(2 * supervision.PAUSE_FIRST if is_dead else 0)

    assert (1, {}) == (worker.begun, watch.problems)
    assert watch.failures == {"tick": int(is_dead)}


async def test_task_may_end_by_itself_when_it_is_not_wanted_any_more() -> None:
    watch = Supervision()
    stopping = asyncio.Event()
    ended = []

    async def work() -> None:
        await stopping.wait()
        await asyncio.sleep(0)
        ended.append("in its own time")

    kept = watch.keep("keeper", work)
    await asyncio.sleep(0)
    stopping.set()

    await kept.stop(is_cancelled=False)

    assert ended == ["in its own time"]


async def test_bug_at_the_end_is_told_and_nothing_more() -> None:
    watch = Supervision()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("a bug")

    kept = watch.keep("tick", work)
    await asyncio.sleep(0)

    with capture_logs() as logs:
        await kept.stop()

    assert [entry["event"] for entry in logs] == ["task failed"]
    assert watch.failures == {"tick": 0}


async def test_stack_ends_what_was_begun_within_it() -> None:
    async with AsyncExitStack() as stack:
        Supervision().keep_within(stack, "tick", Worker().run)
        assert "tick" in {task.get_name() for task in asyncio.all_tasks()}

    assert "tick" not in {task.get_name() for task in asyncio.all_tasks()}
