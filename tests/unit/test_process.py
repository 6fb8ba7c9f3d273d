"""A process ends in good order on the first signal, at once on the second, and reads its configuration on SIGHUP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from broker.daemon.process import loop_factory, run
from broker.errors import BrokerError
from broker.net.drain import Drain, DrainBounds, Left

SECONDS = 60.0


class Served:
    """Something that is served, and leaves as the test says. Shape: `told` what happened to it, in order."""

    def __init__(self, *, left: Left = Left()) -> None:  # noqa: B008 - a value
        self.stopping = asyncio.Event()
        self.told: list[str] = []
        self.drain = Drain(self, lambda: DrainBounds(0.0, 0.05))
        self.reloads = self.admin = self
        self.is_reload_refused = False
        self._left = left

    def on_drain(self) -> None:
        self.told.append("drain")
        self.stopping.set()

    async def leave(self, seconds: float) -> None:
        self.told.append("leave")

    async def left(self) -> Left:
        return self._left

    async def reload(self) -> None:
        self.told.append("reload")
        if self.is_reload_refused:
            raise BrokerError("wrong")

    async def state(self) -> dict[str, str]:
        self.told.append("state")
        if self.is_reload_refused:
            raise OSError("no thread")
        return {"name": "played"}


def play(doing: Callable[[Served], None], **more: Any) -> tuple[bool, Served]:
    """Serve, do this to it, and be done: the answer of `run`, and what was served."""
    found: list[Served] = []

    @asynccontextmanager
    async def serving() -> AsyncIterator[Served]:
        served = Served(**more)
        found.append(served)
        asyncio.get_running_loop().call_later(0.05, doing, served)
        yield served
        await served.drain.end("done")

    return run(cast("Any", serving)), found[0]


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager's socket, named in the environment."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


def heard(manager: socket.socket) -> list[str]:
    """The first lines and the status of each datagram."""
    found: list[str] = []
    while True:
        try:
            lines = manager.recv(4096).decode().split("\n")
        except BlockingIOError:
            return found
        found.append(" ".join(line for line in lines if not line.startswith(("MONOTONIC", "EXTEND"))))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_begins_the_drain_and_its_end_is_the_end(number: signal.Signals) -> None:
    is_clean, served = play(lambda _: os.kill(os.getpid(), number))

    assert (True, number.name, ["drain", "leave"]) == (is_clean, served.drain.reason, served.told)


def test_what_was_left_behind_is_told_to_whoever_runs_it() -> None:
    is_clean, _ = play(lambda _: os.kill(os.getpid(), signal.SIGTERM), left=Left(held=1))

    assert not is_clean


def test_manager_hears_of_every_stage(manager: socket.socket) -> None:
    play(lambda _: os.kill(os.getpid(), signal.SIGTERM))

    words = heard(manager)
    assert "READY=1 STATUS=serving" == words[0]
    assert "STOPPING=1 STATUS=draining: announced, 1 s" == words[1]
    assert "STOPPING=1 STATUS=drained" == words[-1]


@pytest.mark.parametrize(
    ("is_refused", "status"),
    [(False, "serving"), (True, "serving; the last reload failed, the configuration before stays")],
)
def test_hangup_reloads_and_the_manager_hears_when_that_is_over(
    manager: socket.socket,
    is_refused: bool,  # noqa: FBT001 - a parameter of the test
    status: str,
) -> None:
    def hang_up(served: Served) -> None:
        served.is_reload_refused = is_refused
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)

    _, served = play(hang_up)

    assert ["reload", "drain", "leave"] == served.told
    assert ["READY=1 STATUS=serving", "RELOADING=1", f"READY=1 STATUS={status}"] == heard(manager)[:3]


@pytest.mark.parametrize(
    ("is_refused", "line"),
    [
        (False, {"event": "instance state", "log_level": "info", "status": {"name": "played"}}),
        (True, {"event": "instance state not told", "log_level": "warning", "reason": "OSError('no thread')"}),
    ],
)
def test_state_is_written_into_the_log_when_a_signal_asks_for_it(
    is_refused: bool,  # noqa: FBT001 - a parameter of the test
    line: dict[str, object],
) -> None:
    """SIGUSR1 tells, SIGUSR2 does nothing, and neither ends the process."""

    def ask(served: Served) -> None:
        served.is_reload_refused = is_refused
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)

    with capture_logs() as lines:
        is_clean, served = play(ask)

    told = [{key: one[key] for key in line} for one in lines if one["event"].startswith("instance state")]
    assert (True, [line], ["state", "drain", "leave"]) == (is_clean, told, served.told)


SECOND_SIGNAL = """
    import asyncio, os, signal, sys
    sys.path[:0] = {path!r}
    from contextlib import asynccontextmanager
    from broker.daemon.early_signal import end_on_signal
    from broker.daemon.process import run
    from tests.unit.test_process import Served
    from broker.net.drain import Left
    from broker.net.drain import DrainBounds, Drain

    @asynccontextmanager
    async def serving():
        if {is_starting}:
            asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        served = Served(left=Left(held=1))
        served.drain = Drain(served, lambda: DrainBounds(0.0, 60.0))
        for wait in (0.05, 0.2):
            asyncio.get_running_loop().call_later(wait, os.kill, os.getpid(), signal.{name})
        yield served
        await served.drain.end("done")

    end_on_signal()
    if {is_early}:
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(0 if run(serving) else 7)
"""


def child(**how: object) -> subprocess.CompletedProcess[str]:
    """A process of its own that plays one of these ends."""
    values = {"is_starting": False, "is_early": False, "name": "SIGTERM", "path": sys.path} | how
    script = textwrap.dedent(SECOND_SIGNAL).format(**values)
    words = [sys.executable, "-c", script]
    root = Path(__file__).parents[2]
    return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=root)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_second_signal_ends_the_process_at_once(name: str, code: int) -> None:
    result = child(name=name)

    assert code == result.returncode, result.stderr


@pytest.mark.parametrize("when", ["is_starting", "is_early"])
def test_signal_before_it_serves_ends_it_in_good_order(when: str) -> None:
    result = child(**{when: True})

    assert (0, "") == (result.returncode, result.stderr)


def test_loop_is_the_one_that_the_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_LOOP", "asyncio")
    assert loop_factory() is None

    monkeypatch.delenv("BROKER_LOOP")
    assert loop_factory() is not None
