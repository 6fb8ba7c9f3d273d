"""A process ends in good order on the first signal, at once on the second, and reads its configuration on SIGHUP."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from broker.config.settings import DrainSettings
from broker.daemon.process import Notify, loop_factory, run
from broker.errors import BrokerError
from broker.net.drain import Drain, DrainRemainder
from tests.support.loopback import until

PROGRAM = """
import resource, subprocess, sys
from broker.daemon.process import forbid_core_dumps
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
forbid_core_dumps()
ask = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
print(resource.getrlimit(resource.RLIMIT_CORE)[0], subprocess.run([sys.executable, "-c", ask], capture_output=True,
      text=True, check=True).stdout.strip(), hard == resource.getrlimit(resource.RLIMIT_CORE)[1])
"""


def test_neither_the_process_nor_its_children_leave_a_core() -> None:
    """In a process of its own: the limit is the whole process's."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert "0 0 True\n" == done.stdout


def test_clock_of_the_loop_is_the_monotonic_one_to_the_microsecond(monkeypatch: pytest.MonkeyPatch) -> None:
    async def times() -> list[tuple[float, float, float]]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.01)
        return [(time.monotonic(), loop.time(), time.monotonic()) for _ in range(1000)]

    monkeypatch.delenv("BROKER_LOOP", raising=False)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(times())

    assert all(before <= now <= after for before, now, after in found)
    assert len({round(now * 1e6) % 1000 for _, now, _ in found}) > 10
    monkeypatch.setenv("BROKER_LOOP", "asyncio")
    assert loop_factory() is None


class Manager:
    """A service manager's end of the socket; `name` is as the environment has it."""

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
        notify.stopping("draining: 2 held,\n1 peer left, 9 s", 12.5)

    ready, reloading, stopping = manager.heard()
    assert ["READY=1", "STATUS=serving"] == ready
    assert "RELOADING=1" == reloading[0]
    name, _, usec = reloading[1].partition("=")
    assert "MONOTONIC_USEC" == name
    assert before <= int(usec) <= time.monotonic_ns() // 1000
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


@pytest.mark.parametrize(
    ("name", "reason"), [("/nowhere/notify", "No such file or directory"), ("vsock:2:1", "neither a path")]
)
def test_manager_that_cannot_be_reached_is_told_of_in_the_log_only(name: str, reason: str) -> None:
    with capture_logs() as logs, closing(Notify({"NOTIFY_SOCKET": name})) as notify:
        notify.ready("serving")

    (entry,) = logs
    assert "service manager not told" == entry["event"]
    assert reason in entry["reason"]


async def test_watchdog_is_fed_twice_in_its_time_and_not_by_a_loop_that_is_blocked_or_when_closed(
    manager: Manager,
) -> None:
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
    await asyncio.sleep(0.15)

    assert [["WATCHDOG=1"]] * 4 == fed[:4]
    assert ([], []) == (while_it_stood, manager.heard())


SECONDS = 60.0


class Served:
    """Something that is served, and leaves as the test says. Shape: `told` what happened to it, in order."""

    def __init__(self, *, left: DrainRemainder = DrainRemainder()) -> None:  # noqa: B008 - a value
        self.stopping = asyncio.Event()
        self.told: list[str] = []
        self.drain = Drain(self, lambda: DrainSettings(announce=0.0, timeout=0.05))
        self.reloads = self.admin = self
        self.is_reload_refused = False
        self._left = left

    def on_drain(self) -> None:
        self.told.append("drain")
        self.stopping.set()

    async def leave(self, seconds: float) -> None:
        self.told.append("leave")

    async def remainder(self) -> DrainRemainder:
        return self._left

    def signalled(self) -> str:
        return "reload"

    async def reload(self, seen_by: str) -> None:
        self.told.append(seen_by)
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
def named(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> Manager:
    """A service manager that the environment names."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.name)
    return manager


def heard(manager: Manager) -> list[str]:
    """The first lines and the status of each datagram."""
    found = manager.heard()
    return [" ".join(line for line in lines if not line.startswith(("MONOTONIC", "EXTEND"))) for lines in found]


@pytest.mark.parametrize(("number", "held"), [(signal.SIGTERM, 0), (signal.SIGINT, 1)])
def test_signal_begins_the_drain_and_its_end_is_the_end(number: signal.Signals, held: int) -> None:
    is_clean, served = play(lambda _: os.kill(os.getpid(), number), left=DrainRemainder(held=held))

    assert (not held, number.name, ["drain", "leave"]) == (is_clean, served.drain.reason, served.told)


@pytest.mark.parametrize(
    ("is_refused", "status"),
    [(False, "serving"), (True, "serving; the last reload failed, the configuration before stays")],
)
def test_hangup_reloads_and_the_manager_hears_of_every_stage(named: Manager, *, is_refused: bool, status: str) -> None:
    def hang_up(served: Served) -> None:
        served.is_reload_refused = is_refused
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)

    _, served = play(hang_up)

    words = heard(named)
    assert ["reload", "drain", "leave"] == served.told
    assert ["READY=1 STATUS=serving", "RELOADING=1", f"READY=1 STATUS={status}"] == words[:3]
    assert ("STOPPING=1 STATUS=draining: announced, 1 s", "STOPPING=1 STATUS=drained") == (words[3], words[-1])


@pytest.mark.parametrize(
    ("is_refused", "line"),
    [
        (False, {"event": "instance state", "log_level": "info", "status": {"name": "played"}}),
        (True, {"event": "instance state not told", "log_level": "warning", "reason": "OSError('no thread')"}),
    ],
)
def test_state_is_written_into_the_log_when_a_signal_asks_for_it(*, is_refused: bool, line: dict[str, object]) -> None:
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
    from tests.unit.daemon.test_process import Served
    from broker.config.settings import DrainSettings
    from broker.net.drain import Drain, DrainRemainder

    @asynccontextmanager
    async def serving():
        if {is_starting}:
            asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        served = Served(left=DrainRemainder(held=1))
        served.drain = Drain(served, lambda: DrainSettings(announce=0.0, timeout=60.0))
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
