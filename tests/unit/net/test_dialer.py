"""An address is tried at every place its name resolves to, within a bound, and what went wrong is remembered."""

import asyncio
import errno
import os
import socket
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest

from broker.net.dialer import DIALS_MAX, IDLE_DIALS_MAX, Dialer, connect
from broker.net.link import LinkState
from broker.net.peer_table import BACKOFF_CAP, BACKOFF_FIRST, SPREAD, DialHistory, DialQueue, PeerTable
from broker.routing.address import NetworkAddress
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.support.played import PlayedLoop

ADDRESS = NetworkAddress("far.example", 4022)


FIRST, SECOND = ("192.0.2.1", 4022), ("192.0.2.2", 4022)


class Sockets:
    """The sockets that were made, and what becomes of connecting each of them: None, an error, silence, or itself."""

    def __init__(self, loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[tuple[str, int], OSError | str | None] = {}
        self.tried: list[tuple[str, int]] = []
        self.open: set[Any] = set()
        monkeypatch.setattr(loop, "getaddrinfo", self._getaddrinfo)
        monkeypatch.setattr(loop, "sock_connect", self._sock_connect)
        monkeypatch.setattr(socket, "socket", self._make)

    def _make(self, *_: int) -> Any:
        made: Any = Mock()
        made.close = lambda: self.open.remove(made)
        self.open.add(made)
        return made

    async def _getaddrinfo(self, host: str, port: int, *, type: int) -> list[tuple[Any, ...]]:  # noqa: A002
        assert ("far.example", 4022, socket.SOCK_STREAM) == (host, port, type)
        return [(socket.AF_INET, type, 6, "", where) for where in self.answers]

    async def _sock_connect(self, sock: Any, where: tuple[str, int]) -> None:
        self.tried.append(where)
        answer = self.answers[where]
        sock.getsockname.return_value = where if answer == "itself" else ("192.0.2.9", 50000)
        if answer == "silence":
            await asyncio.Event().wait()
        if isinstance(answer, OSError):
            raise answer


@pytest.fixture
def sockets(loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> Sockets:
    return Sockets(loop, monkeypatch)


REFUSED = OSError(errno.ECONNREFUSED, "Connect call failed somewhere")


@pytest.mark.parametrize("answer", [REFUSED, "silence"], ids=str)
async def test_place_that_does_not_answer_does_not_hide_the_next(
    answer: Any, sockets: Sockets, loop: PlayedLoop
) -> None:
    sockets.answers = {FIRST: answer, SECOND: None}

    sock, where = await connect(ADDRESS, timeout=10)

    assert (SECOND, [FIRST, SECOND], {sock}) == (where, sockets.tried, sockets.open)
    assert loop.time() <= 5


@pytest.mark.parametrize(
    ("answers", "told", "seconds"),
    [
        ({}, r"far\.example resolves to nothing", 0),
        ({FIRST: REFUSED}, os.strerror(errno.ECONNREFUSED), 0),
        ({FIRST: "itself"}, os.strerror(errno.ECONNREFUSED), 0),
        ({FIRST: "silence", SECOND: "silence"}, "no connection within 10 s", 10),
    ],
)
async def test_address_that_nothing_answers_at_is_told(
    answers: Any, told: str, seconds: float, sockets: Sockets, loop: PlayedLoop
) -> None:
    sockets.answers = answers

    with pytest.raises(OSError, match=told):
        await connect(ADDRESS, timeout=10)

    assert seconds == pytest.approx(loop.time(), abs=0.1)
    assert not sockets.open


async def test_cancelled_attempt_leaves_no_socket(sockets: Sockets) -> None:
    sockets.answers = {FIRST: "silence"}
    attempt = asyncio.ensure_future(connect(ADDRESS, timeout=10))
    await asyncio.sleep(1)

    attempt.cancel()

    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert set() == sockets.open


def test_many_that_fail_at_one_instant_do_not_try_again_in_step() -> None:
    waits = [DialHistory().record_failure("refused", 100.0) for _ in range(1000)]

    tenths = {int(10 * (BACKOFF_FIRST - wait) / (SPREAD * BACKOFF_FIRST)) for wait in waits}
    assert set(range(10)) <= tenths <= set(range(11))
    assert len(set(waits)) > 900


# --- dialling ---


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
        self.addresses = PeerTable()
        self.dialling = Dialer(
            self,  # type: ignore[arg-type]
            self.addresses,
            5.0,
            is_invented=lambda address: address.host.startswith("invented"),
            on_open=self._on_open,
            on_unreached=self.failed.append,
        )

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
        town.dialling.request(address, is_probe=queue is DialQueue.PROBED)
    await town.settle()
    assert crowd[:most] == town.begun

    for other in DialQueue:
        if other is not queue:
            town.dialling.request(NetworkAddress(kinds[other]), is_probe=other is DialQueue.PROBED)
    await town.settle()
    assert len(town.begun) == most + 2

    town.answers[crowd[0]].set_result(None)
    await town.settle()
    assert ([crowd[0]], crowd[most]) == (town.opened, town.begun[-1])


async def test_address_goes_over_to_a_better_queue_and_is_dialled_once(town: Town) -> None:
    """A route names what a peer had invented, and a mirrored pair is asked there: nobody waits behind the others."""
    crowd = hosts("invented", DIALS_MAX[DialQueue.INVENTED] + 1)
    for address in crowd:
        town.dialling.request(address)
    await town.settle()
    last = crowd[-1]
    assert last not in town.begun

    town.dialling.request(last, is_probe=True)
    town.dialling.request(last, is_probe=True)
    await town.settle()
    assert [last] == town.begun[-1:]
    for address in crowd:
        town.answers[address].set_result(None)
    await town.settle()

    assert sorted(map(str, crowd)) == sorted(map(str, town.begun))
    assert town.addresses.histories[last].is_dialling


async def test_nothing_is_dialled_once_the_instance_stops_but_what_is_under_way_may_succeed(town: Town) -> None:
    begun, late = hosts("named", 2)
    town.dialling.request(begun)
    await town.settle()

    town.dialling.finish()
    town.dialling.request(late)
    town.answers[begun].set_result(None)
    await town.settle()

    assert ([begun], [begun]) == (town.begun, town.opened)


# --- what nobody needs ---


def fail(town: Town, *addresses: NetworkAddress, problem: str = "Connection refused") -> float:
    """They have failed, one after the other; when all of them may be tried again."""
    for address in addresses:
        town.addresses.histories[address] = DialHistory()
        town.addresses.suppress(address, problem)
    return max(town.addresses.histories[address].suppressed_until for address in addresses)


def name(town: Town, *addresses: NetworkAddress) -> None:
    """Routes name these addresses."""
    routes = [Route(f"to {address}", address, remote_service_name=f"//{address}") for address in addresses]
    town.dialling.on_routes([build_table(routes, now=datetime.now(UTC))])


async def test_failed_address_that_nobody_needs_is_dialled_again_and_its_failure_does_not_stay(town: Town) -> None:
    (address,) = hosts("named", 1)
    name(town, address)
    rested = fail(town, address)

    town.dialling.dial_due(rested - 0.01, ())
    await town.settle()
    assert [] == town.begun
    await asyncio.sleep(0.3)
    town.dialling.dial_due(rested, ())
    town.dialling.dial_due(rested, ())
    await town.settle()
    assert [address] == town.begun
    town.answers[address].set_result(None)
    await town.settle()

    assert [address] == town.opened


async def test_a_back_off_ends_when_a_retry_is_asked_for(town: Town) -> None:
    """Both for an address that frames wait for and for one that is dialled without traffic."""
    wanted, idle = hosts("named", 2)
    name(town, wanted, idle)
    fail(town, wanted, idle)
    town.dialling.request(wanted)
    await town.settle()
    assert [] == town.begun

    town.dialling.retry_now()
    town.dialling.dial_due(asyncio.get_running_loop().time(), ())
    await town.settle()

    assert {wanted, idle} == set(town.begun)


async def test_the_back_offs_of_one_problem_end_alone(town: Town) -> None:
    """A peer that may connect now is dialled at once; one that nothing has changed for is not."""
    denied, gone = hosts("named", 2)
    name(town, denied, gone)
    fail(town, gone)
    fail(town, denied, problem="CN=b may not connect: no GRANT")
    for address in (denied, gone):
        town.dialling.request(address)

    town.dialling.retry_now(lambda problem: "may not connect" in problem)
    await town.settle()

    assert [denied] == town.begun


async def test_few_are_dialled_again_at_one_look_and_those_first_that_rested_longest(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.net.peer_table.SPREAD", 0.0)
    crowd = hosts("named", IDLE_DIALS_MAX + 3)
    name(town, *crowd)
    rested = fail(town, *reversed(crowd))
    await asyncio.sleep(0.3)

    town.dialling.dial_due(rested, ())
    await town.settle()

    assert set(crowd[3:]) == set(town.begun)


@pytest.mark.parametrize("why", ["no route names it", "its route is gone", "it leads to this instance"])
async def test_failure_of_an_address_that_leads_nowhere_is_forgotten(town: Town, why: str) -> None:
    """A back-off is kept as long as it means anything."""
    (address,) = hosts("named", 1)
    if why != "no route names it":
        name(town, address)
    if why == "its route is gone":
        name(town)
    own = {address} if why == "it leads to this instance" else set()
    rested = fail(town, address)

    town.dialling.dial_due(rested + BACKOFF_CAP, own)
    assert "Connection refused" == town.addresses.problem_of(address)
    town.dialling.dial_due(rested + 2 * BACKOFF_CAP + 0.1, own)
    await town.settle()

    assert ([], {}, "") == (town.begun, town.addresses.histories, town.addresses.problem_of(address))


async def test_failure_counts_no_more_once_the_peer_itself_has_come(town: Town) -> None:
    (address,) = hosts("named", 1)
    name(town, address)
    rested = fail(town, address)
    link: Any = Mock(state=LinkState.LOGGED_IN, is_peer_draining=False)

    town.addresses.add(link, address, is_dialled=False)
    assert "" == town.addresses.problem_of(address)
    town.dialling.dial_due(rested, ())
    town.addresses.remove(link)
    await town.settle()

    assert ([], "", 0) == (town.begun, town.addresses.problem_of(address), town.addresses.histories[address].failures)


async def test_address_is_dialled_again_behind_a_fault_of_the_program() -> None:
    town, [address] = Town(), hosts("sound", 1)
    town.dialling.request(address)
    await town.settle()

    town.answers[address].set_exception(ZeroDivisionError())
    await town.settle()

    attempts = town.addresses.histories[address]
    assert ([address], False) == (town.failed, attempts.is_dialling)
    assert "a fault of this program" in attempts.problem
    town.dialling.request(address)
    assert attempts.is_dialling
    await town.dialling.close()
