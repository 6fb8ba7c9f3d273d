"""Faults of processes: they die, stand still, or are started anew."""

from __future__ import annotations

from tests.chaos.faults.fault import Fault
from tests.chaos.fleet import wait_ready


class Kill(Fault):
    """SIGKILL of a daemon, which is started again when the fault ends."""

    name = "kill"

    def choose(self) -> str:
        """Any daemon."""
        self._victim = self.take(self.fleet.names)
        return f"daemon of {self._victim}"

    def begin(self) -> None:
        """It dies."""
        self.fleet.daemons[self._victim].kill()

    def end(self) -> None:
        """It comes back."""
        self.fleet.daemons[self._victim].start(wait=False)


class KillApplication(Fault):
    """SIGKILL of an application, again and again."""

    name = "kill-application"
    TIMES = 4

    def choose(self) -> str:
        """Any application that is at work."""
        at_work = [name for name, one in self.fleet.applications.items() if one.is_wanted]
        self._victim = self.take(at_work)
        return f"application of {self._victim}"

    def begin(self) -> None:
        """It dies, and comes back, and dies."""
        application = self.fleet.applications[self._victim]
        for _ in range(self.TIMES):
            application.kill()
            application.start()
            self.fleet.pause(self.dice.uniform(0.6, 1.2))  # it takes half a second to come up
        application.kill()

    def end(self) -> None:
        """It comes back."""
        self.fleet.applications[self._victim].start()


class Freeze(Fault):
    """SIGSTOP of a daemon, then SIGCONT."""

    name = "freeze"
    hides = True

    def choose(self) -> str:
        """Any daemon."""
        self._victim = self.take(self.fleet.names)
        return f"daemon of {self._victim}"

    def begin(self) -> None:
        """Alive, and deaf."""
        self.fleet.freeze(self._victim)

    def end(self) -> None:
        """It goes on as if nothing had been."""
        self.fleet.thaw(self._victim)


class Restart(Fault):
    """SIGTERM of a daemon, which drains, and a start."""

    name = "restart"

    def choose(self) -> str:
        """Any daemon."""
        self._victim = self.take(self.fleet.names)
        return f"daemon of {self._victim}"

    def begin(self) -> None:
        """It leaves in good order."""
        self.fleet.stop(self._victim)

    def end(self) -> None:
        """It comes back."""
        self.fleet.daemons[self._victim].start(wait=False)


class RollingRestart(Fault):
    """All gateways, one after the other, each when the one before serves again."""

    name = "rolling-restart"

    def choose(self) -> str:
        """All gateways."""
        return ", ".join(self.take_all(self.fleet.gateways))

    def begin(self) -> None:
        """One after the other."""
        for name in self.fleet.gateways:
            self.fleet.stop(name)
            self.fleet.daemons[name].start(wait=False)
            wait_ready(self.fleet.daemons[name])

    def end(self) -> None:
        """All have been restarted."""
