"""Files of databases: taken and given back, and judged by a check without being taken."""

import os
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import structlog

from broker.catalog.check import check_files
from broker.catalog.database_files import (
    NOT_RUNNING,
    SLACK_SECONDS,
    UNASKED,
    clock_problem,
    file_errors,
    file_warnings,
    is_elsewhere,
    make_directory,
    owner_from,
    path_of,
    place_errors,
    take,
)
from broker.catalog.diagnostics import store_error
from broker.config.load import in_force
from broker.config.settings import Settings
from broker.config.values import parse_listen
from broker.errors import SettingError, StoreUnavailableError
from broker.protocol.layout import show_guid
from broker.store.sqlite.administration import new_broker
from broker.store.sqlite.database import broker_instance, lock_path, lock_store, open_store
from broker.store.sqlite.file_identity import RECORD, accept_replacement, forget_lost
from broker.store.sqlite.role_file import PrincipalRecord, role_path, write_principal
from broker.store.sqlite.schema import SCHEMA_VERSION
from broker.store.sqlite.transaction import writing
from tests.support.nobody import as_nobody

USED_AT = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC


def test_a_clock_before_the_last_use_is_told(tmp_path: Path) -> None:
    assert clock_problem(tmp_path, now=0.0) is None  # the first start
    (tmp_path / RECORD).touch()
    os.utime(tmp_path / RECORD, (USED_AT, USED_AT))

    told = [clock_problem(tmp_path, now=USED_AT - before) for before in (SLACK_SECONDS, 0, -1e9)]
    assert [None] * 3 == told
    problem = clock_problem(tmp_path, now=USED_AT - 86_400)
    assert problem is not None
    assert problem.startswith("the clock says 2026-09-20 14:13 UTC, and this instance was last started or stopped at")


# --- taking and giving back ---


TEXT = '[instance]\nstate_dir = "state"\n[databases.orders]\npath = "orders.db"\n'


@pytest.fixture
def settings(load: Callable[..., Settings]) -> Settings:
    return load(TEXT)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def query(path: Path, sql: str = "SELECT file_number, starts FROM broker_database") -> Any:
    """The first row of it, if any; changes are kept."""
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(sql).fetchone()


AS_COPY = "UPDATE broker_database SET file_number = 1"  # the file is not the one that was written


def used(settings: Settings) -> Path:
    """The file of the database, after a start and a stop."""
    with ExitStack() as stack:
        take(settings, "msdb", stack)
        take(settings, "orders", stack)
    return path_of(settings, "orders")


def test_a_file_is_made_locked_and_counted_and_given_back(settings: Settings) -> None:
    path = path_of(settings, "orders")
    with ExitStack() as stack:
        db = take(settings, "orders", stack)
        with pytest.raises(StoreUnavailableError, match="another daemon has it open"):
            lock_store(path)
        assert (path.stat().st_ino, 1) == query(path)

    assert (path.stat().st_ino, 2) == query(path)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.execute("SELECT 1")
    with ExitStack() as stack:
        take(settings, "orders", stack)


def test_a_new_file_is_made_where_it_belongs_with_the_identity_of_the_configuration(
    load: Callable[..., Settings], stack: ExitStack, tmp_path: Path
) -> None:
    settings = load(f'{TEXT}broker_instance = "11111111-1111-4111-8111-111111111111"\n')
    take(settings, "msdb", stack)

    assert bytes.fromhex("11111111111141118111111111111111") == broker_instance(take(settings, "orders", stack))
    assert (tmp_path / "state" / "msdb.db") == path_of(settings, "msdb")
    assert path_of(settings, "msdb").is_file()


def test_a_copy_is_refused_at_its_place_in_the_configuration_with_the_ways_out(
    settings: Settings, stack: ExitStack
) -> None:
    path = used(settings)
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)
    before = path.read_bytes()

    for _ in range(2):  # it is given back at once
        with pytest.raises(SettingError, match="the file is a copy") as caught:
            take(settings, "orders", stack)

    assert ("databases.orders.path", 4) == (caught.value.key, caught.value.span and caught.value.span.line)
    assert "broker database keep orders -c " in caught.value.hint
    assert "broker database reset-identity orders -c " in caught.value.hint
    assert (before, [caught.value]) == (path.read_bytes(), file_errors(settings, NOT_RUNNING))


def test_files_that_can_be_taken_have_no_errors(settings: Settings, tmp_path: Path) -> None:
    assert [] == file_errors(settings, NOT_RUNNING)

    used(settings)
    assert [] == file_errors(settings, NOT_RUNNING)

    path_of(settings, "orders").write_bytes(b"no database")
    (error,) = file_errors(settings, NOT_RUNNING)
    assert ("databases.orders.path", True) == (error.key, error.problem.endswith("is not an SQLite file"))

    path_of(settings, "orders").write_bytes(b"")
    for log in ("-wal", "-shm"):
        Path(f"{path_of(settings, 'orders')}{log}").unlink(missing_ok=True)
    (error,) = file_errors(settings, NOT_RUNNING)
    assert "the file is empty: this instance had a database in this file" in error.problem


@pytest.mark.parametrize(
    ("spoil", "key", "problem"),
    [
        (lambda at: query(path_of(at, "msdb"), AS_COPY), "instance.state_dir", "the file is a copy"),
        (
            lambda at: query(path_of(at, "orders"), "UPDATE broker_database SET schema_version = schema_version + 1"),
            "databases.orders.path",
            f"its schema has version {SCHEMA_VERSION + 1}, this release knows {SCHEMA_VERSION}",
        ),
        (
            lambda at: Path(f"{path_of(at, 'orders')}.other").hardlink_to(path_of(at, "orders")),
            "databases.orders.path",
            "2 names (hard links)",
        ),
        (
            lambda at: (at.instance.state_dir / RECORD).write_text("{"),
            "instance.state_dir",
            "it does not hold what was written into it",
        ),
        (
            lambda at: path_of(at, "orders").rename(Path(f"{path_of(at, 'orders')}-wal")),
            "databases.orders.path",
            "the two belong together",
        ),
    ],
    ids=["copy of msdb", "newer", "two names", "record", "log alone"],
)
def test_what_is_wrong_with_a_file_is_an_error_and_keeps_it_from_being_taken(
    settings: Settings, stack: ExitStack, spoil: Callable[[Settings], object], key: str, problem: str
) -> None:
    used(settings)
    spoil(settings)
    name = "msdb" if key == "instance.state_dir" else "orders"

    errors = file_errors(settings, NOT_RUNNING)
    with pytest.raises((SettingError, StoreUnavailableError)):
        take(settings, name, stack)

    assert {key} == {error.key for error in errors}
    assert all(problem in str(error) for error in errors)
    assert [] == file_warnings(settings)


def test_a_damaged_file_is_told_as_a_store_that_cannot_be_used(settings: Settings, stack: ExitStack) -> None:
    query(used(settings), "ALTER TABLE broker_database DROP COLUMN starts")

    with pytest.raises(StoreUnavailableError, match="no such column: starts"):
        take(settings, "orders", stack)


def test_a_stop_that_cannot_be_noted_does_not_hold_up_the_rest(settings: Settings) -> None:
    path = path_of(settings, "orders")
    with structlog.testing.capture_logs() as logs, ExitStack() as stack:
        take(settings, "msdb", stack)
        take(settings, "orders", stack)
        path.rename(path.with_name("away"))

    assert ["stop not noted"] == [entry["event"] for entry in logs if entry["log_level"] == "warning"]
    assert str(path) == logs[0]["path"]
    lock_store(path_of(settings, "msdb"))


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreUnavailableError, match="Not a directory"):
        make_directory(tmp_path / "file" / "below")


# --- mirrored -----------------------------------------------------------------------------------------------


def mirrored(load: Callable[..., Settings], mirroring: str = '"lock"') -> Settings:
    settings = load(f"{TEXT}mirroring = {mirroring}\n")
    make_directory(settings.instance.state_dir)
    return settings


def test_a_directory_of_shared_storage_is_not_made(load: Callable[..., Settings], stack: ExitStack) -> None:
    settings = load(f'{TEXT.replace("orders.db", "shared/orders.db")}mirroring = "lock"\n')
    make_directory(settings.instance.state_dir)

    with pytest.raises(StoreUnavailableError, match="No such file or directory"):
        take(settings, "orders", stack, least_epoch=0)

    assert not path_of(settings, "orders").parent.exists()


def remove(path: Path) -> None:
    for log in ("", "-wal", "-shm"):
        Path(f"{path}{log}").unlink(missing_ok=True)


def warned(settings: Settings) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
    """What a check warns of before a start of all files, and what the start logs of files that were made anew."""
    before = [(warning.key, warning.problem) for warning in file_warnings(settings)]
    with structlog.testing.capture_logs() as lines:
        used(settings)
    return before, [dict(line) for line in lines if line["event"] == "database made anew"]


def lose(settings: Settings, what: str) -> str:
    """Take the database out of its file; returns the sentence about it."""
    path = used(settings)
    lost = uuid.UUID(bytes=query(path, "SELECT broker_instance FROM broker_database")[0])
    remove(path)
    if what == "empty":
        path.touch()
    elif what != "missing":
        query(path, "CREATE TABLE own (id INTEGER)")
    return f"this instance had a database in this file, of broker instance {show_guid(lost)}, which is no longer in it"


LOSSES = pytest.mark.parametrize("what", ["missing", "empty", "without tables of the broker"])


@LOSSES
def test_a_database_that_is_lost_is_not_replaced_in_silence(settings: Settings, what: str) -> None:
    problem = lose(settings, what)
    path = path_of(settings, "orders")
    before = path.exists() and path.read_bytes()

    with pytest.raises(StoreUnavailableError) as caught:
        used(settings)
    (error,) = file_errors(settings, NOT_RUNNING)

    assert f"the file is {what}: {problem}: put the file or a backup back" in caught.value.problem
    assert "broker database create orders -c " in caught.value.problem
    assert ("databases.orders.path", f"{path}: the file is {what}: {problem}") == (error.key, error.problem)
    assert ([], before) == (file_warnings(settings), path.exists() and path.read_bytes())
    assert forget_lost(path, settings.instance.state_dir)
    assert ([], []) == warned(settings)


@LOSSES
def test_a_database_made_in_place_of_a_lost_one_is_reported_until_it_is_accepted(
    load: Callable[..., Settings], what: str
) -> None:
    settings = load(f"{TEXT}create = true\n")
    problem = lose(settings, what)
    path, state_dir = path_of(settings, "orders"), settings.instance.state_dir

    (warning,) = file_warnings(settings)
    before, [line] = warned(settings)

    assert [("databases.orders.path", f"{path}: the file is {what}: {problem}")] == before
    assert ("warning", "orders", problem) == (line["log_level"], line["database"], line["problem"])
    assert "broker database create orders -c" in str(warning)  # there is nothing that `keep` could accept yet
    assert "broker database keep orders -c" in line["hint"]
    assert [] == file_errors(settings, NOT_RUNNING)
    for _ in range(2):
        assert ([("databases.orders.path", f"{path}: {problem}")], []) == warned(settings)
    assert [True, False] == [accept_replacement(path, state_dir) for _ in range(2)]
    assert ([], []) == warned(settings)


def test_a_database_that_is_new_by_command_is_not_lost(settings: Settings, tmp_path: Path) -> None:
    """The file has another broker instance than the instance knew there, and all that it held is still there."""
    used(settings)
    with closing(sqlite3.connect(path_of(settings, "orders"), isolation_level=None)) as db, writing(db):
        new_broker(db, uuid.uuid4())

    assert ([], []) == warned(settings)


def test_a_database_that_is_refused_is_not_told_as_made_anew(load: Callable[..., Settings]) -> None:
    settings = load(f'{TEXT}create = true\nbroker_instance = "11111111-1111-4111-8111-111111111111"\n')
    remove(used(settings))

    with structlog.testing.capture_logs() as lines, pytest.raises(SettingError, match="or the file was made again"):
        used(settings)

    assert [] == [line for line in lines if line["event"] == "database made anew"]


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_database_with_a_lower_epoch_than_is_told_is_refused_with_the_way_out(
    load: Callable[..., Settings], stack: ExitStack, *, is_beside: bool
) -> None:
    """By what is told beside it, or by what this instance was told; what `keep` does is in the tests of the store."""
    settings = mirrored(load)
    path = used(settings)
    if is_beside:
        write_principal(path, PrincipalRecord(uuid.UUID(bytes=b"i" * 16), 9, "second", 1.0))

    with pytest.raises(SettingError, match="its epoch is 0, and it was taken over in epoch 9") as caught:
        take(settings, "orders", stack, least_epoch=0, reported_epoch=0 if is_beside else 9)

    assert "broker database keep orders" in caught.value.hint


def test_a_takeover_that_cannot_be_told_leaves_the_epoch_as_it_is(load: Callable[..., Settings]) -> None:
    settings = mirrored(load)
    with ExitStack() as stack:
        assert 1 == take(settings, "orders", stack, least_epoch=0).epoch
    role_path(path_of(settings, "orders")).mkdir()

    for _ in range(2):
        with ExitStack() as stack, pytest.raises(StoreUnavailableError, match=r"orders\.db\.role: Is a directory"):
            take(settings, "orders", stack, least_epoch=0)

    role_path(path_of(settings, "orders")).rmdir()
    with ExitStack() as stack:
        assert 2 == take(settings, "orders", stack, least_epoch=0).epoch


@pytest.mark.parametrize(("mirroring", "is_refused"), [('"lock"', True), ('"command"\nrole_command = ["true"]', False)])
def test_a_copy_is_what_a_command_fails_over_to(
    load: Callable[..., Settings], stack: ExitStack, mirroring: str, *, is_refused: bool
) -> None:
    settings = mirrored(load, mirroring)
    query(used(settings), AS_COPY)

    assert is_refused == bool(file_errors(settings, NOT_RUNNING))
    if not is_refused:
        assert 1 == take(settings, "orders", stack, least_epoch=0).epoch


def test_a_file_that_somebody_else_has_is_not_read(load: Callable[..., Settings], stack: ExitStack) -> None:
    settings = mirrored(load)
    path = used(settings)
    query(path, AS_COPY)
    assert (False, 1) == (is_elsewhere(settings, "orders"), len(file_errors(settings, NOT_RUNNING)))

    stack.callback(os.close, lock_store(path))

    assert (True, []) == (is_elsewhere(settings, "orders"), file_errors(settings, NOT_RUNNING))
    assert not is_elsewhere(settings, "msdb")


# --- where files may be ---


STATE = '[instance]\nstate_dir = "state"\n[databases.a]\npath = "a.db"\n'


def placed(settings: Settings) -> list[SettingError]:
    return [error for error in place_errors(settings).values() if error is not None]


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A directory that not even its files may be asked for in, with a state directory in it."""
    directory = tmp_path / "closed"
    (directory / "state").mkdir(parents=True)
    for name in ("msdb.db", "a.db"):
        (directory / "state" / name).touch()
    directory.chmod(0)
    yield directory
    directory.chmod(0o700)


def test_what_the_system_refuses_is_told_once_with_its_key_and_hides_nothing(
    load: Any, tmp_path: Path, closed: Path
) -> None:
    load(
        '[instance]\nstate_dir = "closed/state"\n[databases.a]\npath = "a.db"\n[databases.b]\npath = "/none/b.db"\n'
        '[endpoint]\nlisten = []\n[observe]\nlisten = ""\n[routes]\nfiles = ["none.sql"]\n'
    )
    (tmp_path / "broker.toml").chmod(0o644)

    with as_nobody(tmp_path):
        report = check_files([tmp_path / "broker.toml"], environ={}, owner_of=lambda _: NOT_RUNNING)

    assert [
        f'2:13: instance.state_dir: "{closed}" cannot be written: Permission denied',
        '6:8: databases.b.path: the directory "/none" does not exist',
        f'12:10: routes.files[0]: "{tmp_path}/none.sql" does not exist, or is not a regular file',
    ] == [str(error).split(";")[0].removeprefix(f"{tmp_path}/broker.toml:") for error in report.errors]


def test_all_files_that_a_start_as_another_user_has_left_are_told_at_once(load: Any, tmp_path: Path) -> None:
    """The record may belong to others: it is replaced as a whole, which is a matter of the directory."""
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    left = ["msdb.db", "msdb.db.lock", "databases.json", "databases.json.lock", "a.db-wal", "a.db.lock"]
    for name in (*left, "a.db"):
        (state / name).touch()
        (state / name).chmod(0o666 if name == "a.db" else 0)
    settings = load(STATE)

    with as_nobody(tmp_path):
        told = placed(settings)
    for name in left[1:]:
        (state / name).chmod(0o444 if name == "databases.json" else 0o666)
    with as_nobody(tmp_path):
        [one] = placed(settings)

    names = [", ".join(f'"{state / name}"' for name in part) for part in (left[:4], left[4:])]
    assert [f"{part} may not be read and written" for part in names] == [error.problem for error in told]
    assert {"give them to the user that runs the instance, mode 0600"} == {error.hint for error in told}
    assert ("instance.state_dir", "give it to the user that runs the instance, mode 0600") == (one.key, one.hint)


def test_full_disk_is_told_with_what_to_do(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs_result((4096, 4096, 1 << 20, 4, 4, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)

    [error] = placed(load(STATE))

    assert f'the disk of "{tmp_path}" has 16 KiB left, and 1024 KiB are needed' == error.problem
    assert "free space" in error.hint


def test_a_look_leaves_the_locks_that_the_process_has_on_its_files(load: Any, tmp_path: Path) -> None:
    path = tmp_path / "state" / "a.db"
    path.parent.mkdir()

    def locks() -> list[str]:
        """What the system's table has on it: a POSIX lock goes when its process closes the file once."""
        lines = Path("/proc/locks").read_text().splitlines()
        return [line.partition(":")[2] for line in lines if f":{path.stat().st_ino} " in line]

    with closing(open_store(path)) as db:
        db.execute("SELECT * FROM broker_queue").fetchall()
        held = locks()

        assert [] == placed(load(STATE))

        assert held
        assert held == locks()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_plain_file_is_neither_opened_nor_given_a_lock(load: Any, tmp_path: Path, make: Any) -> None:
    make(tmp_path / "a.db")
    settings = load(STATE.replace("a.db", "../a.db"))

    [error] = placed(settings)
    with pytest.raises(StoreUnavailableError, match="not a plain file") as refused:
        lock_store(tmp_path / "a.db")

    assert error.problem.endswith('a.db" is not a regular file')
    assert store_error(settings, refused.value)[1]
    assert not Path(lock_path(tmp_path / "a.db")).exists()


# --- a running instance ---


@pytest.fixture
def values(load: Any) -> dict[str, object]:
    text = '[instance]\nstate_dir = "state"\n[endpoint]\nlisten = ["127.0.0.1:4022", "0.0.0.0:4023"]\n'
    return {
        one.key: one.value
        for one in in_force(load(f'{text}[admin]\nlisten = "127.0.0.1:9422"\n[databases."a b"]\npath = "a.db"\n'))
    }


@pytest.mark.parametrize(
    ("address", "is_own"),
    [
        ("127.0.0.1:4022", True),
        ("127.0.0.1:4023", True),  # it has all interfaces
        ("127.0.0.1:9422", True),
        ("127.0.0.1:9423", True),  # the default of observe.listen
        ("127.0.0.1:4024", False),
        ("127.0.0.2:4022", False),
        ("127.0.0.1:0", False),
    ],
)
def test_ports_of_the_instance_are_its_own(
    values: dict[str, object], tmp_path: Path, address: str, *, is_own: bool
) -> None:
    assert is_own == owner_from(values, state_dir=tmp_path / "state").has_port(parse_listen(address))


def test_instance_is_known_by_whichever_way_its_directory_is_reached(values: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "state")

    owners = [owner_from(values, state_dir=tmp_path / way) for way in ("link", "state/../state", "none/../state")]

    found = [[owner.has_file(tmp_path / name) for name in ("link/a.db", "state/msdb.db", "b.db")] for owner in owners]
    assert [[True, True, False]] * 3 == found
    assert NOT_RUNNING == owner_from(values, state_dir=tmp_path / "other")
    assert not NOT_RUNNING.has_file(Path("msdb.db"))
    assert UNASKED.has_file(Path("msdb.db"))
