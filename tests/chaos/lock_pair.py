"""
A mirrored pair with one file and a lock: whoever has the lock is the principal, and nobody else decides.

The hosts of a run share a file system, so both partners have the same file, and one application works on it whoever is
the principal: `tests.chaos.reign` looks at who has stored what it receives.
"""

from __future__ import annotations

import time
from contextlib import suppress

from broker.errors import BrokerError
from examples.demo.topology import TimedOutError
from tests.chaos.cast import STOCK
from tests.chaos.fleet import Fleet, wait_until

SECONDS = 30.0
POLL_SECONDS = 0.1


def fail_over(fleet: Fleet, *, is_lost: bool = False) -> None:
    """
    The partner becomes the principal: the principal is told to hand over, or with `is_lost` it is killed.

    Raises:
        TimedOutError: it did not within SECONDS.
    """
    old = fleet.principal
    (new,) = (name for name in STOCK if name != old)
    if is_lost:
        fleet.daemons[old].kill()

    def is_so() -> bool:
        if fleet.principal == new:
            return True
        if not is_lost:
            with suppress(BrokerError):  # it stands still, or has handed over just now
                fleet.daemons[old].admin.sql("ALTER DATABASE stock SET PARTNER FAILOVER", None)
        time.sleep(POLL_SECONDS)
        return fleet.principal == new

    wait_until(is_so, seconds=SECONDS, what=f"{new} principal")
    becomes(fleet, new, "principal")
    if not is_lost:
        becomes(fleet, old, "mirror")
    fleet.watch.look()


def contradictions(fleet: Fleet) -> list[str]:
    """What is wrong: other roles than the file tells after SECONDS, an epoch of both, a lock that kept nobody off."""
    principal = fleet.principal
    for name in STOCK:
        role = "principal" if name == principal else "mirror"
        try:
            becomes(fleet, name, role)
        except TimedOutError as error:
            fleet.watch.wrong.append(f"another role than the file of the pair tells: {error}")
    fleet.watch.look()
    fleet.watch.read_logs()
    found, fleet.watch.wrong = fleet.watch.wrong, []
    return found


def becomes(fleet: Fleet, name: str, role: str) -> None:
    """Wait until a partner has this role; one that does not run is a mirror. Raises TimedOutError: not in SECONDS."""

    def is_so() -> bool:
        if not fleet.daemons[name].is_running:
            return role == "mirror"
        return fleet.watch.roles().get(name) == role

    wait_until(is_so, seconds=SECONDS, what=f"{name} {role}")
