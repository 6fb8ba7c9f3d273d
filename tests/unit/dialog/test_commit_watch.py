"""When the writer looks for commits: at once where one is heard, and now and then in any case."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.dialog.commit_watch import CHECK_SECONDS, FIRST_SECONDS, POLL_SECONDS, CommitWatch
from tests.support.virtual_time import virtual_time

LONG = 100.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db-wal"
    write(path, b"")
    return path


def write(log: Path, body: bytes) -> None:
    log.write_bytes(body)


def opened(log: Path, look: Callable[[], None]) -> CommitWatch:
    return CommitWatch(str(log).removesuffix("-wal"), look)


def end(watch: CommitWatch, *, has_found: bool = False, longest: float = LONG) -> None:
    watch.end(has_found=has_found, had_work=has_found, longest=longest)


@virtual_time
async def test_looks_get_rarer_until_there_is_work_again_or_something_is_due(tmp_path: Path) -> None:
    loop, looks = asyncio.get_running_loop(), list[float]()
    watch = CommitWatch(str(tmp_path / "shop.db"), lambda: looks.append(loop.time()))

    async def pause(*, has_found: bool = False, longest: float = LONG) -> float:
        watch.begin(is_writing=False)
        end(watch, has_found=has_found, longest=longest)
        before = loop.time()
        await asyncio.sleep(1.0)
        return looks.pop() - before

    assert [await pause(has_found=True)] == [pytest.approx(FIRST_SECONDS)]
    pauses = [await pause() for _ in range(4)]
    assert [pytest.approx(one) for one in (0.004, 0.016, POLL_SECONDS, POLL_SECONDS)] == pauses
    assert pytest.approx(POLL_SECONDS / 2) == await pause(longest=POLL_SECONDS / 2)
    watch.close()
    assert looks == []


@virtual_time
async def test_commit_that_is_hinted_and_not_visible_yet_is_looked_for_again_soon(tmp_path: Path) -> None:
    loop, looks = asyncio.get_running_loop(), list[float]()
    watch = CommitWatch(str(tmp_path / "shop.db"), lambda: looks.append(loop.time()))
    for _ in range(8):
        watch.begin(is_writing=False)
        end(watch)

    watch.hint()
    watch.begin(is_writing=False)  # its fsync takes longer than this batch waits for it
    end(watch)
    looks.clear()
    before = loop.time()
    await asyncio.sleep(1.0)

    assert [pytest.approx(FIRST_SECONDS)] == [one - before for one in looks]
    watch.close()


async def test_write_is_hinted_at_once_and_once_but_not_while_the_writer_writes_or_was_hinted(log: Path) -> None:
    looked = asyncio.Event()
    watch = opened(log, looked.set)
    watch.begin(is_writing=True)
    write(log, b"own")
    await asyncio.sleep(0.01)
    assert not looked.is_set()

    end(watch)
    looked.clear()
    write(log, b"another's")
    while not watch.is_hinted:
        await asyncio.wait_for(looked.wait(), 10.0)
        looked.clear()

    watch.begin(is_writing=False)
    write(log, b"more of the same commit")
    await asyncio.sleep(0.01)
    assert (False, False) == (watch.is_hinted, looked.is_set())
    end(watch)

    watch.begin(is_writing=False)
    write(log, b"during a batch that only reads")
    await asyncio.wait_for(looked.wait(), 10.0)
    assert watch.is_hinted
    watch.close()
    write(log, b"after the end")
    await asyncio.sleep(0)


async def test_commit_that_was_found_and_not_heard_makes_looks_more_frequent(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.dialog.commit_watch.RECENT_SECONDS", 0.0)
    delays = list[float]()
    loop = asyncio.get_running_loop()
    looked = asyncio.Event()
    watch = opened(log, looked.set)
    monkeypatch.setattr(loop, "call_at", lambda due, *_: delays.append(due - loop.time()))

    def idle(batches: int) -> float:
        for _ in range(batches):
            watch.begin(is_writing=False)
            end(watch)
        return delays[-1]

    assert pytest.approx(CHECK_SECONDS, abs=0.01) == idle(8)
    watch.begin(is_writing=False)
    end(watch, has_found=True)
    assert pytest.approx(POLL_SECONDS, abs=0.01) == idle(8)

    monkeypatch.undo()
    write(log, b"heard")
    await asyncio.wait_for(looked.wait(), 10.0)
    monkeypatch.setattr("broker.dialog.commit_watch.RECENT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "call_at", lambda due, *_: delays.append(due - loop.time()))
    assert pytest.approx(CHECK_SECONDS, abs=0.01) == idle(8)
    watch.close()
