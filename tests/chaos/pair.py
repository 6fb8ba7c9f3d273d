"""
The mirrored pair: who decides about its roles, and moves its file, as a cluster manager and its storage do.

A pair with a lock has one file, the holder of the lock is the principal, and one application works on it. Of the other
kind each partner has a file. A failover ends the applications, tells the principal that it is a mirror, waits for it
to have stepped down, copies the file, and tells the partner. From then on an application looks into the file of the
mirror, in which nothing may be stored; and what was received where is judged by the roles that are told here.
"""

import re
import time
from contextlib import suppress

from msgspec.structs import replace

from broker.errors import BrokerError
from examples.demo.topology import TimedOutError
from tests.chaos.configuration import STOCK
from tests.chaos.fleet import Fleet, wait_until
from tests.chaos.history import Event, History, Orders, What
from tests.support.dialog import copy_database

SECONDS = 30.0
POLL_SECONDS = 0.1


def fail_over(fleet: Fleet, *, is_lost: bool = False) -> None:
    """
    The partner becomes the principal; with `is_lost` the principal is killed first, and stays away.

    Raises:
        TimedOutError: it did not within SECONDS.
    """
    old, new = fleet.principal, fleet.mirror
    if is_lost and fleet.has_lock:
        fleet.daemons[old].kill()
    if fleet.has_lock:
        _move_lock(fleet, old, new, is_lost=is_lost)
        return
    stop_applications(fleet)
    if is_lost:
        fleet.daemons[old].kill()
    move_file(fleet, old, new, is_awaited=not is_lost)


def _move_lock(fleet: Fleet, old: str, new: str, *, is_lost: bool) -> None:
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


def stop_applications(fleet: Fleet) -> None:
    """Those of the pair, while its file is moved."""
    for name in STOCK:
        fleet.applications[name].stop()


def move_file(fleet: Fleet, old: str, new: str, *, is_awaited: bool) -> None:
    """Tell the principal, copy its file, tell its partner; `is_awaited` until the principal has stepped down."""
    home = fleet.stock
    epoch = int(re.findall(r"\d+", fleet.role_file(old).read_text(encoding="ascii"))[0])
    _say(fleet, old, "mirror")
    if is_awaited:
        becomes(fleet, old, "mirror")
    tell_roles(fleet, {old: "mirror"})
    last = "SELECT seq FROM sqlite_sequence WHERE name = 'broker_message'"
    mark = copy_database(fleet.file(home, old), fleet.file(home, new), last) or 0
    tell_roles(fleet, {new: "principal"})
    _say(fleet, new, f"principal {epoch + 1}")
    becomes(fleet, new, "principal")
    fleet.applications[new].start(replace(fleet.applications[new].job, kind="target"))
    fleet.applications[old].start(replace(fleet.applications[old].job, kind="mirror", mark=mark))


def tell_roles(fleet: Fleet, roles: dict[str, str] | None = None) -> None:
    """Put roles into the histories of this phase; of both partners as they are now when none are given."""
    if fleet.has_lock:
        fleet.watch.begin()
        return
    phase = Orders.read(fleet.orders).phase
    for name, role in (roles or decided(fleet)).items():
        path = fleet.histories / phase / f"role-{name}.history"
        path.parent.mkdir(parents=True, exist_ok=True)
        history = History(path, f"role-{name}", str(fleet.file(fleet.stock, name)))
        history.tell(Event(What.ROLE, note=role))
        history.close()


def decided(fleet: Fleet) -> dict[str, str]:
    """The role that each partner has to have."""
    principal = fleet.principal
    return {name: "principal" if name == principal else "mirror" for name in STOCK}


def contradictions(fleet: Fleet) -> list[str]:
    """What is wrong: other roles than decided after SECONDS; with a lock, what `Watch` has seen."""
    wrong = []
    for name, role in decided(fleet).items():
        try:
            becomes(fleet, name, role)
        except TimedOutError as error:
            wrong.append(f"another role than was decided: {error}")
    if fleet.has_lock:
        fleet.watch.look()
        fleet.watch.read_logs()
        wrong += fleet.watch.wrong
        fleet.watch.wrong = []
    return wrong


def becomes(fleet: Fleet, name: str, role: str) -> None:
    """Wait until a partner has this role; one that does not run is a mirror. Raises TimedOutError: not in SECONDS."""

    def is_so() -> bool:
        if not fleet.daemons[name].is_running:
            return role == "mirror"
        return fleet.watch.role(name) == role

    wait_until(is_so, seconds=SECONDS, what=f"{name} {role}")


def _say(fleet: Fleet, name: str, words: str) -> None:
    fresh = fleet.role_file(name).with_suffix(".fresh")
    fresh.write_text(words, encoding="ascii")
    fresh.replace(fleet.role_file(name))
