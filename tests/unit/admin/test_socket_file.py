from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from broker.admin.server import SocketFile
from broker.errors import ListenFailedError


def test_only_its_owner_may_use_the_file(tmp_path: Path) -> None:
    file = SocketFile(tmp_path / "admin.sock")

    mode = stat.S_IMODE((tmp_path / "admin.sock").stat().st_mode)

    file.close()
    assert mode == 0o600


def test_somebody_can_connect_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    file = SocketFile(path)

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    file.close()

    assert not path.exists()


def test_file_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    file = SocketFile(path)

    with socket.socket(socket.AF_UNIX) as client:
        assert 0 == client.connect_ex(str(path))
    file.close()


def test_file_on_which_somebody_answers_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    first = SocketFile(path)

    with pytest.raises(ListenFailedError) as caught:
        SocketFile(path)

    assert path.exists()
    assert str(caught.value) == f"cannot listen on {path}: another instance answers there"
    first.close()


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    path.write_text("precious")

    with pytest.raises(ListenFailedError, match="the file exists and is no socket"):
        SocketFile(path)

    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "problem"), [("absent/admin.sock", "does not exist"), ("a" * 120, "AF_UNIX path too long")]
)
def test_file_that_cannot_be_made_is_told(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(ListenFailedError, match=problem):
        SocketFile(tmp_path / name)


def test_file_that_somebody_else_made_meanwhile_stays(tmp_path: Path) -> None:
    """An instance that stops does not take away the socket of the one that follows it."""
    path = tmp_path / "admin.sock"
    first = SocketFile(path)
    path.rename(tmp_path / "old.sock")
    second = SocketFile(path)

    first.close()

    assert path.exists()
    second.close()


def test_file_that_is_gone_already_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    file = SocketFile(path)
    path.unlink()

    file.close()

    assert file.sock.fileno() == -1


def test_a_group_that_is_named_may_use_the_file_as_well(tmp_path: Path) -> None:
    group = min(os.getgroups() or [os.getegid()])
    file = SocketFile(tmp_path / "admin.sock", group=group)

    status = (tmp_path / "admin.sock").stat()

    file.close()
    assert (0o660, group) == (stat.S_IMODE(status.st_mode), status.st_gid)


def test_a_group_that_may_not_be_named_is_told_and_no_file_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.chown", refuse)

    with pytest.raises(ListenFailedError, match="Operation not permitted"):
        SocketFile(tmp_path / "admin.sock", group=4711)
