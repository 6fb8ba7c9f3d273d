"""
Who is at the other end of a Unix socket, as the system says: it cannot be forged, and needs no password.

The numbers are those of the process that connected, at the moment when it did.

Source: socket(7) and unix(7) of Linux, SO_PEERCRED, SO_PEERGROUPS.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_SO_PEERGROUPS = 59  # Linux 4.13; the module `socket` does not name it
_CREDENTIALS = struct.Struct("3i")
_GROUPS_MAX_BYTES = 1024  # the largest answer that the module `socket` takes: 256 groups
_GROUP_BYTES = 4


@dataclass(frozen=True, slots=True)
class SocketPeer:
    """A process. Shape: `groups` all of them, the first one included."""

    pid: int
    uid: int
    groups: frozenset[int]


def peer_of(descriptor: int) -> SocketPeer:
    """
    The process at the other end of a connected Unix socket.

    Raises:
        OSError: it is no such socket.
    """
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return SocketPeer(pid, uid, frozenset({gid, *_groups(sock, uid, gid)}))


def _groups(sock: socket.socket, uid: int, gid: int) -> Sequence[int]:
    """The supplementary groups; of somebody with very many those that the machine's list of groups gives the user."""
    try:
        data = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_MAX_BYTES)
    except OSError as error:
        if error.errno == errno.ERANGE:
            return _listed(uid, gid)
        if error.errno == errno.ENOPROTOOPT:
            return ()
        raise
    return struct.unpack(f"{len(data) // _GROUP_BYTES}I", data)


def _listed(uid: int, gid: int) -> Sequence[int]:
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return ()
