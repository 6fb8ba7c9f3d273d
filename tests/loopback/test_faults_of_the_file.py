"""What befalls the file of a database while real daemons work on it: told, survived, and nothing lost or doubled."""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.errors import StoreUnavailableError
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.command import run

ORDERS, BILLING, OTHER = "//shop/Orders", "//shop/Billing", "//shop/Other"
SECONDS = 40.0
SHORT_PATIENCE = "import broker.store.sqlite.database\nbroker.store.sqlite.database.BUSY_SECONDS = 0.3\n"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path / "net") as topology:
        yield topology


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 8 MB."""
    where = tmp_path / "disk"
    where.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", where], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("only root may mount a file system")
    yield where
    subprocess.run(["umount", "-l", where], check=True)


def service(name: str) -> str:
    return f"CREATE QUEUE Inbox; CREATE SERVICE [{name}] ON QUEUE Inbox;\n"


def route(name: str, to: str, address: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = '{address}';\n"


def shop(net: Topology, *, billing_path: Path | None = None) -> tuple[Daemon, Daemon]:
    """An initiator, and a target with two databases, billing and other."""
    orders = net.add("orders", databases=["orders"])
    billing = net.add("billing", databases=["billing", "other"])
    net.script(
        "orders", "orders", service(ORDERS) + route("b", BILLING, billing.address) + route("o", OTHER, billing.address)
    )
    net.script("billing", "billing", service(BILLING) + route("back", ORDERS, orders.address))
    net.script("billing", "other", service(OTHER) + route("back", ORDERS, orders.address))
    if billing_path is not None:
        billing.environ["BROKER_DATABASES__BILLING__PATH"] = str(billing_path)
    return orders, billing


def send(orders: Daemon, count: int, *, to: str = BILLING, body: str = "") -> None:
    with closing(orders.connect("orders")) as db, db:
        dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=to)
        for number in range(count):
            dialog.send(f"{number}{body}")


def receive(path: Path, count: int) -> list[str]:
    """So many bodies, and no more."""
    bodies: list[str] = []
    with closing(sqlite3.connect(path, timeout=SECONDS)) as db:
        while len(bodies) < count:
            with db:
                messages = broker.receive(db, queue="Inbox", wait=SECONDS)
                bodies += [message.body.decode() for message in messages]
            assert messages, f"only {len(bodies)} of {count} came"
        with db:
            bodies += [message.body.decode() for message in broker.receive(db, queue="Inbox")]
    return bodies


def problem(daemon: Daemon, database: str = "billing") -> str:
    return str(daemon.status()["databases"][database]["problem"])


def wait_problem(daemon: Daemon, words: str, database: str = "billing") -> None:
    wait_for(lambda: words in problem(daemon, database), seconds=SECONDS, what=f"a problem with {words!r}")


def wait_no_problem(daemon: Daemon, database: str = "billing") -> None:
    wait_for(lambda: not problem(daemon, database), seconds=SECONDS, what="no problem any more")


def wait_unacknowledged(orders: Daemon, services: list[str]) -> None:
    """Until only messages to these services wait for an acknowledgement, which comes a little after the commit."""

    def waiting() -> bool:
        rows = orders.query("SELECT to_service_name FROM sys.transmission_queue")
        return services == [row["to_service_name"] for row in rows]

    wait_for(waiting, seconds=SECONDS, what=f"{len(services)} messages without an acknowledgement, and no others")


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def serve(daemon: Daemon) -> tuple[int, str]:
    """The exit code of a daemon that cannot start, and what it says."""
    command = [sys.executable, "-m", "broker", "serve", "-c", str(daemon.config)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    return done.returncode, done.stderr.decode()


# --- somebody else writes -----------------------------------------------------------------------------------


@contextmanager
def hostile(path: Path) -> Iterator[None]:
    """Somebody who begins to write and does not end."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=SECONDS)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield


def test_a_writer_that_does_not_end_is_told_and_waited_for_by_daemons(net: Topology, tmp_path: Path) -> None:
    orders, billing = shop(net)
    (tmp_path / "sitecustomize.py").write_text(SHORT_PATIENCE)
    for daemon in (orders, billing):
        daemon.environ["PYTHONPATH"] = str(tmp_path)
    net.start()
    send(orders, 1)
    first = receive(billing.directory / "billing.db", 1)

    with hostile(billing.directory / "billing.db"):
        send(orders, 20)
        wait_problem(billing, "another connection keeps a write transaction open: end it")
        send(orders, 1, to=OTHER)
        other = receive(billing.directory / "other.db", 1)
        with hostile(orders.directory / "orders.db"):
            wait_problem(orders, "another connection keeps a write transaction open", "orders")

    assert (["0"], ["0"]) == (first, other)
    assert numbers(20) == receive(billing.directory / "billing.db", 20)
    wait_no_problem(billing)
    wait_no_problem(orders, "orders")
    logged = [json.loads(line) for daemon in (orders, billing) for line in daemon.log.read_text().splitlines()]
    assert [] == [line for line in logged if line.get("reason") == "database is locked"]


def test_a_writer_that_does_not_end_is_waited_for_by_applications(net: Topology) -> None:
    """Whatever time-out their connections have."""
    orders, billing = shop(net)
    net.start()
    path = orders.directory / "orders.db"
    failures: list[Exception] = []

    def application() -> None:
        try:
            with closing(sqlite3.connect(path, timeout=0)) as db, db:
                broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING).send("0")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            failures.append(error)

    thread = threading.Thread(target=application)
    with hostile(path):
        thread.start()
        thread.join(1.0)
        is_waiting = thread.is_alive()
    thread.join()

    assert ([], True) == (failures, is_waiting)
    assert ["0"] == receive(billing.directory / "billing.db", 1)


# --- the disk -----------------------------------------------------------------------------------------------


def fill(directory: Path) -> Path:
    """A file that leaves no room."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def answer(db: sqlite3.Connection) -> None:
    """A dialog the other way, with more than there is room for on a full disk."""
    with db:
        broker.begin_dialog(db, from_service=BILLING, to_service=ORDERS).send("x" * 1_000_000)


def test_a_full_disk_holds_up_what_is_on_it_and_nothing_else(net: Topology, disk: Path) -> None:
    path = disk / "billing.db"
    orders, billing = shop(net, billing_path=path)
    net.start()
    send(orders, 1)
    receive(path, 1)

    filler = fill(disk)
    send(orders, 50, body="x" * 10_000)
    wait_problem(billing, "the disk is full: make room")
    send(orders, 1, to=OTHER)
    other = receive(billing.directory / "other.db", 1)
    # Its commit is the application's own, and so is what SQLite says then.
    with closing(sqlite3.connect(path)) as db, pytest.raises((sqlite3.OperationalError, StoreUnavailableError)):
        answer(db)
    filler.unlink()

    bodies = receive(path, 50)
    with closing(sqlite3.connect(path)) as db:
        answer(db)
    assert ["0"] == other
    assert ["x" * 1_000_000] == receive(orders.directory / "orders.db", 1)
    assert numbers(50) == [body.rstrip("x") for body in bodies]
    wait_no_problem(billing)


def test_a_file_that_may_not_grow_is_told_and_goes_on_when_it_may(net: Topology) -> None:
    """A limit of the process, as a quota is; what root may do is no way out of it."""
    orders, billing = shop(net)
    net.start()
    send(orders, 1)
    path = billing.directory / "billing.db"
    receive(path, 1)
    unlimited = resource.prlimit(billing.pid, resource.RLIMIT_FSIZE)

    size = Path(f"{path}-wal").stat().st_size
    resource.prlimit(billing.pid, resource.RLIMIT_FSIZE, (size, unlimited[1]))
    send(orders, 100, body="x" * 20_000)
    wait_problem(billing, "there is room")
    resource.prlimit(billing.pid, resource.RLIMIT_FSIZE, unlimited)

    assert numbers(100) == [body.rstrip("x") for body in receive(path, 100)]
    wait_no_problem(billing)


def test_a_disk_that_may_only_be_read_is_refused_at_the_start(net: Topology, disk: Path) -> None:
    path = disk / "billing.db"
    orders, billing = shop(net, billing_path=path)
    net.start()
    send(orders, 3)
    wait_for(lambda: not orders.query("SELECT * FROM sys.transmission_queue"), seconds=SECONDS, what="all sent")
    billing.stop()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)

    billing.start(wait=False)
    wait_for(lambda: not billing.is_running, seconds=SECONDS, what="the end")
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    billing.start()

    assert "Read-only file system" in billing.log.read_text()
    assert numbers(3) == receive(path, 3)


# --- the file itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_file_that_is_moved_away_is_noticed_and_goes_on_when_it_is_back(
    net: Topology, tmp_path: Path, what: str
) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    path = directory / "billing.db"
    orders, billing = shop(net, billing_path=path)
    net.start()
    send(orders, 5)
    moved, away = (path, directory / "away") if what == "file" else (directory, tmp_path / "away")

    before = receive(path, 5)
    moved.rename(away)
    send(orders, 20)
    wait_problem(billing, "is gone while it is in use, so nothing more is stored or acknowledged")
    send(orders, 1, to=OTHER)
    other = receive(billing.directory / "other.db", 1)
    wait_unacknowledged(orders, [BILLING] * 20)
    away.rename(moved)

    assert (numbers(5), ["0"]) == (before, other)
    assert numbers(20) == receive(path, 20)
    wait_no_problem(billing)


def test_statements_are_refused_while_the_file_is_away(net: Topology) -> None:
    _, billing = shop(net)
    billing.start()
    path = billing.directory / "billing.db"
    path.rename(path.with_name("away"))

    with pytest.raises(broker.BrokerError, match="the file is gone while it is in use"):
        billing.admin.sql("CREATE QUEUE Late", "billing")
    path.with_name("away").rename(path)
    billing.admin.sql("CREATE QUEUE Late", "billing")


def test_a_backup_that_is_put_in_place_under_the_daemon_is_not_used(net: Topology, tmp_path: Path) -> None:
    """It is refused until somebody says that it is the database, with the log of the old one removed."""
    orders, billing = shop(net)
    net.start()
    path, backup = billing.directory / "billing.db", tmp_path / "backup"
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(backup)) as copy:
        db.backup(copy)
    shutil.copy(backup, tmp_path / "once more")

    backup.replace(path)
    send(orders, 3)
    wait_problem(billing, "was replaced by another one while it is in use")
    billing.stop()
    for name in ("-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)
    code, told = serve(billing)
    kept = run("database", "keep", "-c", billing.config, "billing")
    billing.start()

    assert (78, 0) == (code, kept.exit_code)
    assert "the file is a copy" in told
    assert "broker database keep billing" in told
    assert numbers(3) == receive(path, 3)


def save_open_files(daemon: Daemon, name: str) -> None:
    """As the page about database files tells: `saved.db` and its log, from what the daemon has open."""
    descriptors = Path(f"/proc/{daemon.pid}/fd")
    for descriptor in descriptors.iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # it was closed meanwhile
        for ending, saved in ((f"{name} (deleted)", "saved.db"), (f"{name}-wal", "saved.db-wal")):
            if target.endswith(ending):
                shutil.copyfile(descriptor, daemon.directory / saved)


def test_a_file_that_is_deleted_under_the_daemon_can_be_saved_from_it(net: Topology) -> None:
    orders, billing = shop(net)
    net.start()
    path = billing.directory / "billing.db"
    send(orders, 5)
    wait_for(lambda: not orders.query("SELECT * FROM sys.transmission_queue"), seconds=SECONDS, what="all sent")

    path.unlink()
    send(orders, 1)
    wait_problem(billing, "the file is gone while it is in use")
    save_open_files(billing, "billing.db")
    billing.stop()
    for name in ("-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)
    for name in ("", "-wal"):
        (billing.directory / f"saved.db{name}").rename(f"{path}{name}")
    code, _ = serve(billing)
    kept = run("database", "keep", "-c", billing.config, "billing")
    billing.start()

    assert (78, 0) == (code, kept.exit_code)
    assert [*numbers(5), "0"] == receive(path, 6)


def test_a_log_that_is_removed_under_the_daemon_is_saved_by_its_end(net: Topology) -> None:
    orders, billing = shop(net)
    net.start()
    path = billing.directory / "billing.db"
    send(orders, 5)
    wait_for(lambda: not orders.query("SELECT * FROM sys.transmission_queue"), seconds=SECONDS, what="all sent")

    Path(f"{path}-wal").unlink()
    send(orders, 1)
    wait_problem(billing, "while it is in use")  # gone, or replaced by one that somebody who looked has made
    assert "the write-ahead log" in problem(billing)
    billing.stop()
    billing.start()

    assert sorted([*numbers(5), "0"]) == sorted(receive(path, 6))


def test_a_log_that_is_removed_behind_a_killed_daemon_is_missed(net: Topology) -> None:
    """What was acknowledged was in it: going on in silence would lose messages."""
    orders, billing = shop(net)
    net.start()
    path = billing.directory / "billing.db"
    billing.stop()
    billing.start()
    send(orders, 5)
    receive(path, 5)
    billing.kill()

    Path(f"{path}-wal").unlink()
    code, told = serve(billing)

    assert 78 == code
    assert "the file is older than what this instance has seen" in told


def test_a_damaged_page_stops_one_database_and_says_so(net: Topology) -> None:
    orders, billing = shop(net)
    net.start()
    path = billing.directory / "billing.db"
    send(orders, 1)
    receive(path, 1)

    with closing(sqlite3.connect(path, isolation_level=None, timeout=SECONDS)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'broker_message'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
        assert (0,) == db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[:1]
        with path.open("r+b") as file:
            file.seek((page - 1) * size)
            file.write(b"\x55" * size)
        db.execute("UPDATE broker_queue SET rollbacks = rollbacks")  # what others have in memory is not asked again
    send(orders, 3)
    wait_problem(billing, "is damaged: stop whoever uses it, and put back a backup")
    send(orders, 1, to=OTHER)

    assert ["0"] == receive(billing.directory / "other.db", 1)
    wait_unacknowledged(orders, [BILLING] * 3)


def spoil_text(path: Path) -> str:
    path.write_text("this is no database, but a text that is longer than the header of one is" * 10)
    return "the file is no SQLite database"


def spoil_version(path: Path) -> str:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE broker_database (schema_version, broker_instance)")
        db.execute("INSERT INTO broker_database VALUES (99, x'00')")
    return "its schema has version 99, this release knows"


@pytest.mark.parametrize("spoil", [spoil_text, spoil_version])
def test_what_is_no_database_of_this_release_is_refused_at_the_start(net: Topology, spoil: Any) -> None:
    _, billing = shop(net)
    what = spoil(billing.directory / "billing.db")

    code, told = serve(billing)

    assert 75 == code
    assert f"store {billing.directory}/billing.db: " in told
    assert what in told
    assert "Traceback" not in told


def test_a_directory_where_a_database_belongs_is_bad_configuration(net: Topology) -> None:
    """It stays one until somebody names another file, so a supervisor is told not to try again."""
    _, billing = shop(net)
    (billing.directory / "billing.db").mkdir()

    code, told = serve(billing)

    assert (78, True) == (code, "databases.billing.path: " in told), told
    assert f'"{billing.directory}/billing.db" is not a regular file' in told


def test_a_newer_file_is_found_by_a_check(net: Topology) -> None:
    _, billing = shop(net)
    spoil_version(billing.directory / "billing.db")

    result = run("check", "-c", billing.config, "--offline")

    assert 1 == result.exit_code
    assert "its schema has version 99" in result.stderr
