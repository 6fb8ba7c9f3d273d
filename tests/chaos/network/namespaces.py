"""
Hosts that are network namespaces, on a bridge of the kernel in a namespace of its own; and which kind a machine allows.

    host "gateway": eth0 10.66.0.1 --- port1 |        |
                                             | bridge |
    host "billing": eth0 10.66.0.2 --- port2 |        |
                                     relay (TAP) <-> the switch process

A way without an impairment is the kernel's alone. For an impaired one a filter at the port of its source sends the
packets for its destination to the TAP device instead, so that a way is changed while connections go on. ARP is not
touched: a cut is silence, as between hosts of different networks, and not "no route to host".
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from tests.chaos.network.host import Clock, Disk, Host, Memory
from tests.chaos.network.impairment import WHOLE, Counts, Fault, Impairment, ImpossibleError, NetworkError
from tests.chaos.network.loopback import LoopbackNetwork
from tests.chaos.network.network import Network
from tests.chaos.network.removal import NAMESPACES, new_tag, remove, remove_dead, run
from tests.chaos.network.switch import DEVICE

ROOT = Path(__file__).parents[3]
TOOLS = ("ip", "tc", "bridge", "ss", "nsenter", "mount", "umount")
BRIDGE = "bridge0"
CLOSING_SECONDS = 60.0


class NamespaceNetwork(Network):
    """Impairments may be changed from any thread; hosts are made by one."""

    kind = "namespaces"

    def __init__(self, directory: Path, *, seed: int) -> None:
        """
        Raises:
            NetworkError: this machine does not allow it; says what failed.
        """
        super().__init__(directory)
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if os.geteuid() != 0 or missing:
            raise NetworkError(f"not there: {', '.join(missing)}" if missing else "only root may make namespaces")
        with contextlib.suppress(NetworkError):  # what will not go is not in the way: every name is new
            remove_dead()
        self._tag = new_tag()
        self._diverted: dict[tuple[str, str], Impairment] = {}
        self._lock = threading.Lock()
        self._has_memory = _has_memory(self._tag)
        try:
            run("ip", "netns", "add", self._tag)
            run("ip", "-n", self._tag, "link", "add", "name", BRIDGE, "type", "bridge", "mcast_snooping", "0")
            self._up(BRIDGE)
            self._switch = self._start(seed)
            run("ip", "-n", self._tag, "link", "set", "dev", DEVICE, "master", BRIDGE)
            # Nothing but what the filters send comes to it, and who is where is not learnt from what it sends.
            flags = [word for flag in ("learning", "flood", "mcast_flood", "bcast_flood") for word in (flag, "off")]
            run("bridge", "-n", self._tag, "link", "set", "dev", DEVICE, *flags)
            self._up(DEVICE)
        except NetworkError:
            remove(self._tag)
            raise

    @property
    def abilities(self) -> frozenset[Fault]:
        return frozenset(Fault) if self._has_memory else frozenset(Fault) - {Fault.MEMORY}

    def address(self, source: Host, destination: Host, port: int) -> str:
        return f"{destination.address}:{port}"

    def reset(self, one: Host, other: Host) -> None:
        for here, there in ((one, other), (other, one)):
            run("nsenter", f"--net={here.namespace}", "--", "ss", "--kill", "--tcp", "dst", there.address)

    def counts(self, source: Host, destination: Host) -> Counts:
        return Counts(**self._ask({"counts": [source.address, destination.address]}))

    def close(self) -> None:
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        try:
            for host in self.hosts.values():
                host.end()
        finally:
            self._switch.stdin.close()
            self._switch.stdout.close()
            code = self._switch.wait(CLOSING_SECONDS)
        if code:
            raise NetworkError(f"the switch of {self._tag} failed, or could not remove everything; see its last words")

    def _make(self, name: str, number: int, directory: Path, disk_bytes: int | None, clocks: list[Clock]) -> Host:
        address, tagged = f"10.66.0.{number}", f"{self._tag}.{name}"
        port, hardware = f"port{number}", f"02:00:00:00:00:{number:02x}"
        run("ip", "netns", "add", tagged)
        here = [f"link add name {port} type veth peer name eth0 address {hardware} netns {tagged}"]
        here += [f"link set dev {port} addrgenmode none master {BRIDGE} up"]
        run("ip", "-n", self._tag, "-batch", "-", lines=here)
        run("bridge", "-n", self._tag, "fdb", "replace", hardware, "dev", port, "master", "static")
        run("tc", "-n", self._tag, "qdisc", "add", "dev", port, "clsact")
        there = ["link set dev lo up", "link set dev eth0 addrgenmode none up", f"addr add {address}/24 dev eth0"]
        run("ip", "-n", tagged, "-batch", "-", lines=there)
        disks = [] if disk_bytes is None else [Disk(directory, disk_bytes, source=tagged)]
        memories = [Memory(tagged)] if self._has_memory else []
        return Host(name, address, directory, NAMESPACES / tagged, [*disks, *memories, *clocks])

    def impair(self, ways: Iterable[tuple[str, ...]], how: Impairment) -> None:
        """The switch knows before the first packet comes to it, and passes on what still comes of a mended way."""
        with self._lock:
            named = [(self.hosts[here].address, self.hosts[there].address) for here, there in ways]
            diverted = {way: one for way, one in self._diverted.items() if way not in named}
            ended = self._diverted.keys() - diverted.keys() if how == WHOLE else ()
            begun = () if how == WHOLE else set(named) - self._diverted.keys()
            lines = [f"filter del dev {_port(here)} ingress protocol ip pref {_number(there)}" for here, there in ended]
            for here, there in begun:
                where = f"filter add dev {_port(here)} ingress protocol ip pref {_number(there)}"
                lines += [f"{where} u32 match ip dst {there}/32 action mirred egress redirect dev {DEVICE}"]
            self._say({"impair": [[*way, asdict(how)] for way in named]})
            if lines:
                run("tc", "-n", self._tag, "-batch", "-", lines=lines)
            told = {here for here, there in ended if self._diverted[here, there].is_mtu_told}
            self._diverted = diverted if how == WHOLE else diverted | dict.fromkeys(named, how)
        for host in self.hosts.values():
            if host.address in told:  # else it would go on sending small packets for ten minutes
                run("ip", "-n", f"{self._tag}.{host.name}", "route", "flush", "cache")

    def _up(self, device: str) -> None:
        run("ip", "-n", self._tag, "link", "set", "dev", device, "addrgenmode", "none", "up")

    def _start(self, seed: int) -> subprocess.Popen[bytes]:
        module = [sys.executable, "-m", "tests.chaos.network.switch", self._tag, str(seed)]
        switch = subprocess.Popen(
            ["nsenter", f"--net={NAMESPACES / self._tag}", "--", *module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # what interrupts the harness does not reach it: it has to clear up
        )
        assert switch.stdout is not None
        if not switch.stdout.readline():
            switch.wait()
            raise NetworkError("the switch process did not start; see its last words")
        return switch

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return self._say(order)

    def _say(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._switch.stdin.write(json.dumps(order).encode() + b"\n")
            self._switch.stdin.flush()
        line = self._switch.stdout.readline()
        if not line:
            raise NetworkError("the switch process has ended; see its last words")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _has_memory(tag: str) -> bool:
    """Whether memory can be limited; tried with a group that goes with the network."""
    try:
        Memory(tag)
    except ImpossibleError:
        return False
    return True


def _number(address: str) -> int:
    return int(address.rpartition(".")[2])


def _port(address: str) -> str:
    return f"port{_number(address)}"


Kind = Literal["namespaces", "loopback"]


def open_network(directory: Path, *, seed: int, kind: Kind | None) -> Network:
    """
    A network without hosts.

    Args:
        directory: Holds one for each host; made if it is not there.
        seed: Of the dice of all impairments.
        kind: The only kind wanted; None = namespaces if they can be made, else loopback, whose `reason` says why, or
            with BROKER_TEST_COMPLETE, which allows nothing to be left out, an error.

    Raises:
        NetworkError: that kind cannot be made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if kind == "loopback":
        return LoopbackNetwork(directory, seed=seed, reason="asked for")
    try:
        return NamespaceNetwork(directory, seed=seed)
    except NetworkError as error:
        if kind is not None or os.environ.get("BROKER_TEST_COMPLETE"):
            raise
        return LoopbackNetwork(directory, seed=seed, reason=str(error))
