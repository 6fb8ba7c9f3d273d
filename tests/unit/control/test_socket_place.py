"""What is in the way of the admin socket, and what is not."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

from broker.files import socket_problem


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

    assert "the file exists and is no socket" == socket_problem(tmp_path / "a.sock")


def test_socket_on_which_somebody_answers_is_taken(tmp_path: Path) -> None:
    with closing(listening(tmp_path / "a.sock")):
        assert "another instance answers there" == socket_problem(tmp_path / "a.sock")


def test_socket_of_a_dead_process_is_fine_and_stays(tmp_path: Path) -> None:
    listening(tmp_path / "a.sock").close()

    assert (None, True) == (socket_problem(tmp_path / "a.sock"), (tmp_path / "a.sock").exists())
