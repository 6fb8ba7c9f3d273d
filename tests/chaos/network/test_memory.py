"""A host that takes more memory than it may has a process killed, and that is counted."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.chaos.network.host import Host
from tests.chaos.network.namespaces import NamespaceNetwork

LIMIT = 24 << 20
TAKE = "import sys; sys.stdin.readline(); taken = bytearray(64 << 20); taken[::4096] = taken[::4096]; print('had it')"


def start(host: Host) -> subprocess.Popen[bytes]:
    return host.popen([sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_limit_kills_who_takes_more_and_nobody_elsewhere(net: NamespaceNetwork) -> None:
    greedy, other = start(net.hosts["near"]), start(net.hosts["far"])

    before = net.hosts["near"].memory.is_limited
    net.hosts["near"].memory.limit(LIMIT)
    assert (False, True) == (before, net.hosts["near"].memory.is_limited)
    greedy.communicate(b"\n", 20)
    told, _ = other.communicate(b"\n", 20)

    assert -signal.SIGKILL == greedy.returncode
    assert (0, b"had it\n") == (other.returncode, told)
    assert (1, 0) == (net.hosts["near"].memory.kills, net.hosts["far"].memory.kills)
    assert net.hosts["near"].memory.used < LIMIT


def test_a_limit_that_is_lifted_kills_nobody(net: NamespaceNetwork) -> None:
    memory = net.hosts["far"].memory
    memory.limit(LIMIT)
    process = start(net.hosts["far"])

    memory.limit(None)
    assert not memory.is_limited
    told, _ = process.communicate(b"\n", 20)

    assert (0, b"had it\n", 0) == (process.returncode, told, memory.kills)
