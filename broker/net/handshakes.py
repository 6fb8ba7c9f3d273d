"""
The TLS handshakes that are under way: so many at one time, and a share of them for one host.

Strangers may begin as many as they like. When there are too many, one makes room: of a host that has its share already
the one that has taken the longest, else the longest of the host that has the most. A peer that means it is done within
milliseconds. Those of a known host have no share to keep to, and make room only when there is nobody else. Loop-only.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

HOST_SHARE = 4  # one host has at most one handshake in so many

Task = asyncio.Task[None]


class Handshakes:
    """
    Args:
        most: At one time.
        is_known: Whether a host is that of a known peer.
    """

    def __init__(self, most: int, is_known: Callable[[str], bool]) -> None:
        self.most = most
        self._is_known = is_known
        self._sockets: dict[Task, socket.socket] = {}  # of every task that has not ended
        self._live: dict[str, dict[Task, None]] = {}  # those not told to end, by host, the longest first
        self._hosts: dict[Task, str] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def make_room(self, host: str) -> None:
        """One more is about to begin."""
        own = self._live.get(host, {})
        if len(own) >= max(1, self.most // HOST_SHARE) and not self._is_known(host):
            self._end(host, "too many TLS handshakes at one time from this address")
        elif len(self._hosts) >= self.most:
            hosts = [one for one in self._live if not self._is_known(one)] or list(self._live)
            self._end(max(hosts, key=lambda one: len(self._live[one])), "too many TLS handshakes at one time")

    def add(self, task: Task, sock: socket.socket, host: str) -> None:
        """One has begun."""
        self._sockets[task] = sock
        self._hosts[task] = host
        self._live.setdefault(host, {})[task] = None

    def remove(self, task: Task) -> socket.socket:
        """One has ended; its socket."""
        self._forget(task)
        return self._sockets.pop(task)

    async def close(self) -> None:
        """End every one."""
        tasks = list(self._sockets)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, host: str, reason: str) -> None:
        """The longest of a host makes room."""
        task = next(iter(self._live[host]))
        self._forget(task)
        task.cancel(reason)

    def _forget(self, task: Task) -> None:
        """It does not count any more."""
        host = self._hosts.pop(task, None)
        if host is not None:
            del self._live[host][task]
            if not self._live[host]:
                del self._live[host]
