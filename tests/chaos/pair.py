"""
Whoever decides about the mirrored pair, and moves its file: what a cluster manager and its storage do for real ones.

A pair with a lock decides by itself (`tests.chaos.lock_pair`). Of the other kind each partner has a file of its own. A
failover ends the applications, tells the principal that it is a mirror, waits for it to have stepped down, copies the
file, and tells the partner. From then on an application looks into the file of the mirror, in which nothing may be
stored; and what was received where is judged by the roles that are told here.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.errors import DaemonUnreachableError
from examples.demo.topology import TimedOutError
from tests.chaos import lock_pair
from tests.chaos.cast import STOCK
from tests.chaos.fleet import Fleet, wait_until
from tests.chaos.history import Event, History, What
from tests.chaos.job import Orders

SECONDS = 30.0


def fail_over(fleet: Fleet, *, is_lost: bool = False) -> None:
    """
    The partner becomes the principal; with `is_lost` the principal is killed first, and stays away.

    Raises:
        TimedOutError: it did not within SECONDS.
    """
    if fleet.has_lock:
        lock_pair.fail_over(fleet, is_lost=is_lost)
        return
    old = fleet.principal
    new = next(name for name in STOCK if name != old)
    home = next(home for home in fleet.targets if home.hosts == STOCK)
    for name in STOCK:
        fleet.applications[name].stop()
    if is_lost:
        fleet.daemons[old].kill()
    epoch = int(re.findall(r"\d+", fleet.role_file(old).read_text(encoding="ascii"))[0])
    _say(fleet, old, "mirror")
    if not is_lost:
        _becomes(fleet, old, "mirror")
    tell_roles(fleet, {old: "mirror"})
    mark = _copy(fleet.file(home, old), fleet.file(home, new))
    tell_roles(fleet, {new: "principal"})
    _say(fleet, new, f"principal {epoch + 1}")
    _becomes(fleet, new, "principal")
    job = fleet.applications[new].job
    fleet.applications[new].start(replace(job, kind="target"))
    fleet.applications[old].start(replace(fleet.applications[old].job, kind="mirror", mark=mark))


def tell_roles(fleet: Fleet, roles: dict[str, str] | None = None) -> None:
    """Put roles into the histories of this phase; of both partners as they are now when none are given."""
    if fleet.has_lock:
        fleet.watch.begin()
        return
    home = next(home for home in fleet.targets if home.hosts == STOCK)
    principal = fleet.principal
    roles = roles or {name: "principal" if name == principal else "mirror" for name in STOCK}
    phase = Orders.read(fleet.orders).phase
    for name, role in roles.items():
        path = fleet.histories / phase / f"role-{name}.history"
        path.parent.mkdir(parents=True, exist_ok=True)
        history = History(path, f"role-{name}", str(fleet.file(home, name)))
        history.tell(Event(What.ROLE, note=role))
        history.close()


def contradictions(fleet: Fleet) -> list[str]:
    """Partners that do not say of themselves what was decided, even after SECONDS: one that claims what it lost."""
    if fleet.has_lock:
        return lock_pair.contradictions(fleet)
    wrong = []
    for name in STOCK:
        decided = fleet.role_file(name).read_text(encoding="ascii").split()[0]
        try:
            _becomes(fleet, name, decided)
        except TimedOutError as error:
            wrong.append(f"another role than was decided: {error}")
    return wrong


def _say(fleet: Fleet, name: str, words: str) -> None:
    fresh = fleet.role_file(name).with_suffix(".fresh")
    fresh.write_text(words, encoding="ascii")
    fresh.replace(fleet.role_file(name))


def _becomes(fleet: Fleet, name: str, role: str) -> None:
    def is_so() -> bool:
        try:
            standing: dict[str, Any] = fleet.daemons[name].status()["mirroring"]["stock"]
        except DaemonUnreachableError:
            return not fleet.daemons[name].is_running and role == "mirror"
        return bool(standing["role"] == role)

    wait_until(is_so, seconds=SECONDS, what=f"{name} {role}")


def _copy(source: Path, destination: Path) -> int:
    """Copy a database that nobody has open; the queuing_order of the last message that ever was in its queues."""
    fresh = destination.with_suffix(".fresh")
    fresh.unlink(missing_ok=True)
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(fresh)) as new:
        old.backup(new)
        row = new.execute("SELECT seq FROM sqlite_sequence WHERE name = 'broker_message'").fetchone()
    for suffix in ("-wal", "-shm"):
        Path(f"{destination}{suffix}").unlink(missing_ok=True)
    fresh.chmod(0o600)
    fresh.replace(destination)
    return row[0] if row else 0
