"""
What a service manager is told: ready, reloading, stopping, a line of status, and that the loop still turns.

A datagram to the socket that the environment names, as systemd has it; without one nothing is told. A manager that does
not take it changes nothing here. The watchdog is fed by the loop itself: a loop that stands still feeds nobody.

Source: sd_notify(3), sd_watchdog_enabled(3) and systemd.service(5), "Type=notify-reload".
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import MutableMapping

import structlog

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
