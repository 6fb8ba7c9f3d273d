"""Real daemons on files that were copied, moved, put back and shared."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import broker
from examples.demo.topology import Daemon, Topology
from tests.support.command import run
from tests.support.loopback import refused_start

SERVICES = "CREATE QUEUE Inbox; CREATE SERVICE [//a] ON QUEUE Inbox; CREATE SERVICE [//b] ON QUEUE Inbox;"
SECONDS = 30.0


def add(net: Topology, name: str) -> Daemon:
    daemon = net.add(name, databases=["orders"])
    net.script(name, "orders", SERVICES)
    return daemon


def instance(daemon: Daemon) -> str:
    return str(daemon.status()["databases"]["orders"]["broker_instance"])


def exchange(path: Path) -> None:
    """A message to oneself arrives."""
    with closing(sqlite3.connect(path, timeout=SECONDS)) as db:
        with db:
            broker.begin_dialog(db, from_service="//a", to_service="//b").send("hello")
        with db:
            assert ["hello"] == [one.body.decode() for one in broker.receive(db, queue="Inbox", wait=SECONDS)]


@pytest.mark.promise("A file is put back from a backup, or copied", "A copied database is refused")
def test_a_copied_instance_refuses_to_be_the_original_until_it_is_made_new(net: Topology) -> None:
    original, copy = add(net, "original"), add(net, "copy")
    original.start()
    name = instance(original)
    exchange(original.directory / "orders.db")
    original.stop()
    for file in ("msdb.db", "orders.db"):
        shutil.copy(original.directory / file, copy.directory / file)

    code, told = refused_start(copy)
    checked = run("check", "-c", copy.config, "--offline")
    ends = [run("database", "reset-identity", "--yes", "-c", copy.config, one).exit_code for one in ("msdb", "orders")]
    net.start()

    assert (78, 1, [0, 0]) == (code, checked.exit_code, ends)
    assert "the file is a copy" in told
    for words in ("instance.state_dir: ", "databases.orders.path: ", "broker database reset-identity orders"):
        assert words in checked.stderr
    assert name == instance(original)
    assert name != instance(copy)
    exchange(copy.directory / "orders.db")
    exchange(original.directory / "orders.db")


@pytest.mark.promise("A file is put back from a backup, or copied", "A copied database is refused")
def test_an_older_copy_in_place_is_refused_until_it_is_kept(net: Topology, tmp_path: Path) -> None:
    daemon = add(net, "one")
    path = daemon.directory / "orders.db"
    daemon.start()
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(tmp_path / "backup")) as copy:
        db.backup(copy)
    exchange(path)
    daemon.stop()

    shutil.copyfile(tmp_path / "backup", path)
    code, told = refused_start(daemon)
    kept = run("database", "keep", "-c", daemon.config, "orders")
    ended = run("database", "error-conversations", "-c", daemon.config, "orders")
    daemon.start()

    assert (78, 0, 0) == (code, kept.exit_code, ended.exit_code)
    assert "the file is older than what this instance has seen" in told
    exchange(path)
