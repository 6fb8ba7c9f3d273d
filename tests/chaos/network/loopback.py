"""Hosts that are addresses of loopback, for machines where namespaces cannot be made; between each pair a proxy."""

from __future__ import annotations

import os
from pathlib import Path

from tests.chaos.network.host import Host
from tests.chaos.network.impairment import Counts, Fault, ImpossibleError
from tests.chaos.network.network import Changes, Network
from tests.chaos.network.proxy import Lane, Proxy
from tests.support.cable import Cut


class LoopbackNetwork(Network):
    """
    Hosts as 127.x.y.1 and on, the same for one process; every port of a host that another one may reach is a proxy of
    127.0.0.1, and `address` tells which. A cut is a cut of what goes through it, and a host reaches itself directly.
    """

    kind = "loopback"
    abilities = frozenset({Fault.CUT, Fault.DELAY, Fault.RATE, Fault.RESET, Fault.DESCRIPTORS, Fault.CLOCK})

    def __init__(self, directory: Path, *, seed: int, reason: str = "asked for") -> None:
        super().__init__(directory)
        self.reason = reason
        self._seed = seed
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._proxies: dict[tuple[str, str, int], Proxy] = {}

    def address(self, source: Host, destination: Host, port: int) -> str:
        if source is destination:
            return f"{destination.address}:{port}"
        key = (source.name, destination.name, port)
        if key not in self._proxies:
            lanes = (self._lane(source, destination), self._lane(destination, source))
            self._proxies[key] = Proxy(destination.address, port, lanes)
        return f"127.0.0.1:{self._proxies[key].port}"

    def reset(self, one: Host, other: Host) -> None:
        for (here, there, _), proxy in self._proxies.items():
            if {here, there} == {one.name, other.name}:
                proxy.cut(Cut.BROKEN)
                proxy.mend()

    def counts(self, source: Host, destination: Host) -> Counts:
        raise ImpossibleError("a proxy knows bytes of connections, not packets")

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.is_whole.set()
        for host in self.hosts.values():
            host.end()
        for proxy in self._proxies.values():
            proxy.close()

    def _address(self, number: int) -> str:
        high, low = divmod(os.getpid() % (254 * 256), 256)
        return f"127.{high + 1}.{low}.{number}"

    def _furnish(self, host: Host, disk_bytes: int | None) -> None:
        assert disk_bytes is None

    def _apply(self, changes: Changes) -> None:
        for (here, there), how in changes.items():
            self._lane(here, there).impair(how)

    def _lane(self, source: Host, destination: Host) -> Lane:
        way = (source.name, destination.name)
        if way not in self._lanes:
            self._lanes[way] = Lane(f"{self._seed} {source.name} {destination.name}")
        return self._lanes[way]
