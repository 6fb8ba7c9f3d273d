"""
The process of an instance: its event loop, its signals, its service manager, its end.

An asynchronous context is entered, left when `stopping` is set, and takes itself down then. The first SIGTERM or SIGINT
begins the drain, or ends a start that is under way; a second one ends the process at once. SIGHUP reads the
configuration again, SIGUSR1 writes the state into the log, SIGUSR2 does nothing. An application that embeds an instance
needs nothing of this: its process, loop and signals are its own.

A service manager is notified by datagrams to the socket that the environment names, as systemd does it. The watchdog is
fed by the loop itself, so a blocked loop does not feed it.

Source: sd_notify(3), sd_watchdog_enabled(3) and systemd.service(5), "Type=notify-reload".
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import structlog

from broker.daemon.early_signal import endure
from broker.errors import BrokerError
from broker.supervision import Timer

if TYPE_CHECKING:
    from broker.daemon.instance import Instance

ENDING = (signal.SIGTERM, signal.SIGINT)
CLOSE_SECONDS = 15.0  # that a service manager is asked for beyond the drain, to close what is open
STATUS_SERVING = "serving"
SOCKET_VARIABLE, WATCHDOG_VARIABLE, WATCHDOG_PID_VARIABLE = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_USEC = 1_000_000

log = structlog.get_logger(__name__)


def run(serving: Callable[[], AbstractAsyncContextManager[Instance]]) -> bool:
    """
    Serve until SIGTERM or SIGINT, and drain. On uvloop where it is installed.

    Returns:
        Whether nothing remained after the drain; also True if a signal ended the start.
    """
    endure()
    notify = Notify(os.environ)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run(serving, notify))
    finally:
        endure()  # the handlers of the loop are gone with it
        notify.close()


async def _run(serving: Callable[[], AbstractAsyncContextManager[Instance]], notify: Notify) -> bool:
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
            gc.freeze()  # what the start has made stays: a collection that walked 100,000 routes would block the loop
            life.begin(served)
            await served.stopping.wait()
    except asyncio.CancelledError:
        if life.is_serving or not life.is_ending:
            raise
        log.info("instance stopped", reason="a signal ended it before it served")
        return True
    await life.close()
    log.info("instance stopped")
    return served.drain.is_clean


class _Life:
    """Signals of the process, applied to the instance and reported to the service manager. Loop-only."""

    def __init__(self, starting: asyncio.Task[object], notify: Notify) -> None:
        self.is_ending = False
        self._starting = starting
        self._notify = notify
        self._served: Instance | None = None
        self._hangups = 0  # not handled yet
        self._reloading: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def is_serving(self) -> bool:
        """Whether the start is over."""
        return self._served is not None

    def begin(self, served: Instance) -> None:
        """The instance serves from now on."""
        self._served = served
        served.drain.followers.append(self._on_drain)
        served.drain.process = os.getpid()
        self._notify.ready(STATUS_SERVING)
        if self._hangups:
            self.on_hangup()

    def on_signal(self, number: signal.Signals) -> None:
        """The first one drains the instance, the second one ends the process at once."""
        if self.is_ending:
            os._exit(128 + number)
        self.is_ending = True
        if self._served is None:
            self._starting.cancel()
        else:
            self._served.drain.begin(number.name)

    def on_hangup(self) -> None:
        """Reload; all signals during a reload cause one further reload."""
        self._hangups += 1
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reload(), name="reload on SIGHUP")

    def on_question(self) -> None:
        """Write the state into the log, unless that is under way."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell(), name="state on SIGUSR1")

    async def close(self) -> None:
        """End what is under way."""
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
                await self._served.reloads.reload(self._served.admin.signalled())
            except BrokerError:  # `Reloads` logs, counts and shows it
                self._notify.ready(f"{STATUS_SERVING}; the last reload failed, the configuration before stays")
            else:
                self._notify.ready(STATUS_SERVING)

    def _on_drain(self) -> None:
        if self._served is not None:
            drain = self._served.drain
            self._notify.stopping(drain.sentence, drain.remaining_s + CLOSE_SECONDS)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """
    Return the factory of an instance's loop: uvloop where it is installed, unless `BROKER_LOOP` says asyncio.

    The loop's `time` is replaced by `time.monotonic`. The clock of uvloop is the coarse one of the kernel, in whole
    milliseconds and up to some milliseconds late, which is not exact enough to measure how long a frame was here. Both
    clocks count from the same instant. Timers stay those of uvloop, which may fire up to two milliseconds early. Cost:
    0.1 microseconds more for `time`.
    """
    if os.environ.get("BROKER_LOOP") == "asyncio":
        return None
    try:
        import uvloop  # noqa: PLC0415 - an extra; it does not run everywhere
    except ImportError:
        return None
    return type("ExactLoop", (uvloop.Loop,), {"time": staticmethod(time.monotonic)})


class Notify:
    """
    Notifies the service manager; without one it does nothing.

    Args:
        environ: Names the socket and the watchdog; the names are removed, so that processes started by this one do not
            notify it.

    Attributes:
        watchdog_s: Seconds after which the manager considers a silent process dead; 0 when it does not.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        name = environ.pop(SOCKET_VARIABLE, "")
        usec, pid = environ.pop(WATCHDOG_VARIABLE, ""), environ.pop(WATCHDOG_PID_VARIABLE, "")
        is_for_us = pid in {"", str(os.getpid())}
        self.watchdog_s = int(usec) / _USEC if name and is_for_us and usec.isdecimal() else 0.0
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._socket: socket.socket | None = None
        self._timer = Timer()
        if name.startswith(("@", "/")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        elif name:
            log.warning("service manager not told", address=name, reason="neither a path nor an abstract name")

    def ready(self, status: str) -> None:
        """The instance serves, or has reloaded."""
        self._send("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str, seconds: float) -> None:
        """The instance stops, and may take so many seconds more."""
        self._send("STOPPING=1", f"STATUS={_line(status)}", f"EXTEND_TIMEOUT_USEC={int(seconds * _USEC)}")

    def start_watchdog(self) -> None:
        """Feed the watchdog from the loop from now on, twice in the time that the manager waits."""
        if self.watchdog_s:
            self._send("WATCHDOG=1")
            self._timer.after(self.watchdog_s / 2, self.start_watchdog)

    def close(self) -> None:
        """Stop feeding the watchdog, and close the socket."""
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


def forbid_core_dumps() -> None:
    """
    Let the system write no core of this process, nor of its children; the hard limit stays as it is.

    A core holds the body of every message in memory, and the keys. PYTHONFAULTHANDLER=1 writes the stack of every
    thread into the log after a crash, without values.
    """
    with contextlib.suppress(ValueError, OSError):  # not allowed: then the limit is not this program's
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
