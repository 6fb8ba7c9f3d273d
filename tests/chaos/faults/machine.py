"""Faults of the machine below a daemon: its disk, its clock, and what the system lets it have."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime

from tests.chaos.cast import BILLING, INITIATORS
from tests.chaos.faults.fault import OnOne
from tests.chaos.network.descriptors import Descriptors
from tests.chaos.network.impairment import Fault as Ability

HOUR = 3600.0
ATTEMPTS = 10  # at what others undo at the same moment
CLOCK_SECONDS = 0.5  # by which what is told of a clock may be off


class FullDisk(OnOne):
    """The disk of a database is full: neither daemon nor application can write."""

    name = "full-disk"
    needs = frozenset({Ability.DISK})

    def candidates(self) -> list[str]:
        return [BILLING]

    def begin(self) -> None:
        disk = self.fleet.network.hosts[BILLING].disk
        self._was_full = False
        for _ in range(ATTEMPTS):
            disk.fill()
            self._was_full = self._was_full or disk.free_bytes == 0

    def has_bitten(self) -> bool:
        return self._was_full

    def end(self) -> None:
        self.fleet.network.hosts[BILLING].disk.free()


class ClockStep(OnOne):
    """The wall clock of a host jumps, forward or back, and later jumps back."""

    name = "clock-step"
    needs = frozenset({Ability.CLOCK})
    STEPS = (-HOUR / 2, -5.0, 5.0, HOUR / 2)  # below the lifetime of dialogs that are not brief

    def candidates(self) -> list[str]:
        return [INITIATORS[1], BILLING]

    def choose(self) -> str:
        super().choose()
        self._step = self.dice.choice(self.STEPS)
        self.astray = {str(self.fleet.file(home, self.victim)) for home in self.fleet.homes_of(self.victim)}
        return f"{self.victim} by {self._step:+g} s"

    def begin(self) -> None:
        self.fleet.network.hosts[self.victim].clock.step(self._step)

    def has_bitten(self) -> bool:
        daemon, earliest = self.fleet.daemons[self.victim], time.time() + self._step
        told = daemon.status()
        clock = datetime.fromisoformat(told["started_at"]).timestamp() + float(told["uptime_s"])
        return earliest - CLOCK_SECONDS <= clock <= time.time() + self._step + CLOCK_SECONDS

    def end(self) -> None:
        self.fleet.network.hosts[self.victim].clock.restore()


class Exhaustion(OnOne):
    """A daemon gets no file descriptor any more."""

    name = "descriptors"
    needs = frozenset({Ability.DESCRIPTORS})

    def begin(self) -> None:
        self._limit = Descriptors(self.fleet.daemons[self.victim].pid)
        self._limit.exhaust(spare=self.dice.choice([0, 1, 3]))
        self._was_lowered = self._limit.is_lowered
        hosts = self.fleet.network.hosts
        if self.fleet.network.can(Ability.RESET):
            for name in self.fleet.neighbours(self.victim):
                self.fleet.network.reset(hosts[self.victim], hosts[name])

    def has_bitten(self) -> bool:
        return self._was_lowered

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self._limit.restore()


class MemoryLimit(OnOne):
    """A host has little more memory than it uses; the kernel may kill what wants more."""

    name = "memory"
    needs = frozenset({Ability.MEMORY})
    ROOM = 1 << 20

    def candidates(self) -> list[str]:
        return [name for name in self.fleet.names if name != BILLING]

    def begin(self) -> None:
        memory = self.fleet.network.hosts[self.victim].memory
        for _ in range(ATTEMPTS):
            try:
                memory.limit(memory.used + self.ROOM)
            except OSError:  # it has grown meanwhile
                continue
            return

    def has_bitten(self) -> bool:
        return self.fleet.network.hosts[self.victim].memory.is_limited

    def end(self) -> None:
        self.fleet.network.hosts[self.victim].memory.limit(None)
        for one in (self.fleet.daemons[self.victim], self.fleet.applications.get(self.victim)):
            if one is not None and not one.is_running:
                self.fleet.excuse(self.victim)
