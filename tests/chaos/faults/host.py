"""Faults of one host: of its processes, its disk, its clock, and what the system gives it."""

import time
from contextlib import suppress
from datetime import datetime

from tests.chaos.configuration import BILLING, INITIATORS
from tests.chaos.faults.fault import Fault, OnOne
from tests.chaos.fleet import START_SECONDS
from tests.chaos.network.host import Clock, Descriptors, Disk, Memory
from tests.chaos.network.impairment import Fault as Ability


class Kill(OnOne):
    """SIGKILL of a daemon, which is started again when the fault ends."""

    name = "kill"
    of = "daemon of "

    def begin(self) -> None:
        self.fleet.daemons[self.victim].kill()

    def end(self) -> None:
        self.fleet.daemons[self.victim].start(wait=False)


class KillApplication(OnOne):
    """SIGKILL of an application, again and again."""

    name = "kill-application"
    of = "application of "
    TIMES = 4

    def candidates(self) -> list[str]:
        return [name for name, one in self.fleet.applications.items() if one.is_wanted]

    def begin(self) -> None:
        application = self.fleet.applications[self.victim]
        for _ in range(self.TIMES):
            application.kill()
            application.start()
            self.fleet.pause(self.dice.uniform(0.6, 1.2))  # it takes half a second to come up
        application.kill()

    def end(self) -> None:
        self.fleet.applications[self.victim].start()


class Freeze(OnOne):
    """SIGSTOP of a daemon, then SIGCONT."""

    name = "freeze"
    of = "daemon of "
    hides = True

    def begin(self) -> None:
        self.fleet.freeze(self.victim)

    def end(self) -> None:
        self.fleet.thaw(self.victim)


class Restart(OnOne):
    """SIGTERM of a daemon, which drains, and a start."""

    name = "restart"
    of = "daemon of "

    def begin(self) -> None:
        self.fleet.stop(self.victim)

    def end(self) -> None:
        self.fleet.daemons[self.victim].start(wait=False)


class RollingRestart(Fault):
    """All gateways, one after the other, each when the one before serves again."""

    name = "rolling-restart"

    def choose(self) -> str:
        return ", ".join(self.take_all(self.fleet.gateways))

    def begin(self) -> None:
        for name in self.fleet.gateways:
            self.fleet.stop(name)
            self.fleet.daemons[name].start(wait=False)
            self.fleet.daemons[name].wait_ready(START_SECONDS)


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
        disk = self.fleet.network.hosts[BILLING].part(Disk)
        self._was_full = False
        for _ in range(ATTEMPTS):
            disk.fill()
            self._was_full = self._was_full or disk.free_bytes == 0

    def has_bitten(self) -> bool:
        return self._was_full

    def end(self) -> None:
        self.fleet.network.hosts[BILLING].part(Disk).free()


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
        self.fleet.network.hosts[self.victim].part(Clock).step(self._step)

    def has_bitten(self) -> bool:
        daemon, earliest = self.fleet.daemons[self.victim], time.time() + self._step
        told = daemon.status()
        clock = datetime.fromisoformat(told["started_at"]).timestamp() + float(told["uptime_s"])
        return earliest - CLOCK_SECONDS <= clock <= time.time() + self._step + CLOCK_SECONDS

    def end(self) -> None:
        self.fleet.network.hosts[self.victim].part(Clock).restore()


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
        memory = self.fleet.network.hosts[self.victim].part(Memory)
        for _ in range(ATTEMPTS):
            try:
                memory.limit(memory.used + self.ROOM)
            except OSError:  # it has grown meanwhile
                continue
            return

    def has_bitten(self) -> bool:
        return self.fleet.network.hosts[self.victim].part(Memory).is_limited

    def end(self) -> None:
        self.fleet.network.hosts[self.victim].part(Memory).limit(None)
        for one in (self.fleet.daemons[self.victim], self.fleet.applications.get(self.victim)):
            if one is not None and not one.is_running:
                self.fleet.excuse(self.victim)
