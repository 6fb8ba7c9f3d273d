"""A small disk is full when it is told to, and has room again when it is told to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.chaos.network.namespaces import NamespaceNetwork
from tests.chaos.network.removal import mounts

SIZE = 1 << 20
PAGE = 4096


@pytest.fixture
def small(net: NamespaceNetwork) -> Path:
    host = net.hosts.get("small") or net.host("small", disk_bytes=SIZE)
    host.disk.free()
    return host.directory


def test_a_full_disk_refuses_writes_until_it_is_freed(net: NamespaceNetwork, small: Path) -> None:
    disk = net.hosts["small"].disk

    disk.fill()

    assert 0 == disk.free_bytes
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (small / "file").write_bytes(b"x")
    disk.free()
    assert PAGE == (small / "file").write_bytes(b"x" * PAGE)


def test_some_room_can_be_left(net: NamespaceNetwork, small: Path) -> None:
    disk = net.hosts["small"].disk

    disk.fill(leave=10 * PAGE)

    assert 10 * PAGE == disk.free_bytes


def test_a_disk_is_filled_again_when_something_has_gone(net: NamespaceNetwork, small: Path) -> None:
    disk = net.hosts["small"].disk
    (small / "log").write_bytes(bytes(100 * PAGE))
    disk.fill()
    (small / "log").unlink()
    free = disk.free_bytes

    disk.fill()

    assert (100 * PAGE, 0) == (free, disk.free_bytes)


def test_the_disk_goes_with_its_network(tmp_path: Path, network: NamespaceNetwork) -> None:
    with NamespaceNetwork(tmp_path, seed=1) as net:
        directory = net.host("small", disk_bytes=SIZE).directory
        was_there = directory in {where for _, where in mounts("")}

    assert was_there
    assert directory not in {where for _, where in mounts("")}
