from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker.admin.audit_file import AuditFile, AuditUnavailableError, aside


def _file(tmp_path: Path, *, size: int = 1 << 20, keep: int = 2) -> AuditFile:
    return AuditFile(tmp_path / "audit.jsonl", size, keep)


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_added_at_the_end_of_a_file_for_its_owner(tmp_path: Path) -> None:
    file = _file(tmp_path)

    file.append([{"a": 1}])
    file.append([{"a": 2}, {"a": 3}])

    assert [{"a": 1}, {"a": 2}, {"a": 3}] == _lines(file.path)
    assert 0o600 == stat.S_IMODE(file.path.stat().st_mode)


def test_a_line_stays_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    file = _file(tmp_path)

    file.append([{"name": 'a\nb\u2028\x00"ü'}])

    assert [{"name": 'a\nb\u2028\x00"ü'}] == _lines(file.path)
    assert 1 == file.path.read_bytes().count(b"\n")


def test_a_full_file_is_put_aside_and_so_many_are_kept(tmp_path: Path) -> None:
    file = _file(tmp_path, size=20, keep=2)

    for number in range(5):
        file.append([{"number": number}])  # 14 bytes each

    kept = [_lines(path) for path in (file.path, aside(file.path, 1), aside(file.path, 2))]
    assert [[{"number": 4}], [{"number": 3}], [{"number": 2}]] == kept
    assert 3 == len(list(tmp_path.iterdir()))


def test_with_nothing_to_keep_a_full_file_goes(tmp_path: Path) -> None:
    file = _file(tmp_path, size=20, keep=0)

    for number in range(3):
        file.append([{"number": number}])

    assert [file.path] == list(tmp_path.iterdir())
    assert [{"number": 2}] == _lines(file.path)


def test_lines_above_the_size_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    file = _file(tmp_path, size=20)

    file.append([{"number": number} for number in range(5)])

    assert 5 == len(_lines(file.path))


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    """As logrotate does."""
    file = _file(tmp_path)
    file.append([{"a": 1}])
    file.path.rename(tmp_path / "moved")

    file.append([{"a": 2}])

    assert [{"a": 2}] == _lines(file.path)


def test_a_full_disk_is_told_and_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _file(tmp_path)
    file.append([{"a": 1}])
    write = os.write
    left = iter((3, 0))

    def full(descriptor: int, data: bytes) -> int:
        if not (room := next(left)):
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:room])

    monkeypatch.setattr("os.write", full)
    with pytest.raises(AuditUnavailableError, match="No space left on device; nothing is changed as long as"):
        file.append([{"a": 2}])

    assert [{"a": 1}] == _lines(file.path)


@pytest.mark.parametrize("kind", ["directory", "link", "pipe", "missing"])
def test_what_is_no_plain_file_is_not_written(tmp_path: Path, kind: str) -> None:
    file = _file(tmp_path / kind)
    if kind != "missing":
        file.path.parent.mkdir()
    match kind:
        case "directory":
            file.path.mkdir()
        case "link":
            file.path.symlink_to(tmp_path / "elsewhere")
        case "pipe":
            os.mkfifo(file.path)

    with pytest.raises(AuditUnavailableError, match=str(file.path)):
        file.append([{"a": 1}])


def test_writers_at_once_lose_nothing_while_files_are_put_aside(tmp_path: Path) -> None:
    file = _file(tmp_path, size=500, keep=100)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: file.append([{"number": number}]), range(200)))

    found = sorted(line["number"] for path in tmp_path.iterdir() for line in _lines(path))
    assert list(range(200)) == found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files that others cannot write")
def test_what_root_makes_belongs_to_whom_the_directory_does(tmp_path: Path) -> None:
    """A command as root beside an instance that runs as somebody else."""
    os.chown(tmp_path, 4711, 4712)
    file = _file(tmp_path, size=20)

    for number in range(2):
        file.append([{"number": number}])  # the second one after the first was put aside

    found = [(one.stat().st_uid, one.stat().st_gid) for one in tmp_path.iterdir()]
    assert [(4711, 4712)] * 2 == found


def test_a_file_that_could_be_made_has_no_problem_and_is_not_made(tmp_path: Path) -> None:
    file = _file(tmp_path)

    assert ("", []) == (file.problem(), list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.symlink_to("elsewhere"), "Too many levels of symbolic links"),
        (lambda path: path.parent.rmdir(), "there is no directory"),
    ],
    ids=["directory", "link", "nowhere"],
)
def test_what_keeps_lines_from_being_added_is_told(tmp_path: Path, make: Any, problem: str) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    file = _file(directory)

    make(file.path)

    assert problem in file.problem()
