"""One host: where its files are, how processes are started on it, and what can be done to it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.network.clock import Clock
from tests.chaos.network.disk import Disk
from tests.chaos.network.impairment import ImpossibleError
from tests.chaos.network.memory import Memory

NETWORK_NAMESPACE = 0x40000000  # CLONE_NEWNET of <sched.h>
DYING_SECONDS = 10.0


@dataclass
class Parts:
    """What of a host is there beside its address; whatever is None cannot be asked for."""

    namespace: Path | None = None
    disk: Disk | None = None
    memory: Memory | None = None
    clock: Clock | None = None


@dataclass(eq=False)
class Host:
    """
    Made by `Network.host`.

    Shape: `name` as asked for; `address` its IPv4 address; `directory` holds its files, and is its disk if it has one.
    """

    name: str
    address: str
    directory: Path
    parts: Parts = field(default_factory=Parts)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def disk(self) -> Disk:
        """Raises ImpossibleError: it was made without `disk_bytes`."""
        if self.parts.disk is None:
            raise ImpossibleError(f"{self.name} has no disk of its own")
        return self.parts.disk

    @property
    def memory(self) -> Memory:
        """Raises ImpossibleError: this network cannot."""
        if self.parts.memory is None:
            raise ImpossibleError(f"the memory of {self.name} cannot be limited")
        return self.parts.memory

    @property
    def clock(self) -> Clock:
        """Raises ImpossibleError: it was made without `has_clock`."""
        if self.parts.clock is None:
            raise ImpossibleError(f"{self.name} has no clock of its own")
        return self.parts.clock

    def words(self, *, descriptors: int | None = None) -> tuple[str, ...]:
        """
        Words before a command that make its process one of this host; each replaces itself by the next, so the process
        is the command's own. With `descriptors` it may have so many from the start (soft limit).
        """
        found: tuple[str, ...] = ()
        if self.parts.namespace is not None:
            found += ("nsenter", f"--net={self.parts.namespace}", "--")
        if self.parts.memory is not None:
            found += self.parts.memory.words
        if descriptors is not None:
            found += ("prlimit", f"--nofile={descriptors}:")
        return found + (self.parts.clock.words if self.parts.clock is not None else ())

    def popen(
        self,
        command: Sequence[str],
        *,
        descriptors: int | None = None,
        env: Mapping[str, str] | None = None,
        **how: Any,
    ) -> subprocess.Popen[bytes]:
        """
        Start a process on this host; `how` as `subprocess.Popen` has it.

        It is killed and reaped when the network closes.
        """
        process = subprocess.Popen([*self.words(descriptors=descriptors), *command], env=env, **how)
        self._processes = [other for other in self._processes if other.poll() is None] + [process]
        return process

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets that this thread makes meanwhile belong to the host, and go on doing so afterwards."""
        if self.parts.namespace is None:
            yield
            return
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            there = os.open(self.parts.namespace, os.O_RDONLY)
            try:
                _enter(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                _enter(before)
        finally:
            os.close(before)

    def end(self) -> None:
        """Kill and reap the processes that were started with `popen`."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait(DYING_SECONDS)


def _enter(namespace: int) -> None:
    """Into a network namespace, this thread alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, NETWORK_NAMESPACE):
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
