"""Whether a directory can be written is found out by writing, and leaves nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from broker.files import ROOM_BYTES, room_problem, write_problem


def test_directory_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    assert write_problem(tmp_path / "a" / "b") is None
    assert [] == list(tmp_path.iterdir())


def test_file_in_the_way_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")

    assert f'"{tmp_path / "a"}" is no directory' == write_problem(tmp_path / "a" / "b")


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
