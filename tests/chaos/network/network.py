"""
Hosts for fault runs, and the network between them.

    with open_network(directory, seed=7) as net:
        gateway, billing = [net.host(name, disk_bytes=None, has_clock=False) for name in ("gateway", "billing")]
        gateway.popen([...])                                    # reaches billing at net.address(gateway, billing, 4022)
        net.impair([("gateway", "billing")], Impairment(loss=0.05))    # what gateway sends; connections go on
        net.impair([("gateway", "billing")], WHOLE)

There are two kinds. With *namespaces* (Linux, root) a host is a network namespace with an address of its own on a
bridge of the kernel, and every fault is possible. Where they cannot be made, hosts are addresses of *loopback*, and
what is between them a proxy for each pair that can be cut.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.generator import compiler
from tests.chaos.network.host import Clock, Host
from tests.chaos.network.impairment import Counts, Fault, Impairment


class Network(ABC):
    """Shape: `directory` holds one for each host; `hosts` by name; `kind` and, if that is not namespaces, `reason`."""

    kind: str
    reason = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hosts: dict[str, Host] = {}

    @property
    @abstractmethod
    def abilities(self) -> frozenset[Fault]:
        """What it can do."""

    def can(self, fault: Fault) -> bool:
        """Whether it can do that."""
        return fault in self.abilities and (fault is not Fault.CLOCK or compiler() is not None)

    def host(self, name: str, *, disk_bytes: int | None, has_clock: bool) -> Host:
        """
        One more host, usable at once.

        Args:
            name: Letters, digits and hyphens; its own.
            disk_bytes: Gives it a disk of that size for its directory, if the network can.
            has_clock: Whether its wall clock can be stepped, if the network can.

        Raises:
            NetworkError: the system did not let it.
        """
        directory = self.directory / name
        directory.mkdir(parents=True, exist_ok=True)
        clocks = [Clock(self.directory / f"{name}.clock")] if has_clock else []
        self.hosts[name] = self._make(name, len(self.hosts) + 1, directory, disk_bytes, clocks)
        return self.hosts[name]

    @abstractmethod
    def address(self, source: Host, destination: Host, port: int) -> str:
        """Where `source` reaches a port of `destination`, as "host:port"."""

    @abstractmethod
    def impair(self, ways: Iterable[tuple[str, ...]], how: Impairment) -> None:
        """What is sent on these ways, each from one host to another, fares like that from now on, on all at once."""

    @abstractmethod
    def reset(self, one: Host, other: Host) -> None:
        """Break off every TCP connection between the two; both are told at once."""

    @abstractmethod
    def counts(self, source: Host, destination: Host) -> Counts:
        """
        What became of the packets of that way while it was impaired.

        Raises:
            ImpossibleError: not with loopback, which has no packets.
        """

    @abstractmethod
    def close(self) -> None:
        """The end of all hosts and of what runs on them; files in their directories stay, but for those of disks."""

    @abstractmethod
    def _make(self, name: str, number: int, directory: Path, disk_bytes: int | None, clocks: list[Clock]) -> Host:
        """A new host, with its number from 1."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
