"""What belongs on a disk that is not mounted is not written beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.files import mount_problem


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
