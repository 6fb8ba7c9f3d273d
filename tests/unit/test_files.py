"""What belongs on a disk that is not mounted is not written beside it."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.files import (
    ROOM_BYTES,
    changing,
    check_record,
    mount_problem,
    room_problem,
    socket_problem,
    write_problem,
    write_record,
)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    found = Path(os.path.realpath(tmp_path)) / "my disk"
    found.mkdir()
    return found


def problem(tmp_path: Path, path: Path, *, fstab: str, mounted: str) -> str | None:
    (tmp_path / "fstab").write_text(fstab)
    (tmp_path / "mountinfo").write_text(mounted)
    return mount_problem(path, fstab=tmp_path / "fstab", mountinfo=tmp_path / "mountinfo")


def fstab(point: Path) -> str:
    escaped = str(point).replace(" ", "\\040")
    disks = f"/dev/sdb1 {escaped} ext4 noauto 0 2\n/dev/sdc none swap sw 0 0\n"
    return f"# what to mount\n\nUUID=1 / ext4 defaults 0 1\n{disks}"


def mountinfo(*points: Path) -> str:
    escaped = [str(point).replace(" ", "\\040") for point in points]
    return "".join(f"36 35 98:0 / {point} rw,noatime - ext4 /dev/x rw\n" for point in escaped)


@pytest.mark.parametrize("below", ["", "state", "deep/er/state"])
def test_path_below_a_mount_point_that_is_empty_is_told(tmp_path: Path, disk: Path, below: str) -> None:
    found = problem(tmp_path, disk / below, fstab=fstab(disk), mounted=mountinfo(Path("/")))

    expected = f'"{disk}" is not mounted, as {tmp_path}/fstab says it should be, and "{disk / below}" is below it'
    assert expected == found


def test_symbolic_link_to_such_a_place_is_told(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "link").symlink_to(disk)

    found = problem(tmp_path, tmp_path / "link" / "state", fstab=fstab(disk), mounted=mountinfo(Path("/")))

    assert found is not None


def test_mounted_disk_is_fine(tmp_path: Path, disk: Path) -> None:
    mounted = mountinfo(Path("/"), disk)

    assert problem(tmp_path, disk / "state", fstab=fstab(disk), mounted=mounted) is None


@pytest.mark.parametrize("text", ["", "garbage\n", "# /dev/sdb1 /\n"])
def test_table_that_tells_nothing_is_no_reason_to_refuse(tmp_path: Path, disk: Path, text: str) -> None:
    assert problem(tmp_path, disk, fstab=text, mounted=mountinfo(Path("/"))) is None
    assert problem(tmp_path, disk, fstab=fstab(disk), mounted="") is None


def test_place_beside_the_mount_point_is_fine(tmp_path: Path, disk: Path) -> None:
    beside = disk.with_name("my disk 2")

    assert problem(tmp_path, beside, fstab=fstab(disk), mounted=mountinfo(Path("/"))) is None


def test_system_without_the_tables_is_no_reason_to_refuse(tmp_path: Path) -> None:
    assert mount_problem(tmp_path, fstab=tmp_path / "none", mountinfo=tmp_path / "none") is None


# --- test_socket_place ---
# What is in the way of the admin socket, and what is not.


def listening(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_free_place_is_fine(tmp_path: Path) -> None:
    assert socket_problem(tmp_path / "a.sock") is None


def test_directory_has_to_be_there(tmp_path: Path) -> None:
    assert f'the directory "{tmp_path}/run" does not exist' == socket_problem(tmp_path / "run" / "a.sock")


def test_file_below_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").touch()

    assert "Not a directory" == socket_problem(tmp_path / "run" / "a.sock")


def test_other_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.sock").touch()

    assert "the file exists and is not a socket" == socket_problem(tmp_path / "a.sock")


def test_socket_on_which_somebody_answers_is_taken(tmp_path: Path) -> None:
    with closing(listening(tmp_path / "a.sock")):
        assert "another instance answers there" == socket_problem(tmp_path / "a.sock")


def test_socket_of_a_dead_process_is_fine_and_stays(tmp_path: Path) -> None:
    listening(tmp_path / "a.sock").close()

    assert (None, True) == (socket_problem(tmp_path / "a.sock"), (tmp_path / "a.sock").exists())


# --- test_writable ---
# Whether a directory can be written is found out by writing, and leaves nothing.


def test_directory_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    assert write_problem(tmp_path / "a" / "b") is None
    assert [] == list(tmp_path.iterdir())


def test_file_in_the_way_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")

    assert f'"{tmp_path / "a"}" is not a directory' == write_problem(tmp_path / "a" / "b")


def test_directory_that_refuses_a_file_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)

    assert f'"{tmp_path}" cannot be written: No space left on device' == write_problem(tmp_path)


def test_file_system_that_makes_no_nameless_files_is_written_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, asked = os.open, []

    def open_named(path: str, flags: int, *how: int, **more: int) -> int:
        asked.append(path)
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return plain(path, flags, *how, **more)

    monkeypatch.setattr(os, "open", open_named)

    assert write_problem(tmp_path) is None
    assert tmp_path in {Path(path).parent for path in asked}
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(("free", "is_told"), [(ROOM_BYTES - 4096, True), (ROOM_BYTES, False)])
def test_disk_without_room_for_a_database_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, *, is_told: bool
) -> None:
    disk = os.statvfs_result((4096, 4096, 1 << 20, free // 4096, free // 4096, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)

    told = f'the disk of "{tmp_path}" has 1020 KiB left, and 1024 KiB are needed'
    assert (told if is_told else None) == room_problem(tmp_path / "a" / "b")


def test_file_system_that_tells_nothing_is_not_full() -> None:
    assert room_problem(Path("/proc")) is None


# --- test_record ---
# A record is replaced as a whole, or stays as it was.


def test_what_is_written_is_there_and_nothing_beside_it(tmp_path: Path) -> None:
    for number in (1, 2):
        write_record(tmp_path / "a.json", {"number": number})

    assert {"number": 2} == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [lambda file: write_record(file, {}), check_record])
def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "a.json").mkdir()

    with pytest.raises(StoreUnavailableError, match="Is a directory") as caught:
        write(tmp_path / "a.json")

    assert str(tmp_path / "a.json") == caught.value.path
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())


def test_what_is_no_json_leaves_what_was_written_before_and_nothing_beside_it(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", {"number": 1})

    with pytest.raises(TypeError):
        write_record(tmp_path / "a.json", {"number": object()})

    assert {"number": 1} == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())


def test_seeing_that_it_can_be_written_changes_nothing(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", {"number": 1})

    check_record(tmp_path / "a.json")

    assert {"number": 1} == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.json.lock").mkdir()

    with pytest.raises(StoreUnavailableError, match="Is a directory"), changing(tmp_path / "a.json"):
        pytest.fail("nobody may change it")


def test_a_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    for write in (lambda file: write_record(file, {}), check_record):
        with pytest.raises(StoreUnavailableError, match="No such file or directory"):
            write(tmp_path / "gone" / "a.json")
