"""What befalls the file of a database while real daemons work on it: told, survived, and nothing lost or doubled."""

import json
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import broker
from broker.errors import StoreUnavailableError
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.command import run
from tests.support.loopback import (
    BILLING,
    ORDERS,
    PATIENCE,
    receive,
    refused_start,
    route,
    send,
    service,
    wait_acknowledged,
)

OTHER = "//shop/Other"
SHORT_PATIENCE = "import broker.store.sqlite.database\nbroker.store.sqlite.database.BUSY_SECONDS = 0.3\n"


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


def shop(net: Topology, where: Path | None = None, **environ: str) -> tuple[Daemon, Daemon, Path]:
    """An initiator, and a target with two databases, billing and other; started, with the file of billing."""
    orders = net.add("orders", databases=["orders"])
    billing = net.add("billing", databases=["billing", "other"])
    ways = route("b", BILLING, billing.address) + route("o", OTHER, billing.address)
    net.script("orders", "orders", service(ORDERS) + ways)
    for database, own in (("billing", BILLING), ("other", OTHER)):
        net.script("billing", database, service(own) + route("back", ORDERS, orders.address))
    path = (where or billing.directory) / "billing.db"
    if where is not None:
        billing.environ["BROKER_DATABASES__BILLING__PATH"] = str(path)
    for daemon in (orders, billing):
        daemon.environ |= environ
    net.start()
    return orders, billing, path


def numbered(count: int, more: str = "") -> list[str]:
    return [f"{number}{more}" for number in range(count)]


def receive_all(path: Path, count: int) -> list[str]:
    """So many bodies, and no more."""
    bodies = receive(path, count)
    with closing(sqlite3.connect(path, timeout=PATIENCE)) as db, db:
        return bodies + [message.body.decode() for message in broker.receive(db, queue="Inbox")]


def other_goes_on(orders: Daemon, billing: Daemon) -> None:
    """The other database of the target is not held up."""
    send(orders, "0", to=OTHER)
    assert ["0"] == receive_all(billing.directory / "other.db", 1)


def wait_problem(daemon: Daemon, words: str) -> None:
    """Until its status tells this problem of the database that is called like it; "" for none any more."""

    def is_told() -> bool:
        problem = str(daemon.status()["databases"][daemon.name]["problem"])
        return words in problem if words else not problem

    wait_for(is_told, seconds=PATIENCE, what=f"a problem with {words!r}")


def stop_and_remove_log(daemon: Daemon, path: Path) -> None:
    daemon.stop()
    for name in ("-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)


def is_refused_until_kept(daemon: Daemon) -> str:
    """What it said when it did not start; then it is started on the file that was kept."""
    code, told = refused_start(daemon)
    kept = run("database", "keep", "-c", daemon.config, "billing")
    daemon.start()
    assert (78, 0) == (code, kept.exit_code)
    return told


@contextmanager
def hostile(path: Path) -> Iterator[None]:
    """Somebody who begins to write and does not end."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.promise("The database is locked")
def test_a_writer_that_does_not_end_is_told_and_waited_for_by_daemons(net: Topology, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SHORT_PATIENCE)
    orders, billing, path = shop(net, PYTHONPATH=str(tmp_path))
    send(orders, "0")
    receive(path, 1)

    with hostile(path):
        send(orders, *numbered(20))
        wait_problem(billing, "another connection keeps a write transaction open: end it")
        other_goes_on(orders, billing)
        with hostile(orders.directory / "orders.db"):
            wait_problem(orders, "another connection keeps a write transaction open")

    assert numbered(20) == receive_all(path, 20)
    wait_problem(billing, "")
    wait_problem(orders, "")
    logged = [json.loads(line) for daemon in (orders, billing) for line in daemon.log.read_text().splitlines()]
    assert [] == [line for line in logged if line.get("reason") == "database is locked"]


@pytest.mark.promise("The database is locked")
def test_a_writer_that_does_not_end_is_waited_for_by_applications(net: Topology) -> None:
    """Whatever time-out their connections have."""
    orders, _, billing_path = shop(net)
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
    assert ["0"] == receive_all(billing_path, 1)


def fill(directory: Path) -> Path:
    """A file that leaves no room."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


@pytest.mark.promise("A disk is full")
def test_a_full_disk_holds_up_what_is_on_it_and_nothing_else(net: Topology, disk: Path) -> None:
    orders, billing, path = shop(net, disk)
    send(orders, "0")
    receive(path, 1)

    def answer() -> None:
        """A dialog the other way, with more than there is room for on a full disk."""
        with closing(sqlite3.connect(path)) as db, db:
            broker.begin_dialog(db, from_service=BILLING, to_service=ORDERS).send("x" * 1_000_000)

    filler = fill(disk)
    send(orders, *numbered(50, "x" * 10_000))
    wait_problem(billing, "the disk is full: free some space")
    other_goes_on(orders, billing)
    # Its commit is the application's own, and so is what SQLite says then.
    with pytest.raises((sqlite3.OperationalError, StoreUnavailableError)):
        answer()
    filler.unlink()

    assert numbered(50, "x" * 10_000) == receive_all(path, 50)
    answer()
    assert ["x" * 1_000_000] == receive(orders, 1)
    wait_problem(billing, "")


@pytest.mark.promise("A file is put back from a backup, or copied")
def test_a_backup_that_is_put_in_place_under_the_daemon_is_not_used(net: Topology, tmp_path: Path) -> None:
    """It is refused until somebody says that it is the database, with the log of the old one removed."""
    orders, billing, path = shop(net)
    backup = tmp_path / "backup"
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(backup)) as copy:
        db.backup(copy)

    backup.replace(path)
    send(orders, *numbered(3))
    wait_problem(billing, "was replaced by another one while it is in use")
    stop_and_remove_log(billing, path)
    told = is_refused_until_kept(billing)

    assert "the file is a copy" in told
    assert "broker database keep billing" in told
    assert numbered(3) == receive_all(path, 3)


def save_open_files(daemon: Daemon, name: str) -> None:
    """As the page about database files tells: `saved.db` and its log, from what the daemon has open."""
    for descriptor in Path(f"/proc/{daemon.pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # it was closed meanwhile
        for ending, saved in ((f"{name} (deleted)", "saved.db"), (f"{name}-wal", "saved.db-wal")):
            if target.endswith(ending):
                shutil.copyfile(descriptor, daemon.directory / saved)


def test_a_file_that_is_deleted_under_the_daemon_can_be_saved_from_it(net: Topology) -> None:
    orders, billing, path = shop(net)
    send(orders, *numbered(5))
    wait_acknowledged(orders)

    path.unlink()
    send(orders, "late")
    wait_problem(billing, "the file is gone while it is in use")
    save_open_files(billing, "billing.db")
    stop_and_remove_log(billing, path)
    for name in ("", "-wal"):
        (billing.directory / f"saved.db{name}").rename(f"{path}{name}")
    is_refused_until_kept(billing)

    assert [*numbered(5), "late"] == receive_all(path, 6)


# --- files that were copied, and put back ---


def add(net: Topology, name: str) -> Daemon:
    daemon = net.add(name, databases=["orders"])
    net.script(name, "orders", f"{service(ORDERS)}CREATE SERVICE [{BILLING}] ON QUEUE Inbox;")
    return daemon


def instance(daemon: Daemon) -> str:
    return str(daemon.status()["databases"]["orders"]["broker_instance"])


def exchange(path: Path) -> None:
    """A message to oneself arrives."""
    send(path, "hello")
    assert ["hello"] == receive(path, 1)


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
