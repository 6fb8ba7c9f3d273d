"""A principal that stands still, is overtaken meanwhile, and goes on; or, where it has a lock, is not."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.chaos import lock_pair, pair
from tests.chaos.cast import STOCK
from tests.chaos.faults.fault import Fault


class Overtaken(Fault):
    """
    The principal stands still for longer than its role holds; its partner is made the principal; then it goes on.

    Nobody waits for it to have stepped down, unlike in a failover of `pair`: it has been told nothing when the partner
    has the database already, and finds in its sockets what was sent to it meanwhile. Twice, so that both are overtaken.

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
            self.stand_still(self.fleet.principal)
        else:
            self.overtake()

    def end(self) -> None:
        if self.fleet.has_lock:
            self.lose(self.fleet.principal)
        else:
            self.overtake()

    def stand_still(self, old: str) -> None:
        """The principal does for a while, and is the principal still when it goes on."""
        (new,) = (name for name in STOCK if name != old)
        self.fleet.freeze(old)
        try:
            self.fleet.pause(self.dice.uniform(*self.SECONDS))
            role = self.fleet.watch.roles().get(new)
            assert role == "mirror", f"{new} is {role} while {old} stands still and has the lock"
        finally:
            self.fleet.thaw(old)
        lock_pair.becomes(self.fleet, old, "principal")

    def lose(self, old: str) -> None:
        """The principal is killed while it stands still, and comes back when it was followed."""
        self.fleet.freeze(old)
        self.fleet.pause(self.dice.uniform(0.0, 1.0))
        pair.fail_over(self.fleet, is_lost=True)
        self.fleet.thaw(old)
        self.fleet.daemons[old].start(wait=False)

    def overtake(self) -> None:
        """The principal is not any more, and does not know."""
        fleet = self.fleet
        old = fleet.principal
        (new,) = (name for name in STOCK if name != old)
        home = next(home for home in fleet.targets if home.hosts == STOCK)
        for name in STOCK:
            fleet.applications[name].stop()
        self.stop_between_transactions(old, fleet.file(home, old))
        fleet.pause(self.dice.uniform(*self.SECONDS))
        epoch = int(re.findall(r"\d+", fleet.role_file(old).read_text(encoding="ascii"))[0])
        pair._say(fleet, old, "mirror")
        pair.tell_roles(fleet, {old: "mirror"})
        mark = pair._copy(fleet.file(home, old), fleet.file(home, new))
        pair.tell_roles(fleet, {new: "principal"})
        pair._say(fleet, new, f"principal {epoch + 1}")
        pair._becomes(fleet, new, "principal")
        fleet.applications[new].start(replace(fleet.applications[new].job, kind="target"))
        fleet.applications[old].start(replace(fleet.applications[old].job, kind="mirror", mark=mark))
        fleet.thaw(old)
        pair._becomes(fleet, old, "mirror")
        fleet.pause(1.0)  # of a mirror that should store nothing

    def stop_between_transactions(self, name: str, file: Path) -> None:
        """
        It stands still, and not within a COMMIT: nobody can say whether the copy of its file has that.

        What becomes of one that does stands in docs/mirroring.md. Whoever has the lock of the file sees to it that the
        daemon writes nothing at that moment.
        """
        with closing(sqlite3.connect(file, timeout=pair.SECONDS, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            self.fleet.freeze(name)
            db.execute("ROLLBACK")
