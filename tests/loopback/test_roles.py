"""Two real daemons on one database file: who is the principal, and what happens when that changes."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.admin.client import ProblemError
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import PATIENCE, service
from tests.support.mirrored import becomes, fail_over, role, stored


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The file that both have."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared" / "orders.db"


def add(net: Topology, name: str, shared: Path, **settings: Any) -> Daemon:
    values = {"path": str(shared), "mirroring": "lock", **settings}
    daemon = net.add(name, databases=["orders"], settings={"databases.orders": values})
    net.script(name, "orders", service("//orders"))
    return daemon


def standing(daemon: Daemon) -> Mapping[str, Any]:
    found: Mapping[str, Any] = daemon.status()["mirroring"]["orders"]
    return found


@pytest.mark.promise(13, "R6.8")
def test_whoever_has_a_stale_epoch_commits_nothing_and_steps_down(net: Topology, shared: Path) -> None:
    first = add(net, "first", shared)
    first.start()

    with closing(sqlite3.connect(shared, timeout=PATIENCE)) as db, db:
        db.execute("UPDATE broker_database SET epoch = 7")
        broker.begin_dialog(db, from_service="//orders", to_service="//orders").send("hello")
    becomes(first, "mirror", None, "orders")
    delivered = stored(shared, "SELECT count(*) FROM broker_message")
    problem = standing(first)["problem"]

    assert 0 == delivered
    assert "another daemon has taken it over: its epoch is 7, ours was 1" == problem
    wait_for(lambda: '"database demoted"' in first.log.read_text("utf-8"), seconds=PATIENCE, what="a line of the log")
    becomes(first, "principal", 8, "orders")  # for nobody else has it


@pytest.mark.promise(13)
def test_a_lock_that_is_lost_lets_nobody_write_twice(net: Topology, shared: Path) -> None:
    """The file of the lock is removed, so the second gets one of its own while the first has the database."""
    first, second = add(net, "first", shared), add(net, "second", shared)
    first.start()  # before the second, so it is the principal
    second.start()

    Path(f"{shared}.lock").unlink()

    becomes(second, "principal", 2, "orders")
    becomes(first, "mirror", 2, "orders")
    assert "second" == standing(first)["principal"]


@pytest.mark.promise("R6.8")
def test_a_command_makes_and_ends_a_principal(net: Topology, shared: Path, tmp_path: Path) -> None:
    word = tmp_path / "role"
    word.write_text("mirror", encoding="utf-8")
    command = {"role_command": ["cat", str(word)], "role_interval": "100ms", "role_timeout": "2500ms"}
    daemon = add(net, "first", shared, mirroring="command", **command)
    daemon.start()
    begins = role(daemon, "orders")

    words = {"principal 12": ("principal", 12), "mirror": ("mirror", 12), "principal 3": ("principal", 13)}
    for said, (wanted, epoch) in words.items():
        word.write_text(said, encoding="utf-8")
        becomes(daemon, wanted, epoch, "orders")

    assert ("mirror", 0) == begins
    with pytest.raises(ProblemError, match="are decided by role_command: fail over where that gets them from"):
        fail_over(daemon, "orders")
