"""Where the files of the databases are: what keeps them from being used there is told, and nothing raised."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.catalog.check import check_files
from broker.catalog.database_files import out_of_reach, place_errors
from broker.catalog.diagnostics import store_error
from broker.errors import StoreUnavailableError
from broker.store.sqlite.database import lock_path, lock_store, open_store
from tests.support.nobody import as_nobody

TEXT = '[instance]\nstate_dir = "closed/state"\n[databases.a]\npath = "a.db"\n[databases.b]\npath = "/none/b.db"\n'
QUIET = '[endpoint]\nlisten = []\n[observe]\nlisten = ""\n'


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
    load(TEXT + QUIET + '[routes]\nfiles = ["none.sql"]\n')
    (tmp_path / "broker.toml").chmod(0o644)

    with as_nobody(tmp_path):
        report = check_files([tmp_path / "broker.toml"], environ={})

    assert [
        f'{tmp_path}/broker.toml:2:13: instance.state_dir: "{closed}" cannot be written: Permission denied',
        f'{tmp_path}/broker.toml:6:8: databases.b.path: the directory "/none" does not exist',
        f'{tmp_path}/broker.toml:12:10: routes.files[0]: "{tmp_path}/none.sql" does not exist, or is no plain file',
    ] == [str(error).split(";")[0] for error in report.errors]


def test_files_in_a_state_directory_that_cannot_be_used_are_not_told_of(load: Any, tmp_path: Path) -> None:
    (tmp_path / "closed").touch()
    settings = load(TEXT)

    told = place_errors(settings)

    assert ["msdb", "b"] == list(told)
    assert {"msdb", "a"} == out_of_reach(settings, told)


def test_file_of_others_is_told_with_what_to_do(load: Any, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    (tmp_path / "state" / "msdb.db").touch()
    (tmp_path / "state" / "msdb.db").chmod(0)
    settings = load('[instance]\nstate_dir = "state"\n')

    with as_nobody(tmp_path):
        [error] = place_errors(settings).values()

    assert ("instance.state_dir", "give it to the user that runs the instance, mode 0600") == (error.key, error.hint)
    assert error.problem.endswith('msdb.db" may not be read and written')


def test_all_files_that_a_start_as_another_user_has_left_are_told_at_once(load: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    left = ["msdb.db", "msdb.db.lock", "databases.json", "databases.json.lock", "a.db-wal", "a.db.lock"]
    for name in (*left, "a.db"):
        (state / name).touch()
        (state / name).chmod(0o666 if name == "a.db" else 0)
    settings = load('[instance]\nstate_dir = "state"\n[databases.a]\npath = "a.db"\n')

    with as_nobody(tmp_path):
        told = place_errors(settings)

    names = [", ".join(f'"{state / name}"' for name in part) for part in (left[:4], left[4:])]
    assert [f"{part} may not be read and written" for part in names] == [one.problem for one in told.values()]
    assert {"give them to the user that runs the instance, mode 0600"} == {one.hint for one in told.values()}


def test_record_of_others_that_may_be_read_is_no_problem(load: Any, tmp_path: Path) -> None:
    """It is replaced as a whole, which is a matter of the directory."""
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    for name, mode in (("msdb.db", 0o666), ("databases.json", 0o444)):
        (state / name).touch()
        (state / name).chmod(mode)
    settings = load('[instance]\nstate_dir = "state"\n')

    with as_nobody(tmp_path):
        told = place_errors(settings)

    assert {} == told


def test_full_disk_is_told_with_what_to_do(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs_result((4096, 4096, 1 << 20, 4, 4, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    settings = load('[instance]\nstate_dir = "state"\n[databases.a]\npath = "a.db"\n')

    [error] = place_errors(settings).values()

    assert (f'the disk of "{tmp_path}" has 16 KiB left, and 1024 KiB are needed', True) == (
        error.problem,
        "make room" in error.hint,
    )


def test_a_look_leaves_the_locks_that_the_process_has_on_its_files(load: Any, tmp_path: Path) -> None:
    path = tmp_path / "state" / "a.db"
    path.parent.mkdir()
    with closing(open_store(path)) as db:
        db.execute("SELECT * FROM broker_queue").fetchall()
        held = _locks_of(path)

        assert {} == place_errors(load('[instance]\nstate_dir = "state"\n[databases.a]\npath = "a.db"\n'))

        assert held
        assert held == _locks_of(path)


def _locks_of(path: Path) -> list[str]:
    """What the system's table of locks has on a file: a POSIX lock goes when its process closes the file once."""
    inode = path.stat().st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return [line.partition(":")[2] for line in lines if f":{inode} " in line]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_plain_file_is_neither_opened_nor_given_a_lock(load: Any, tmp_path: Path, make: Any) -> None:
    make(tmp_path / "a.db")
    settings = load('[instance]\nstate_dir = "state"\n[databases.a]\npath = "../a.db"\n')

    [error] = place_errors(settings).values()
    with pytest.raises(StoreUnavailableError, match="no plain file") as refused:
        lock_store(tmp_path / "a.db")

    assert error.problem.endswith('a.db" is no plain file')
    assert store_error(settings, refused.value)[1]
    assert not Path(lock_path(tmp_path / "a.db")).exists()
