"""Nothing of a network outlives its harness, however that died; living networks are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo.topology import wait_for
from tests.chaos.network.memory import groups
from tests.chaos.network.namespaces import NamespaceNetwork
from tests.chaos.network.removal import emptied, is_running, mounts, namespaces, processes, remove_dead
from tests.chaos.network.tag import find_tag

ROOT = Path(__file__).parents[3]
SECONDS = 20.0
# Tells the numbers of its switch process and of a process on its host, and waits for its death.
HARNESS = """
import sys
from pathlib import Path
from tests.chaos.network.namespaces import NamespaceNetwork

net = NamespaceNetwork(Path(sys.argv[1]), seed=1)
host = net.host("lonely", disk_bytes=1 << 20)
print(host.parts.namespace.name, net.switch_pid, host.popen(["sleep", "1000"]).pid, flush=True)
input()
"""


def left_of(tag: str) -> list[object]:
    return [*namespaces(tag), *mounts(tag), *groups(tag), *processes(tag)]


@pytest.mark.parametrize("is_switch_killed", [False, True], ids=["harness killed", "switch killed as well"])
def test_a_killed_harness_leaves_nothing_behind(
    tmp_path: Path, network: NamespaceNetwork, *, is_switch_killed: bool
) -> None:
    command = [sys.executable, "-c", HARNESS, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        name, switch, sleeper = harness.stdout.readline().split()
        tag = find_tag(name)
        had = len(left_of(tag))
        if is_switch_killed:
            os.kill(int(switch), signal.SIGKILL)
        harness.kill()

    if is_switch_killed:
        assert left_of(tag)
        remove_dead()
    wait_for(lambda: not left_of(tag), seconds=SECONDS, what=f"the end of {tag}")

    assert had >= 5  # two namespaces, a mount, two processes, and a group where there are groups
    assert not is_running(int(sleeper))


def test_a_living_network_is_left_alone(network: NamespaceNetwork) -> None:
    namespace = network.hosts["near"].parts.namespace
    assert namespace is not None

    remove_dead()

    assert namespace.exists()
    network.cut(network.hosts["near"], network.hosts["far"])
    network.mend_all()


def test_a_group_that_a_process_is_only_just_leaving_goes_as_well(network: NamespaceNetwork) -> None:
    made = groups("")
    if not made:
        pytest.skip("no control groups here")
    group = made[0].with_name(f"ending-{os.getpid()}")
    group.mkdir()

    with subprocess.Popen(["sleep", "0.3"]) as ending:
        (group / "cgroup.procs").write_text(str(ending.pid))
        troubles = list(emptied(group))

    assert [] == troubles
    assert not group.exists()


def test_a_mount_with_a_blank_in_its_name_is_found(tmp_path: Path, network: NamespaceNetwork) -> None:
    (tmp_path / "a blank").mkdir()
    with NamespaceNetwork(tmp_path / "a blank", seed=1) as net:
        directory = net.host("small", disk_bytes=1 << 20).directory

        assert directory in {where for _, where in mounts("")}

    assert directory not in {where for _, where in mounts("")}
