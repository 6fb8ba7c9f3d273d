"""Faults of processes: they die, stand still, or are started anew."""

from __future__ import annotations

from tests.chaos.faults.fault import Fault, OnOne
from tests.chaos.fleet import wait_ready


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
            wait_ready(self.fleet.daemons[name])

    def end(self) -> None:
        """All have been restarted."""
