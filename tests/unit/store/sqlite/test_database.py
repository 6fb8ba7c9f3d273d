"""The file: made once, opened again as it was, refused when it is not ours; its catalog comes back as it was put."""

import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import astuple

from broker.errors import StoreUnavailableError
from broker.protocol.layout import show_guid
from broker.routing.route import AUTO_CREATED_LOCAL, RouteRow
from broker.store.sqlite import database
from broker.store.sqlite.database import FileWatch, broker_instance, is_locked, lock_store, open_store
from broker.store.sqlite.metadata import put_queue, routes
from broker.store.sqlite.schema import SCHEMA_VERSION, has_schema
from broker.store.sqlite.transaction import DaemonConnection, open_watch
from tests.support.shop import sqlite_error

INSTANCE = UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")
OTHER = UUID("6b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


def _is_open_here(path: Path) -> bool:
    """Whether this process has the file open."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(descriptor.readlink())
    return path in links


def _refusal(path: Path, instance: UUID | None = None) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        open_store(path, broker_instance=instance)
    assert str(path) == caught.value.path
    assert not _is_open_here(path)
    return caught.value.problem


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.promise("R1.3", "routes 2")
def test_missing_file_is_made_with_schema_identity_and_first_route(path: Path, *, is_used: bool) -> None:
    """Or the file of an application is given ours next to its own tables."""
    if is_used:
        with closing(sqlite3.connect(path)) as own, own:
            own.execute("CREATE TABLE orders AS SELECT 7 AS id")

    with closing(open_store(path, broker_instance=INSTANCE)) as db:
        assert has_schema(db)
        assert INSTANCE.bytes == broker_instance(db)
        assert db.execute("SELECT schema_version FROM broker_database").fetchall() == [(SCHEMA_VERSION,)]
        assert list(routes(db)) == [astuple(RouteRow.of(AUTO_CREATED_LOCAL))]
        if is_used:
            assert db.execute("SELECT id FROM orders").fetchall() == [(7,)]


def test_a_file_that_is_made_is_for_its_owner_alone_from_the_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    connect = sqlite3.connect

    def connecting(*args: object, **more: object) -> sqlite3.Connection:
        seen.append((stat.S_IMODE(path.stat().st_mode), path.stat().st_size))
        return connect(*args, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", connecting)
    umask = os.umask(0)
    try:
        with closing(open_store(path)):
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(umask)
    path.chmod(0o640)
    with closing(open_store(path)):
        kept = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}

    assert (0o600, 0) == seen[0]
    assert {"orders.db": 0o600, "orders.db-wal": 0o600, "orders.db-shm": 0o600} == modes
    assert {0o640} == kept, "a file that is there keeps its mode"


@pytest.mark.promise(1)
def test_what_was_committed_is_on_the_disk(db: sqlite3.Connection) -> None:
    """Write-ahead log, and a synchronisation with every commit (FULL is 2)."""
    mode = db.execute("PRAGMA journal_mode").fetchone()[0]
    synchronous = db.execute("PRAGMA synchronous").fetchone()[0]

    assert (mode, synchronous) == ("wal", 2)


def test_other_identity_is_refused(path: Path) -> None:
    open_store(path, broker_instance=INSTANCE).close()

    problem = _refusal(path, OTHER)

    assert f"its broker instance is {show_guid(INSTANCE)}, the configuration says {show_guid(OTHER)}" == problem


def test_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to be asked " * 20)
    before = path.read_bytes()

    assert "not a database" in _refusal(path)
    assert before == path.read_bytes()


def test_schema_is_made_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(database, "put_routes", fail)
    problem = _refusal(path)
    monkeypatch.undo()
    left = sqlite3.connect(path)

    assert "disk I/O error" in problem
    assert left.execute("SELECT name FROM sqlite_master").fetchall() == []
    left.close()


def test_many_may_make_and_open_the_same_file_at_once(path: Path) -> None:
    start = threading.Barrier(8)
    identities: list[bytes] = []
    failures: list[Exception] = []

    def opening() -> None:
        start.wait()
        try:
            db = open_store(path)
            identities.append(broker_instance(db))
            db.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            failures.append(error)

    threads = [threading.Thread(target=opening) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert (len(identities), len(set(identities))) == (8, 1)


def _connection_that_fails(errors: list[sqlite3.OperationalError]) -> Callable[..., sqlite3.Connection]:
    """A `connect` whose connections fail to change the mode of the file with these errors first."""

    class Failing(DaemonConnection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            if errors and sql.startswith("PRAGMA journal_mode"):
                raise errors.pop()
            return super().execute(sql, *parameters)  # type: ignore[arg-type]

    connect = sqlite3.connect

    def connecting(path: Path, **options: object) -> sqlite3.Connection:
        return connect(path, **{**options, "factory": Failing})  # type: ignore[call-overload, no-any-return]

    return connecting


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY])
def test_change_of_mode_waits_for_others(path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    errors = [sqlite_error(code), sqlite_error(code)]
    monkeypatch.setattr(sqlite3, "connect", _connection_that_fails(errors))
    monkeypatch.setattr(database, "_MODE_PAUSE", 0)

    open_store(path).close()

    assert errors == []


def test_failure_that_waiting_does_not_cure_is_told_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [sqlite_error(sqlite3.SQLITE_BUSY), sqlite_error(sqlite3.SQLITE_IOERR)]
    monkeypatch.setattr(sqlite3, "connect", _connection_that_fails(errors))

    _refusal(path)

    assert len(errors) == 1


@pytest.mark.promise(13)
def test_only_one_daemon_may_have_a_database(path: Path) -> None:
    """By whatever name."""
    link = path.with_name("link.db")
    link.symlink_to(path)
    descriptor = lock_store(path)

    for name in (path, link):
        with pytest.raises(StoreUnavailableError) as caught:
            lock_store(name)
        assert (caught.value.path, caught.value.problem) == (str(name), "another daemon has it open")
    os.close(descriptor)
    os.close(lock_store(path))


def test_a_file_with_two_names_is_refused_by_either_until_one_is_removed(path: Path, db: sqlite3.Connection) -> None:
    other = path.with_name("other.db")
    other.hardlink_to(path)

    for name in (path, other):
        with pytest.raises(StoreUnavailableError, match=r"2 names \(hard links\).*remove the others"):
            lock_store(name)

    other.unlink()
    os.close(lock_store(path))


@pytest.mark.promise("A reader does not wake up")
def test_watch_sees_that_others_committed_and_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "odd name?#%.db"
    db = open_store(path)
    watch = open_watch(path)
    before = watch.execute("PRAGMA data_version").fetchone()

    put_queue(db, "Orders", is_receive_enabled=True)

    assert before != watch.execute("PRAGMA data_version").fetchone()
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        put_queue(watch, "Billing", is_receive_enabled=True)
    watch.close()
    db.close()


def test_a_lock_is_seen_without_taking_it(path: Path) -> None:
    open_store(path).close()
    before = is_locked(path), Path(f"{path}.lock").exists()
    lock = lock_store(path)
    held = is_locked(path)
    os.close(lock)

    assert ((False, False), True, False) == (before, held, is_locked(path))


@pytest.fixture
def plain(path: Path) -> Path:
    path.write_text("data")
    Path(f"{path}-wal").write_text("log")
    return path


def refusal(watch: FileWatch) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        watch.check()
    return caught.value.problem


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("other")
    other.replace(path)


def test_file_that_is_gone_is_reported_until_it_is_back_and_one_that_was_replaced(plain: Path) -> None:
    watch = FileWatch(plain)
    plain.write_text("more data")
    watch.check()
    plain.rename(plain.with_name("away"))

    problem = refusal(watch)
    plain.with_name("away").rename(plain)

    assert problem.startswith(
        "the file is gone while it is in use, so nothing more is stored or acknowledged: if it was"
    )
    assert "renamed, rename it back" in problem
    assert "deleted, do not stop the daemon" in problem
    watch.check()
    replace(plain)
    problem = refusal(watch)
    assert "the file was replaced by another one while it is in use" in problem
    assert problem.index("save it before the daemon stops") < problem.index("Otherwise, stop the daemon")


@pytest.mark.parametrize("is_gone", [True, False])
def test_the_log_is_part_of_the_database_where_there_was_one(plain: Path, *, is_gone: bool) -> None:
    watch, log = FileWatch(plain), Path(f"{plain}-wal")
    log.rename(log.with_name("old"))
    without_log = FileWatch(plain)
    if not is_gone:
        replace(log)

    problem = refusal(watch)

    assert f"the write-ahead log {log} {'is gone' if is_gone else 'was replaced'}" in problem
    assert "rename" not in problem, "messages written since may be in another one"
    without_log.check()
