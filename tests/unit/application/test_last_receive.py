"""What was handed out last is known to the next process, and nothing else is taken for it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from broker.client.poison import QUEUES_MAX, RECORD_BYTES, LastReceive, forget_last, read_last, write_last

LAST = LastReceive(2**40, (7, 2**33, 1_750_000_000.25), 100, 3, 1.5, 4)


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "shop.db"
    file.touch(mode=0o640)
    return str(file)


def beside(path: str) -> Path:
    return Path(f"{path}.receives")


def test_what_is_noted_is_known(path: str) -> None:
    other = LastReceive(1, (1, 0, 0.0), 1, 0, 0.0, 0)

    write_last(path, 1, other)
    write_last(path, 2, other)
    write_last(path, 2, LAST)

    assert [None, other, LAST, None] == [read_last(path, number) for number in range(4)]


def test_each_thread_and_each_database_has_its_own_view_of_the_same_files(path: str, tmp_path: Path) -> None:
    second = tmp_path / "second.db"
    second.touch()
    write_last(path, 1, LAST)
    seen: list[LastReceive | None] = []

    def look() -> None:
        seen.extend(read_last(one, 1) for one in (path, str(second), path))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert [LAST, None, LAST] == seen


def test_file_has_the_rights_of_its_database(path: str) -> None:
    before = os.umask(0)
    try:
        write_last(path, 1, LAST)
    finally:
        os.umask(before)

    assert 0o640 == beside(path).stat().st_mode & 0o777


@pytest.mark.parametrize("spoilt", [slice(0, 1), slice(40, 41), slice(52, 56)])
def test_record_that_was_written_by_halves_tells_nothing(path: str, spoilt: slice) -> None:
    write_last(path, 0, LAST)
    data = bytearray(beside(path).read_bytes())
    data[spoilt] = bytes(byte ^ 0xFF for byte in data[spoilt])
    beside(path).write_bytes(data)

    assert read_last(path, 0) is None


def test_file_that_is_cut_off_tells_nothing(path: str) -> None:
    write_last(path, 0, LAST)
    os.truncate(beside(path), 20)

    assert read_last(path, 0) is None


def test_what_is_forgotten_is_not_known(path: str) -> None:
    write_last(path, 1, LAST)

    forget_last(path)

    assert read_last(path, 1) is None


def test_one_queue_is_forgotten_without_the_others(path: str) -> None:
    for number in (1, 2, 3):
        write_last(path, number, LAST)

    forget_last(path, 2)
    forget_last(path, QUEUES_MAX)

    assert [LAST, None, LAST] == [read_last(path, number) for number in (1, 2, 3)]
    assert beside(path).stat().st_size <= 4 * RECORD_BYTES


def test_queues_beyond_the_last_record_do_without(path: str) -> None:
    write_last(path, QUEUES_MAX - 1, LAST)
    write_last(path, QUEUES_MAX, LAST)

    assert [LAST, None] == [read_last(path, number) for number in (QUEUES_MAX - 1, QUEUES_MAX)]
    assert beside(path).stat().st_size <= QUEUES_MAX * RECORD_BYTES


def test_file_that_cannot_be_used_is_done_without(path: str) -> None:
    beside(path).symlink_to("elsewhere")

    write_last(path, 1, LAST)
    forget_last(path)

    assert read_last(path, 1) is None
    assert not beside(path).with_name("elsewhere").exists()


def test_disk_that_fails_is_done_without(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError("no")

    write_last(path, 1, LAST)
    for call in ("pread", "pwrite", "ftruncate"):
        monkeypatch.setattr(os, call, fail)

    write_last(path, 1, LAST)
    forget_last(path)

    assert read_last(path, 1) is None
