"""Faults of the mirrored pair: it changes its roles, also while a partner is in trouble, lost, or overtaken."""

import sqlite3
import threading
import time
from abc import abstractmethod
from contextlib import closing
from typing import ClassVar

from tests.chaos import pair
from tests.chaos.configuration import STOCK
from tests.chaos.faults.fault import Fault
from tests.chaos.network.impairment import CUT, WHOLE


class FailOver(Fault):
    """The pair changes its roles, and changes them again."""

    name = "failover"

    def choose(self) -> str:
        self.take_all(STOCK)
        return f"{self.fleet.principal} hands over"

    def begin(self) -> None:
        pair.fail_over(self.fleet)

    def end(self) -> None:
        pair.fail_over(self.fleet)


class LostPrincipal(Fault):
    """The principal is killed, the partner follows; the killed one comes back as the mirror."""

    name = "lost-principal"

    def choose(self) -> str:
        self.take_all(STOCK)
        self._lost = self.fleet.principal
        return f"{self._lost} is lost"

    def begin(self) -> None:
        pair.fail_over(self.fleet, is_lost=True)

    def end(self) -> None:
        self.fleet.daemons[self._lost].start(wait=False)


class _Troubled(Fault):
    """The pair changes its roles, and changes them again; each time something befalls one of the partners meanwhile."""

    what: ClassVar[str]

    def choose(self) -> str:
        self.take_all(STOCK)
        self._troubled = self.dice.sample(STOCK, 2)
        first, second = self._troubled
        return f"{self.fleet.principal} hands over while {first} {self.what}, and back while {second} does"

    def begin(self) -> None:
        self.hand_over(self._troubled[0])

    def end(self) -> None:
        self.hand_over(self._troubled[1])

    @abstractmethod
    def hand_over(self, troubled: str) -> None: ...


class FrozenPartner(_Troubled):
    """A partner stands still when the pair is told to change its roles, and goes on some seconds later."""

    name = "failover-frozen"
    what = "stands still"
    SECONDS = (1.0, 5.0)

    def choose(self) -> str:
        self._still: list[tuple[float, float]] = []
        return super().choose()

    def hand_over(self, troubled: str) -> None:
        since = time.monotonic()
        self.fleet.freeze(troubled)
        thawing = threading.Timer(self.dice.uniform(*self.SECONDS), self._thaw, [troubled, since])
        thawing.start()
        try:
            pair.fail_over(self.fleet)
        finally:
            thawing.join()

    @property
    def hidden(self) -> list[tuple[float, float]]:
        return self._still

    def _thaw(self, name: str, since: float) -> None:
        self.fleet.thaw(name)
        self._still.append((since, time.monotonic()))


class IsolatedPartner(_Troubled):
    """A partner hears nobody before, while and after the pair changes its roles; roles reach it all the same."""

    name = "failover-isolated"
    what = "hears nobody"
    needs = CUT.faults
    SECONDS = (1.0, 3.0)  # before and after

    def hand_over(self, troubled: str) -> None:
        fleet = self.fleet
        ways = [way for name in fleet.neighbours(troubled) for way in ((troubled, name), (name, troubled))]
        fleet.network.impair(ways, CUT)
        fleet.pause(self.dice.uniform(*self.SECONDS))
        pair.fail_over(fleet)
        fleet.pause(self.dice.uniform(*self.SECONDS))
        fleet.network.impair(ways, WHOLE)


class Overtaken(Fault):
    """
    The principal stands still for longer than its role holds; its partner is made the principal; then it goes on.

    Nobody waits for it to have stepped down, unlike in a failover: it has been told nothing when the partner has the
    database already, and finds in its sockets what was sent to it meanwhile. Twice, so that both are overtaken.

    A principal with a lock keeps it when it stands still, so nobody follows: it goes on; and the second time it is
    killed while it stands still, and its partner follows then.
    """

    name = "failover-overtaken"
    hides = True
    SECONDS = (7.0, 9.0)  # above role_timeout

    def choose(self) -> str:
        self.take_all(STOCK)
        if self.fleet.has_lock:
            return f"{self.fleet.principal} stands still and keeps its lock, and then is killed where it stands"
        return f"{self.fleet.principal} stands still and is overtaken, and so is its partner"

    def begin(self) -> None:
        if self.fleet.has_lock:
            self._stand_still(self.fleet.principal, self.fleet.mirror)
        else:
            self._overtake(self.fleet.principal, self.fleet.mirror)

    def end(self) -> None:
        if self.fleet.has_lock:
            self._lose(self.fleet.principal)
        else:
            self._overtake(self.fleet.principal, self.fleet.mirror)

    def _stand_still(self, old: str, new: str) -> None:
        """It is the principal still when it goes on."""
        self.fleet.freeze(old)
        try:
            self.fleet.pause(self.dice.uniform(*self.SECONDS))
            role = self.fleet.watch.role(new)
            assert role == "mirror", f"{new} is {role} while {old} stands still and has the lock"
        finally:
            self.fleet.thaw(old)
        pair.becomes(self.fleet, old, "principal")

    def _lose(self, old: str) -> None:
        self.fleet.freeze(old)
        self.fleet.pause(self.dice.uniform(0.0, 1.0))
        pair.fail_over(self.fleet, is_lost=True)
        self.fleet.thaw(old)
        self.fleet.daemons[old].start(wait=False)

    def _overtake(self, old: str, new: str) -> None:
        """
        It is stopped between two transactions: nobody can say whether the copy of its file has a COMMIT in which it is
        stopped (docs/mirroring.md). While this has the lock of the file, the daemon writes nothing.
        """
        fleet = self.fleet
        pair.stop_applications(fleet)
        with closing(sqlite3.connect(fleet.file(fleet.stock, old), timeout=pair.SECONDS, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            fleet.freeze(old)
            db.execute("ROLLBACK")
        fleet.pause(self.dice.uniform(*self.SECONDS))
        pair.move_file(fleet, old, new, is_awaited=False)
        fleet.thaw(old)
        pair.becomes(fleet, old, "mirror")
        fleet.pause(1.0)  # of a mirror that should store nothing
