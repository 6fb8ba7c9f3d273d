"""What a service manager hears, on a real socket; a loop that stands still feeds no watchdog."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.daemon.process import Notify
from tests.support.loopback import until


class Manager:
    """A service manager's end of the socket. Shape: `name` as the environment has it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self._socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        """The datagrams that have come, each as its lines."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@broker-test-{os.getpid()}-{time.monotonic_ns()}"
    with closing(Manager(name)) as manager:
        yield manager


def test_manager_hears_each_state_in_its_words(manager: Manager) -> None:
    before = time.monotonic_ns() // 1000
    with closing(Notify({"NOTIFY_SOCKET": manager.name})) as notify:
        notify.ready("serving")
        notify.reloading()
        notify.status("two\nlines")
        notify.stopping("draining: 2 held, 1 peer left, 9 s", 12.5)

    ready, reloading, status, stopping = manager.heard()
    assert ["READY=1", "STATUS=serving"] == ready
    assert "RELOADING=1" == reloading[0]
    name, _, usec = reloading[1].partition("=")
    assert "MONOTONIC_USEC" == name
    assert before <= int(usec) <= time.monotonic_ns() // 1000
    assert ["STATUS=two lines"] == status
    assert ["STOPPING=1", "STATUS=draining: 2 held, 1 peer left, 9 s", "EXTEND_TIMEOUT_USEC=12500000"] == stopping


def test_names_are_taken_out_of_the_environment_so_that_no_child_speaks_for_us(manager: Manager) -> None:
    environ = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}

    with closing(Notify(environ)) as notify:
        assert (2.0, {"A": "b"}) == (notify.watchdog_s, environ)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "1000000"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
def test_nobody_is_watched_who_was_not_asked_to(environ: dict[str, str]) -> None:
    with closing(Notify(environ)) as notify:
        assert 0.0 == notify.watchdog_s


def test_without_a_manager_nothing_is_told_and_nothing_fails() -> None:
    with capture_logs() as logs, closing(Notify({})) as notify:
        notify.ready("serving")

    assert [] == logs


@pytest.mark.parametrize(
    ("name", "reason"), [("/nowhere/notify", "No such file or directory"), ("vsock:2:1", "neither a path")]
)
def test_manager_that_cannot_be_reached_is_told_of_in_the_log_only(name: str, reason: str) -> None:
    with capture_logs() as logs, closing(Notify({"NOTIFY_SOCKET": name})) as notify:
        notify.ready("serving")

    (entry,) = logs
    assert "service manager not told" == entry["event"]
    assert reason in entry["reason"]


async def test_watchdog_is_fed_twice_in_its_time_and_not_by_a_loop_that_stands_still(manager: Manager) -> None:
    environ = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "100000"}
    with closing(Notify(environ)) as notify:
        notify.start_watchdog()
        fed: list[list[str]] = []

        def is_fed() -> bool:
            fed.extend(manager.heard())
            return len(fed) >= 4

        await until(is_fed)
        manager.heard()

        time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still, five times as long as the manager waits
        while_it_stood = manager.heard()

    assert [["WATCHDOG=1"]] * 4 == fed[:4]
    assert [] == while_it_stood


async def test_closed_one_feeds_nobody(manager: Manager) -> None:
    notify = Notify({"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "20000"})
    notify.start_watchdog()

    notify.close()
    manager.heard()
    await asyncio.sleep(0.05)

    assert [] == manager.heard()
