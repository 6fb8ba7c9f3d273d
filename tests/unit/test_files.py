"""Mounts, the place of a socket, whether a directory can be written, and records that are replaced whole."""

import errno
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


def test_path_below_a_mount_point_that_is_empty_is_told(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "link").symlink_to(disk)
    root = mountinfo(Path("/"))

    for below in ("", "state", "deep/er/state"):
        found = problem(tmp_path, disk / below, fstab=fstab(disk), mounted=root)
        place = f'"{disk}" is not mounted, as {tmp_path}/fstab says it should be, and "{disk / below}" is below it'
        assert place == found
    assert problem(tmp_path, tmp_path / "link" / "state", fstab=fstab(disk), mounted=root) is not None


def test_mounted_disk_another_place_and_tables_that_tell_nothing_are_fine(tmp_path: Path, disk: Path) -> None:
    root = mountinfo(Path("/"))

    assert problem(tmp_path, disk / "state", fstab=fstab(disk), mounted=mountinfo(Path("/"), disk)) is None
    assert problem(tmp_path, disk.with_name("my disk 2"), fstab=fstab(disk), mounted=root) is None
    for text in ("", "garbage\n", "# /dev/sdb1 /\n"):
        assert problem(tmp_path, disk, fstab=text, mounted=root) is None
    assert problem(tmp_path, disk, fstab=fstab(disk), mounted="") is None
    assert mount_problem(tmp_path, fstab=tmp_path / "none", mountinfo=tmp_path / "none") is None


def listening(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_what_is_in_the_way_of_a_socket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    listening(tmp_path / "dead.sock").close()
    with closing(listening(tmp_path / "live.sock")):
        problems = {
            name: socket_problem(tmp_path / name)
            for name in ("a.sock", "run/a.sock", "file/a.sock", "file", "live.sock", "dead.sock")
        }

    assert {
        "a.sock": None,
        "run/a.sock": f'the directory "{tmp_path}/run" does not exist',
        "file/a.sock": "Not a directory",
        "file": "the file exists and is not a socket",
        "live.sock": "another instance answers there",
        "dead.sock": None,
    } == problems
    assert (tmp_path / "dead.sock").exists()


def test_directory_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    assert write_problem(tmp_path / "a" / "b") is None
    assert [] == list(tmp_path.iterdir())
    (tmp_path / "a").write_text("")
    assert f'"{tmp_path / "a"}" is not a directory' == write_problem(tmp_path / "a" / "b")


@pytest.mark.parametrize(
    ("code", "why"), [(errno.ENOSPC, "No space left on device"), (errno.ENOENT, "no file can be made there")]
)
def test_directory_that_refuses_a_file_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, why: str
) -> None:
    """Below /proc nothing can be made: the kernel answers that it is not there."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)

    assert f'"{tmp_path}" cannot be written: {why}' == write_problem(tmp_path)


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


def test_what_is_written_is_there_whole_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for number in (1, 2):
        write_record(file, {"number": number})
    check_record(file)
    with pytest.raises(TypeError):
        write_record(file, {"number": object()})

    assert {"number": 2} == json.loads(file.read_text(encoding="utf-8"))
    assert [file] == list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [lambda file: write_record(file, {}), check_record])
def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "a.json").mkdir()

    with pytest.raises(StoreUnavailableError, match="Is a directory") as caught:
        write(tmp_path / "a.json")

    assert str(tmp_path / "a.json") == caught.value.path
    with pytest.raises(StoreUnavailableError, match="No such file or directory"):
        write(tmp_path / "gone" / "a.json")
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.json.lock").mkdir()

    with pytest.raises(StoreUnavailableError, match="Is a directory"), changing(tmp_path / "a.json"):
        pytest.fail("nobody may change it")
