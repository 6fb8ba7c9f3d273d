"""Processes of hosts are their commands' own, and end with the network; names and parts are checked."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.network.impairment import ImpossibleError
from tests.chaos.network.namespaces import NamespaceNetwork
from tests.chaos.network.removal import is_running

TELL = "import os, resource, sys; print(os.getpid(), *resource.getrlimit(resource.RLIMIT_NOFILE), flush=True); input()"


def test_signals_reach_the_command_itself(net: NamespaceNetwork) -> None:
    process = net.hosts["near"].popen(
        [sys.executable, "-c", TELL], descriptors=123, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        pid, soft, hard = map(int, process.stdout.readline().split())

        process.send_signal(signal.SIGTERM)

        assert process.pid == pid
        assert -signal.SIGTERM == process.wait(20)
        assert (123, True) == (soft, hard > 123)


def test_the_end_of_the_network_is_the_end_of_its_processes(tmp_path: Path, network: NamespaceNetwork) -> None:
    with NamespaceNetwork(tmp_path, seed=1) as net:
        host = net.host("near")
        assert host.parts.namespace is not None
        known = host.popen(["sleep", "1000"])
        other = subprocess.Popen(
            [*host.words(), "sh", "-c", "sleep 1000 & echo $!; exec sleep 1000"], stdout=subprocess.PIPE
        )
        assert other.stdout is not None
        with other.stdout:
            orphan = int(other.stdout.readline())

    assert -signal.SIGKILL == known.returncode
    assert -signal.SIGKILL == other.wait(20)
    assert not is_running(orphan)
    assert not host.parts.namespace.exists()


@pytest.mark.parametrize("name", ["near", "", "Capital", "with blank", "../up", "-first"])
def test_a_name_that_is_taken_or_none_is_refused(net: NamespaceNetwork, name: str) -> None:
    with pytest.raises(ValueError, match="is taken, or no name"):
        net.host(name)


def test_parts_that_were_not_asked_for_are_not_there(net: NamespaceNetwork) -> None:
    with pytest.raises(ImpossibleError, match="near has no disk"):
        _ = net.hosts["near"].disk
    with pytest.raises(ImpossibleError, match="near has no clock"):
        _ = net.hosts["near"].clock
