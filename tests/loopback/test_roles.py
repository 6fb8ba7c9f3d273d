"""Two real daemons on one database file: who is the principal, and what happens when that changes."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.admin.client import ProblemError
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import PATIENCE, route

INSTANCE = "11111111-1111-4111-8111-111111111111"
SERVICES = "CREATE QUEUE Inbox; CREATE SERVICE [//orders] ON QUEUE Inbox;"
FAIL_OVER = "ALTER DATABASE orders SET PARTNER FAILOVER"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The file that both have."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared" / "orders.db"


def add(net: Topology, name: str, shared: Path, **settings: Any) -> Daemon:
    values = {"path": str(shared), "mirroring": "lock", **settings}
    daemon = net.add(name, databases=["orders"], settings={"databases.orders": values})
    net.script(name, "orders", SERVICES)
    return daemon


def pair(net: Topology, shared: Path) -> tuple[Daemon, Daemon]:
    """The first one is the principal."""
    first, second = add(net, "first", shared), add(net, "second", shared)
    first.start()
    second.start()
    return first, second


def pair_and_sender(net: Topology, shared: Path) -> tuple[Daemon, Daemon, Daemon]:
    """Two instances of one database, and one with a database shop that has a mirrored route to them; all started."""
    first, second = [add(net, name, shared, broker_instance=INSTANCE) for name in ("first", "second")]
    sender = net.add("sender", databases=["shop"])
    more = f", BROKER_INSTANCE = '{INSTANCE}', MIRROR_ADDRESS = '{second.address}'"
    outbox = "CREATE QUEUE Outbox; CREATE SERVICE [//shop] ON QUEUE Outbox;"
    net.script("sender", "shop", outbox + route("pair", "//orders", first.address, more))
    for daemon in (first, second):
        net.script(daemon.name, "orders", SERVICES + route("back", "//shop", sender.address))
    for daemon in (first, second, sender):
        daemon.start()
    return first, second, sender


def standing(daemon: Daemon) -> Mapping[str, Any]:
    found: Mapping[str, Any] = daemon.status()["mirroring"]["orders"]
    return found


def role(daemon: Daemon) -> tuple[str, int]:
    found = standing(daemon)
    return found["role"], found["epoch"]


def becomes(daemon: Daemon, wanted: str, epoch: int) -> None:
    wait_for(lambda: (wanted, epoch) == role(daemon), seconds=PATIENCE, what=f"{daemon.name} {wanted} {epoch}")


def sql(daemon: Daemon, statement: str) -> list[str]:
    told: list[str] = daemon.admin.sql(statement, None)["messages"]
    return told


def stored(path: Path, question: str) -> Any:
    with closing(sqlite3.connect(path, timeout=PATIENCE)) as db:
        return db.execute(question).fetchone()[0]


@pytest.mark.promise("The principal of a mirrored pair is lost")
def test_what_is_sent_to_a_pair_arrives_once_and_in_order_whoever_is_principal(net: Topology, shared: Path) -> None:
    first, second, sender = pair_and_sender(net, shared)
    with closing(sender.connect("shop")) as db, closing(sqlite3.connect(shared, timeout=PATIENCE)) as pair_db:
        with db:
            dialog = broker.begin_dialog(
                db, from_service="//shop", to_service="//orders", broker_instance=uuid.UUID(INSTANCE)
            )
        number = 0
        got: list[str] = []

        def take() -> None:
            with pair_db:
                got.extend(one.body.decode() for one in broker.receive(pair_db, queue="Inbox", wait=PATIENCE))

        for change in (lambda: sql(first, FAIL_OVER), lambda: sql(second, FAIL_OVER), first.kill, first.start):
            for _ in range(20):
                with db:
                    dialog.send(str(number))
                number += 1
            take()
            change()
        while len(got) < number:
            take()
        with pair_db:
            more = broker.receive(pair_db, queue="Inbox", wait=0.2)

    assert ([str(one) for one in range(number)], []) == (got, more)


@pytest.mark.promise(13, "R6.8")
def test_whoever_has_a_stale_epoch_commits_nothing_and_steps_down(net: Topology, shared: Path) -> None:
    first = add(net, "first", shared)
    first.start()

    with closing(sqlite3.connect(shared, timeout=PATIENCE)) as db, db:
        db.execute("UPDATE broker_database SET epoch = 7")
        broker.begin_dialog(db, from_service="//orders", to_service="//orders").send("hello")
    wait_for(lambda: "mirror" == role(first)[0], seconds=PATIENCE, what="demoted")
    delivered = stored(shared, "SELECT count(*) FROM broker_message")
    problem = standing(first)["problem"]

    assert 0 == delivered
    assert "another daemon has taken it over: its epoch is 7, ours was 1" == problem
    wait_for(lambda: '"database demoted"' in first.log.read_text("utf-8"), seconds=PATIENCE, what="a line of the log")
    becomes(first, "principal", 8)  # for nobody else has it


@pytest.mark.promise(13)
def test_a_lock_that_is_lost_lets_nobody_write_twice(net: Topology, shared: Path) -> None:
    """The file of the lock is removed, so the second gets one of its own while the first has the database."""
    first, second = pair(net, shared)

    Path(f"{shared}.lock").unlink()

    becomes(second, "principal", 2)
    wait_for(lambda: ("mirror", 2) == role(first), seconds=PATIENCE, what="the first steps down")
    assert "second" == standing(first)["principal"]


def told_by(path: Path) -> dict[str, Any]:
    """Settings with which the role is what a file says."""
    return {
        "mirroring": "command",
        "role_command": ["cat", str(path)],
        "role_interval": "100ms",
        "role_timeout": "2500ms",
    }


@pytest.mark.promise("R6.8")
def test_a_command_makes_and_ends_a_principal(net: Topology, shared: Path, tmp_path: Path) -> None:
    word = tmp_path / "role"
    word.write_text("mirror", encoding="utf-8")
    daemon = add(net, "first", shared, **told_by(word))
    daemon.start()
    begins = role(daemon)

    words = {"principal 12": ("principal", 12), "mirror": ("mirror", 12), "principal 3": ("principal", 13)}
    for said, (wanted, epoch) in words.items():
        word.write_text(said, encoding="utf-8")
        becomes(daemon, wanted, epoch)

    assert ("mirror", 0) == begins
    with pytest.raises(ProblemError, match="are decided by role_command: fail over where that gets them from"):
        sql(daemon, FAIL_OVER)
