from __future__ import annotations

import os
import socket

import pytest

from broker.admin.auth import peer_of


def test_the_process_at_the_other_end_is_told_with_its_user_and_groups() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        peer = peer_of(here.fileno())

    assert (os.getpid(), os.geteuid()) == (peer.pid, peer.uid)
    assert frozenset({os.getegid(), *os.getgroups()}) == peer.groups


def test_the_socket_itself_is_left_as_it_was() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        peer_of(here.fileno())
        there.sendall(b"x")

        assert b"x" == here.recv(1)


def test_a_file_is_no_socket() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="socket"):
            peer_of(reading)
    finally:
        os.close(reading)
        os.close(writing)
