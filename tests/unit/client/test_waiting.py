"""What waits for messages is woken by the daemon that stores them, in any process, and by nothing else."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.client import waiting
from broker.client.waiting import Doorbell
from broker.store.sqlite import hints
from broker.store.sqlite.hints import ANY, Bell, endpoint_slot, queue_slot

LONG = 20.0  # seconds: who waits so long was not woken


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "shop.db"
    path.write_bytes(b"")
    path.chmod(0o640)
    return str(path)


@pytest.fixture
def bell(path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bell]:
    monkeypatch.setattr(waiting, "CHECK_SECONDS", LONG)
    bell = Bell.open(path, is_made=True)
    assert bell is not None
    yield bell
    bell.close()
    bell.close()


def waited(doorbell: Doorbell, act: Callable[[], object]) -> float:
    """Seconds that a pause takes in which something is done."""
    thread = threading.Timer(0.05, act)
    began = time.monotonic()
    thread.start()
    doorbell.within(LONG).pause()
    thread.join()
    return time.monotonic() - began


def test_pause_ends_with_the_ring_of_its_slot(path: str, bell: Bell) -> None:
    doorbell = Doorbell(path, queue_slot(1))

    doorbell.mark()
    assert waited(doorbell, lambda: bell.ring([endpoint_slot(1), queue_slot(1)])) < LONG
    doorbell.mark()
    assert waited(doorbell, doorbell.interrupt) < LONG
    doorbell.close()


def test_ring_between_the_check_and_the_pause_is_not_missed(path: str, bell: Bell) -> None:
    doorbell = Doorbell(path, ANY)
    doorbell.mark()
    bell.ring([ANY])

    assert waited(doorbell, lambda: None) < LONG
    doorbell.close()


def test_ring_of_another_slot_wakes_nobody(path: str, bell: Bell) -> None:
    doorbell = Doorbell(path, endpoint_slot(1))
    doorbell.mark()
    bell.ring([ANY, queue_slot(1), endpoint_slot(2)])
    began = time.monotonic()

    doorbell.within(0.05).pause()

    assert time.monotonic() - began >= 0.05
    doorbell.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_child_that_was_forked_while_it_waited_is_woken_too(path: str, bell: Bell, *, restarts: bool) -> None:
    doorbell = Doorbell(path, ANY)
    doorbell.mark()
    child = os.fork()
    if child == 0:
        signal.alarm(int(LONG))
        doorbell.within(LONG).pause()
        os._exit(0)
    time.sleep(0.05)
    if restarts:  # a new daemon opens the same file
        again = Bell.open(path, is_made=True)
        assert again is not None
        again.ring([ANY])
        again.close()
    else:
        bell.ring([ANY])

    assert os.waitpid(child, 0)[1] == 0
    doorbell.close()


def test_bell_has_the_mode_of_its_database(path: str, bell: Bell) -> None:
    assert 0o640 == Path(f"{path}-bell").stat().st_mode & 0o777


def test_daemon_without_hints_leaves_no_bell_that_readers_would_wait_for(
    path: str, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(hints, "libc", lambda: None)

        assert Bell.open(path, is_made=True) is None
        assert not Path(f"{path}-bell").exists()
        assert Bell.open(path, is_made=True) is None


@pytest.mark.parametrize("harm", ["none", "cut short", "removed", "no more descriptors"])
def test_without_a_bell_a_pause_takes_its_time(path: str, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    file = Path(f"{path}-bell")
    if harm != "none":
        bell = Bell.open(path, is_made=True)
        assert bell is not None
        bell.close()
    if harm == "no more descriptors":
        monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(24, "EMFILE")))
    doorbell = Doorbell(path, ANY)
    if harm == "cut short":
        file.write_bytes(b"")
    elif harm == "removed":
        file.unlink()
    doorbell.mark()
    began = time.monotonic()

    doorbell.within(0.05).pause()
    doorbell.interrupt()

    assert time.monotonic() - began >= waiting.POLL_SECONDS
    doorbell.close()
