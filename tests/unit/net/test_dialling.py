"""Who is dialled when many are wanted: three queues, and a way from one into a better one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.net.addresses import Addresses
from broker.net.dialer import DialQueue
from broker.net.dialling import DIALS_MAX, Dialling
from broker.routing.address import NetworkAddress


class Town:
    """
    Addresses that can be dialled; each attempt takes as long as the test wants.

    Shape: `begun` addresses whose attempts have begun, in order; `opened`, `failed` what came of them.
    """

    def __init__(self) -> None:
        self.begun: list[NetworkAddress] = []
        self.opened: list[NetworkAddress] = []
        self.failed: list[NetworkAddress] = []
        self.answers: dict[NetworkAddress, asyncio.Future[Any]] = {}
        self.addresses = Addresses()
        self.dialling = Dialling(self, self.addresses, 5.0, self._on_open, self.failed.append)  # type: ignore[arg-type]
        self.dialling.is_invented = lambda address: address.host.startswith("invented")

    async def dial(self, address: NetworkAddress, _connect: object) -> NetworkAddress:
        self.begun.append(address)
        self.answers[address] = asyncio.get_running_loop().create_future()
        await self.answers[address]
        return address

    def _on_open(self, opening: Any, address: NetworkAddress) -> None:
        assert opening == address
        self.opened.append(address)

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def hosts(kind: str, count: int) -> list[NetworkAddress]:
    return [NetworkAddress(f"{kind}{number}") for number in range(count)]


@pytest.fixture
async def town() -> Any:
    town = Town()
    yield town
    await town.dialling.close()


@pytest.mark.parametrize("queue", DialQueue)
async def test_each_queue_has_slots_of_its_own(town: Town, queue: DialQueue) -> None:
    """Whatever waits in one queue, the others go on."""
    kinds = {DialQueue.INVENTED: "invented", DialQueue.NAMED: "named", DialQueue.PROBED: "probed"}
    most = DIALS_MAX[queue]
    crowd = hosts(kinds[queue], most + 5)
    for address in crowd:
        town.dialling.want(address, is_probe=queue is DialQueue.PROBED)
    await town.settle()
    assert crowd[:most] == town.begun

    for other in DialQueue:
        if other is not queue:
            town.dialling.want(NetworkAddress(kinds[other]), is_probe=other is DialQueue.PROBED)
    await town.settle()
    assert len(town.begun) == most + 2

    town.answers[crowd[0]].set_result(None)
    await town.settle()
    assert ([crowd[0]], crowd[most]) == (town.opened, town.begun[-1])


async def test_address_goes_over_to_a_better_queue_and_is_dialled_once(town: Town) -> None:
    """A route names what a peer had invented, and a mirrored pair is asked there: nobody waits behind the others."""
    crowd = hosts("invented", DIALS_MAX[DialQueue.INVENTED] + 1)
    for address in crowd:
        town.dialling.want(address)
    await town.settle()
    last = crowd[-1]
    assert last not in town.begun

    town.dialling.want(last, is_probe=True)
    town.dialling.want(last, is_probe=True)
    await town.settle()
    assert [last] == town.begun[-1:]
    for address in crowd:
        town.answers[address].set_result(None)
    await town.settle()

    assert sorted(map(str, crowd)) == sorted(map(str, town.begun))
    assert town.addresses.attempts[last].is_under_way


async def test_attempt_that_fails_is_told_and_the_next_one_waits(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is kept, and the address rests."""
    address = NetworkAddress("named")
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    town.dialling.want(address)
    await town.settle()
    town.answers[address].set_exception(OSError(111, "Connection refused"))
    await town.settle()
    assert ([address], "Connection refused") == (town.failed, town.addresses.problem_of(address))

    monkeypatch.setattr(asyncio, "sleep", note)
    town.dialling.want(address)
    for _ in range(5):
        await sleep(0)
    assert 0 < waits[0] <= 0.2
    assert [address, address] == town.begun
