"""
A process around one instance: its event loop, its signals, its end.

What is served is an asynchronous context that comes up, is left when `stopping` is set, and takes itself down then. The
first SIGTERM or SIGINT begins its drain, or ends a start that is under way; a second one ends the process at once.
SIGHUP has the configuration read again, SIGUSR1 has the state written into the log, SIGUSR2 does nothing. An
application that embeds an instance needs nothing of this: its process, loop and signals are its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from broker.daemon.early_signal import endure
from broker.errors import BrokerError

if TYPE_CHECKING:
    from broker.catalog.reload import Reloads
    from broker.net.drain import Drain


# --- core_dump ---
# No core dumps: a core holds every body that is on its way, and the keys.
#
# Who looks for a crash finds the stack of every thread in the log with PYTHONFAULTHANDLER=1, which shows no values.


def forbid_core_dumps() -> None:
    """Let the system write no core of this process, nor of its children; the hard limit stays as it is."""
    with contextlib.suppress(ValueError, OSError):  # not allowed: then the limit is none of ours
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


# --- notify ---
# What a service manager is told: ready, reloading, stopping, a line of status, and that the loop still turns.
#
# A datagram to the socket that the environment names, as systemd has it; without one nothing is told. A manager that
# does
# not take it changes nothing here. The watchdog is fed by the loop itself: a loop that stands still feeds nobody.
#
# Source: sd_notify(3), sd_watchdog_enabled(3) and systemd.service(5), "Type=notify-reload".


SOCKET_VARIABLE, WATCHDOG_VARIABLE, WATCHDOG_PID_VARIABLE = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_USEC = 1_000_000

log = structlog.get_logger(__name__)


class Notify:
    """
    Args:
        environ: Where the socket is named and the watchdog is asked for; the names are taken out, so that processes
            started by this one tell nothing.

    Shape: `watchdog_s` seconds after which the manager takes a silent process for dead; 0 when it does not.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        name = environ.pop(SOCKET_VARIABLE, "")
        usec, pid = environ.pop(WATCHDOG_VARIABLE, ""), environ.pop(WATCHDOG_PID_VARIABLE, "")
        is_for_us = pid in {"", str(os.getpid())}
        self.watchdog_s = int(usec) / _USEC if name and is_for_us and usec.isdecimal() else 0.0
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        if name.startswith(("@", "/")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        elif name:
            log.warning("service manager not told", address=name, reason="neither a path nor an abstract name")

    def ready(self, status: str) -> None:
        """It serves, or has taken its configuration anew."""
        self._send("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """It begins to take its configuration anew; `ready` ends that."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str, seconds: float) -> None:
        """It ends, and may take so many seconds more."""
        self._send("STOPPING=1", f"STATUS={_line(status)}", f"EXTEND_TIMEOUT_USEC={int(seconds * _USEC)}")

    def status(self, text: str) -> None:
        """One line for whoever looks at the service."""
        self._send(f"STATUS={_line(text)}")

    def start_watchdog(self) -> None:
        """From now on tell from within the loop that it turns, twice in the time that the manager waits."""
        if self.watchdog_s:
            self._send("WATCHDOG=1")
            self._timer = asyncio.get_running_loop().call_later(self.watchdog_s / 2, self.start_watchdog)

    def close(self) -> None:
        """Tell nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _send(self, *assignments: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            log.warning("service manager not told", what=assignments[0], reason=error.strerror or str(error))


def _line(text: str) -> str:
    """A status is one line."""
    return " ".join(text.split())


ENDING = (signal.SIGTERM, signal.SIGINT)
CLOSE_SECONDS = 15.0  # that a service manager is asked for beyond the drain, to close what is open


STATUS_SERVING = "serving"


class StateReporter(Protocol):
    """Whoever tells the state."""

    async def state(self) -> dict[str, Any]:
        """What `GET /v1/status` answers."""


class ManagedService(Protocol):
    """What runs in a process. Shape: `stopping` set once it shall end; `drain` how it leaves."""

    stopping: asyncio.Event

    @property
    def drain(self) -> Drain:
        """How it leaves."""

    @property
    def reloads(self) -> Reloads:
        """How it takes its configuration anew."""

    @property
    def admin(self) -> StateReporter:
        """Its admin interface."""


Serving = Callable[[], AbstractAsyncContextManager[ManagedService]]


def run(serving: Serving) -> bool:
    """
    Serve until SIGTERM or SIGINT, and drain. On uvloop where it is installed.

    Returns:
        Whether nothing was left behind.
    """
    endure()
    notify = Notify(os.environ)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run(serving, notify))
    finally:
        endure()  # the loop has taken its own handlers with it
        notify.close()


async def _run(serving: Serving, notify: Notify) -> bool:
    task = asyncio.current_task()
    assert task is not None
    life = _Life(task, notify)
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, life.on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, life.on_hangup)
    loop.add_signal_handler(signal.SIGUSR1, life.on_question)
    notify.start_watchdog()
    try:
        async with serving() as served:
            life.begin(served)
            await served.stopping.wait()
    except asyncio.CancelledError:
        if life.is_serving or not life.has_been_told:
            raise
        log.info("instance stopped", reason="it was told to before it served")
        return True
    await life.close()
    log.info("instance stopped")
    return served.drain.is_clean


class _Life:
    """What signals do to what is served, and what the service manager hears of it. Loop-only."""

    def __init__(self, starting: asyncio.Task[object], notify: Notify) -> None:
        self.has_been_told = False
        self._starting = starting
        self._notify = notify
        self._served: ManagedService | None = None
        self._hangups = 0  # not looked after yet
        self._reloading: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def is_serving(self) -> bool:
        """Whether the start is over."""
        return self._served is not None

    def begin(self, served: ManagedService) -> None:
        """It serves."""
        self._served = served
        served.drain.on_change = self._on_drain
        served.drain.process = os.getpid()
        self._notify.ready(STATUS_SERVING)
        if self._hangups:
            self.on_hangup()

    def on_signal(self, number: signal.Signals) -> None:
        """The first one ends it in good order, the second one at once."""
        if self.has_been_told:
            os._exit(128 + number)
        self.has_been_told = True
        if self._served is None:
            self._starting.cancel()
        else:
            self._served.drain.begin(number.name)

    def on_hangup(self) -> None:
        """Read the configuration again; what is asked for meanwhile is one more time."""
        self._hangups += 1
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reload(), name="reload on SIGHUP")

    def on_question(self) -> None:
        """Write the state into the log, unless that is under way."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell(), name="state on SIGUSR1")

    async def close(self) -> None:
        """Nothing is read or told any more."""
        tasks = [task for task in (self._reloading, self._telling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self) -> None:
        if self._served is None:
            log.info("instance state", status={"ready": False})
            return
        try:
            status = await self._served.admin.state()
        except Exception as error:
            log.warning("instance state not told", reason=repr(error), exc_info=error)
        else:
            log.info("instance state", status=status)

    async def _reload(self) -> None:
        while self._hangups and self._served is not None:
            self._hangups = 0
            self._notify.reloading()
            try:
                await self._served.reloads.reload()
            except BrokerError:  # it is logged, counted and shown by whom it concerns
                self._notify.ready(f"{STATUS_SERVING}; the last reload failed, the configuration before stays")
            else:
                self._notify.ready(STATUS_SERVING)

    def _on_drain(self) -> None:
        if self._served is not None:
            drain = self._served.drain
            self._notify.stopping(drain.sentence, drain.remaining_s + CLOSE_SECONDS)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop of an instance: uvloop where it is installed and `BROKER_LOOP` does not say asyncio."""
    if os.environ.get("BROKER_LOOP") == "asyncio":
        return None
    try:
        from broker.daemon.exact_loop import ExactLoop  # noqa: PLC0415 - uvloop does not run everywhere
    except ImportError:
        return None
    return ExactLoop
