"""Faults of the machine below a daemon: its disk, its clock, and what the system lets it have."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime

from tests.chaos.cast import BILLING, INITIATORS
from tests.chaos.faults.fault import Fault
from tests.chaos.network.descriptors import Descriptors
from tests.chaos.network.impairment import Fault as Ability

HOUR = 3600.0
ATTEMPTS = 10  # at what others undo at the same moment
CLOCK_SECONDS = 0.5  # by which what is told of a clock may be off


class FullDisk(Fault):
    """The disk of a database is full: neither daemon nor application can write."""

    name = "full-disk"
    needs = frozenset({Ability.DISK})

    def choose(self) -> str:
        """The host with a small disk."""
        return self.take([BILLING])

    def begin(self) -> None:
        """Not a byte is left."""
        disk = self.fleet.network.hosts[BILLING].disk
        self._was_full = False
        for _ in range(ATTEMPTS):
            disk.fill()
            self._was_full = self._was_full or disk.free_bytes == 0

    def has_bitten(self) -> bool:
        """The file system has said so."""
        return self._was_full

    def end(self) -> None:
        """Room again."""
        self.fleet.network.hosts[BILLING].disk.free()


class ClockStep(Fault):
    """The wall clock of a host jumps, forward or back, and later jumps back."""

    name = "clock-step"
    needs = frozenset({Ability.CLOCK})
    STEPS = (-HOUR / 2, -5.0, 5.0, HOUR / 2)  # below the lifetime of dialogs that are not brief

    def choose(self) -> str:
        """A host with a clock of its own."""
        self._victim = self.take([INITIATORS[1], BILLING])
        self._step = self.dice.choice(self.STEPS)
        self.astray = {str(self.fleet.file(home, self._victim)) for home in self.fleet.homes_of(self._victim)}
        return f"{self._victim} by {self._step:+g} s"

    def begin(self) -> None:
        """Another time."""
        self.fleet.network.hosts[self._victim].clock.step(self._step)

    def has_bitten(self) -> bool:
        """The daemon tells the other time."""
        daemon, earliest = self.fleet.daemons[self._victim], time.time() + self._step
        told = daemon.status()
        clock = datetime.fromisoformat(told["started_at"]).timestamp() + float(told["uptime_s"])
        return earliest - CLOCK_SECONDS <= clock <= time.time() + self._step + CLOCK_SECONDS

    def end(self) -> None:
        """The right time."""
        self.fleet.network.hosts[self._victim].clock.restore()


class Exhaustion(Fault):
    """A daemon gets no file descriptor any more."""

    name = "descriptors"
    needs = frozenset({Ability.DESCRIPTORS})

    def choose(self) -> str:
        """Any daemon."""
        self._victim = self.take(self.fleet.names)
        return self._victim

    def begin(self) -> None:
        """As many as it has open; and its connections are broken off, so that it needs others."""
        self._limit = Descriptors(self.fleet.daemons[self._victim].pid)
        self._limit.exhaust(spare=self.dice.choice([0, 1, 3]))
        self._was_lowered = self._limit.is_lowered
        hosts = self.fleet.network.hosts
        if self.fleet.network.can(Ability.RESET):
            for name in self.fleet.neighbours(self._victim):
                self.fleet.network.reset(hosts[self._victim], hosts[name])

    def has_bitten(self) -> bool:
        """Its limit was lower."""
        return self._was_lowered

    def end(self) -> None:
        """As many as before."""
        with suppress(ProcessLookupError):
            self._limit.restore()


class MemoryLimit(Fault):
    """A host has little more memory than it uses; the kernel may kill what wants more."""

    name = "memory"
    needs = frozenset({Ability.MEMORY})
    ROOM = 1 << 20

    def choose(self) -> str:
        """Any host but that whose disk is in memory."""
        self._victim = self.take(name for name in self.fleet.names if name != BILLING)
        return self._victim

    def begin(self) -> None:
        """What is used now, and a little room."""
        memory = self.fleet.network.hosts[self._victim].memory
        for _ in range(ATTEMPTS):
            try:
                memory.limit(memory.used + self.ROOM)
            except OSError:  # it has grown meanwhile
                continue
            return

    def has_bitten(self) -> bool:
        """The limit is there; it is not where the host grew each time that one was set."""
        return self.fleet.network.hosts[self._victim].memory.is_limited

    def end(self) -> None:
        """No limit; whoever was killed is started again by the run."""
        self.fleet.network.hosts[self._victim].memory.limit(None)
        for one in (self.fleet.daemons[self._victim], self.fleet.applications.get(self._victim)):
            if one is not None and not one.is_running:
                self.fleet.excuse(self._victim)
