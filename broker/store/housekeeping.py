"""
What the writer does of itself, now and then: timers, lifetimes, and the removal of what has served.

For the writer thread; one `Housekeeping` for each database, whose walks go on from turn to turn.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from broker.store.delivery import Delivery
from broker.store.expiry import Expiry, fire_timers, next_timer
from broker.store.purge import Purge


@dataclass(slots=True)
class MaintenanceResult:
    """
    What came of it.

    Shape: `finished` endpoints that have nothing to send any more; `has_more` when it should soon be done again.
    """

    finished: list[int] = field(default_factory=list)
    has_more: bool = False


class Maintenance:
    """What goes on from turn to turn."""

    def __init__(self) -> None:
        self._expiry = Expiry()
        self._purge = Purge()

    def has_work(self, db: sqlite3.Connection, now: float) -> bool:
        """Whether a transaction is worth while; reads only."""
        timer = next_timer(db)
        is_due = timer is not None and timer <= now
        return is_due or self._expiry.has_work(db, now) or self._purge.has_work(db, now)

    def run(self, db: sqlite3.Connection, now: float) -> MaintenanceResult:
        """One slice of everything, inside a transaction."""
        delivery = Delivery(db, now)
        has_timers = fire_timers(db, delivery, now)
        expired = self._expiry.run(db, delivery, now)
        has_rest = self._purge.run(db, now)
        return MaintenanceResult(expired.finished, has_timers or expired.has_more or has_rest)

    def forget(self) -> None:
        """What was done was rolled back."""
        self._expiry.forget()
