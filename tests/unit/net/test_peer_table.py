"""Which link serves which address, what follows for health and outboxes, and who the peers are."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from broker.net import peer_table as module
from broker.net.link import LinkState
from broker.net.peer_table import (
    BACKOFF_CAP,
    BACKOFF_FIRST,
    OTHER_PEERS,
    SPREAD,
    DialHistory,
    LinksByProcess,
    PeerFrameCounts,
    PeerTable,
    announced_addresses,
)
from broker.net.tls import identify
from broker.protocol.frame import GoAway, encode_link
from broker.protocol.layout import NO_GUID
from broker.protocol.link_state import Agreement, agree
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from tests.support.certificates import make
from tests.support.peers import HIGHER, LOWER, OWN, PEER, Neighbourhood, sent

NORTH, SOUTH, EAST, WEST = (NetworkAddress(name) for name in ("north", "south", "east", "west"))


class FakeLink:
    """As much of a link as the table uses."""

    def __init__(self, arbitration: bytes, proved: str, *, is_accept: bool) -> None:
        self.state = LinkState.LOGGED_IN
        self.is_peer_draining = False
        self.is_accept = is_accept
        self.principal = proved
        self.agreement: Agreement | None = agree(OWN, msgspec.structs.replace(PEER, arbitration=arbitration))


def new_link(arbitration: bytes = HIGHER, *, is_accept: bool = True, proved: str = "") -> Any:
    return FakeLink(arbitration, proved, is_accept=is_accept)


@pytest.fixture
async def table() -> PeerTable:
    return PeerTable()


# --- the table ---


async def test_oldest_that_can_send_serves_and_the_one_dialled_comes_first(table: PeerTable) -> None:
    old, young, dialled = new_link(), new_link(), new_link()
    for link in (old, young):
        table.add(link, NORTH, is_dialled=False)
    assert old == table.link_for(NORTH)

    table.add(dialled, NORTH, is_dialled=True)
    assert dialled == table.link_for(NORTH)
    dialled.state = LinkState.DRAINING
    assert old == table.link_for(NORTH)
    assert [NORTH] == table.remove(old)

    assert (young, None) == (table.link_for(NORTH), table.link_for(SOUTH))
    assert ([NORTH], []) == (table.addresses_served_by(young), table.addresses_served_by(dialled))


async def test_link_whose_peer_leaves_serves_where_there_is_no_other(table: PeerTable) -> None:
    leaving, other = new_link(), new_link()
    table.add(leaving, NORTH, is_dialled=True)
    leaving.is_peer_draining = True

    assert (leaving, None) == (table.link_for(NORTH), table.lasting_link_for(NORTH))
    assert AddressHealth.CONNECTED < table.health_of(NORTH) < AddressHealth.UNTRIED

    table.add(other, NORTH, is_dialled=False)

    assert (other, other) == (table.link_for(NORTH), table.lasting_link_for(NORTH))


async def test_links_of_other_principals_do_not_serve_an_address_that_was_dialled(table: PeerTable) -> None:
    honest, mallory, unproved = new_link(proved="CN=a"), new_link(proved="CN=b"), new_link()
    for link in (mallory, honest, unproved):
        table.add(link, NORTH, is_dialled=False)
    table.add(mallory, SOUTH, is_dialled=False)

    table.expel(NORTH, "CN=a")

    assert (honest, [SOUTH]) == (table.link_for(NORTH), list(table.addresses_of(mallory)))
    assert [NORTH] == list(table.addresses_of(unproved))


async def test_health_goes_by_the_link_and_then_by_the_last_attempt(table: PeerTable) -> None:
    link = new_link()
    assert (AddressHealth.UNTRIED, "") == (table.health_of(NORTH), table.problem_of(NORTH))

    table.histories[NORTH] = DialHistory()
    table.suppress(NORTH, "Connection refused")
    assert (AddressHealth.SUPPRESSED, "Connection refused") == (table.health_of(NORTH), table.problem_of(NORTH))
    table.add(link, NORTH, is_dialled=True)
    assert (AddressHealth.CONNECTED, "") == (table.health_of(NORTH), table.problem_of(NORTH))
    table.remove(link)
    await asyncio.sleep(1)

    assert AddressHealth.UNTRIED is table.health_of(NORTH)
    assert {NORTH} == table.known_addresses


async def test_only_health_that_routing_asked_for_affects_it(table: PeerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_MAX", 2)

    table.health_of(SOUTH)
    table.health_for_routing(NORTH)
    assert (True, False) == (table.affects_routing(NORTH), table.affects_routing(SOUTH))
    table.health_for_routing(EAST)
    assert table.affects_routing(SOUTH)  # more cannot be told apart
    table.forget_asked()

    assert (False, False) == (table.affects_routing(NORTH), table.affects_routing(SOUTH))


async def test_histories_have_a_bound(table: PeerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HISTORIES_MAX", 2)
    table.add(new_link(), NORTH, is_dialled=False)
    table.histories |= {NORTH: DialHistory(), SOUTH: DialHistory()}
    table.prune(0.0)
    assert 2 == len(table.histories)
    table.histories |= {EAST: DialHistory(is_dialling=True), WEST: DialHistory(suppressed_until=10.0)}

    table.prune(5.0)

    assert {NORTH, EAST, WEST} == table.histories.keys()


def test_back_off_doubles_to_its_cap_and_starts_low_again_after_a_rest() -> None:
    history, now, waits = DialHistory(), 0.0, []
    for _ in range(8):
        waits.append(history.record_failure("refused", now, lambda: 0.0))
        now = history.suppressed_until

    assert [min(BACKOFF_CAP, BACKOFF_FIRST * 2**n) for n in range(8)] == pytest.approx(waits)
    assert (8, "refused") == (history.failures, history.problem)
    assert BACKOFF_FIRST * (1 - SPREAD) == pytest.approx(
        history.record_failure("refused", now + 2 * BACKOFF_CAP + 1, lambda: 1.0)
    )

    history.record_success()

    assert (0, 0.0, "") == (history.failures, history.suppressed_until, history.problem)


# --- outboxes and mirrored pairs ---


@pytest.fixture
def told(near: Neighbourhood, monkeypatch: pytest.MonkeyPatch) -> list[tuple[NetworkAddress, object]]:
    """What mirrored pairs hear of addresses: the link, or why there is none."""
    found: list[tuple[NetworkAddress, object]] = []
    for name in ("on_served", "on_unserved"):
        monkeypatch.setattr(near.peers.mirrors, name, lambda *what: found.append(what))
    return found


async def test_mirrored_pairs_hear_which_link_serves_an_address_and_that_it_leaves(
    near: Neighbourhood, told: list[tuple[NetworkAddress, object]]
) -> None:
    sock = near.accept(addresses=[str(NORTH)])
    [link] = near.links

    sock.feed(encode_link(GoAway(deadline_ms=5000)))

    assert [(NORTH, link), (NORTH, "the peer is draining")] == told


async def test_address_does_not_wait_for_ever_behind_one_of_the_same_link_that_always_has_more(
    near: Neighbourhood,
) -> None:
    sock = near.accept(addresses=[str(NORTH), str(SOUTH)])
    sock.room = 0
    waiting = near.send(NORTH, 0), near.send(SOUTH, 0)

    for number in range(1, 4):
        for address in (NORTH, SOUTH):
            near.send(address, number)
        sock.breathe(len(waiting[0]))

    assert all(frame in sent(sock) for frame in waiting)


async def test_a_change_matters_where_frames_were_sent_or_routing_asked_and_no_lasting_link_serves(
    near: Neighbourhood,
) -> None:
    def serve(address: NetworkAddress, number: int) -> bool:
        before = near.forwarder.generation
        near.accept(addresses=[str(address)], arbitration=bytes([number]) * 16)
        return near.forwarder.generation > before

    assert not serve(NORTH, 1)
    near.send(NORTH)
    assert not serve(NORTH, 2)
    for sock in near.socks:
        sock.feed(encode_link(GoAway(deadline_ms=5000)))
    assert serve(NORTH, 3)
    near.peers.table.health_for_routing(SOUTH)
    assert serve(SOUTH, 4)


@pytest.mark.promise("R6.3")
async def test_link_that_ends_leaves_its_addresses_to_others_or_to_none(
    near: Neighbourhood, told: list[tuple[NetworkAddress, object]]
) -> None:
    socks = [near.accept(addresses=[str(NORTH)], arbitration=bytes([number]) * 16) for number in (1, 2)]
    [_, second] = near.links
    near.reachable.add(SOUTH)
    near.send(SOUTH)
    await asyncio.sleep(0)
    told.clear()

    for sock in (*socks, near.socks[-1]):  # the last one was dialled, and served nothing yet
        sock.end()

    assert [(NORTH, second), (NORTH, "closed by the peer"), (SOUTH, "closed by the peer")] == told


# --- who the peers are ---


def announcing(*texts: str) -> Agreement:
    return Agreement(1, 1.0, msgspec.structs.replace(PEER, addresses=texts), is_self=False)


def test_announced_addresses_that_are_not_addresses_are_left_out() -> None:
    agreement = announcing("tcp://10.0.0.1", "TCP://10.0.0.1:4022", "tcp://there:1", "LOCAL", "TRANSPORT", "x", "")

    assert {NetworkAddress("10.0.0.1"), NetworkAddress("there", 1)} == announced_addresses(agreement)


def test_where_peers_prove_who_they_are_only_covered_hosts_are_accepted() -> None:
    agreement, identity = announcing("tcp://a.example", "tcp://b.example"), identify(make("a", "a.example").certificate)

    assert {NetworkAddress("a.example")} == announced_addresses(agreement, identity, is_authenticating=True)
    assert set() == announced_addresses(agreement, None, is_authenticating=True)
    assert {NetworkAddress("a.example"), NetworkAddress("b.example")} == announced_addresses(agreement, identity)


def test_duplicate_is_opened_by_the_other_side_and_open() -> None:
    processes = LinksByProcess()
    ours, theirs, stranger = new_link(is_accept=False), new_link(), new_link()
    for one in (theirs, new_link(LOWER), new_link(NO_GUID)):
        processes.add(one)

    assert theirs == processes.duplicate_of(ours)
    others = new_link(), new_link(NO_GUID, is_accept=False)
    assert [None, None] == [processes.duplicate_of(one) for one in others]
    theirs.state = LinkState.DRAINING
    assert None is processes.duplicate_of(ours)
    theirs.state = LinkState.LOGGED_IN
    stranger.agreement = None
    for gone in (theirs, theirs, new_link(), stranger):
        processes.remove(gone)
    assert None is processes.duplicate_of(ours)


def test_another_principal_is_another_process_and_a_renewed_certificate_is_not() -> None:
    """A HELLO may claim the arbitration id of another peer."""
    processes = LinksByProcess()
    ours = new_link(is_accept=False, proved="billing")
    processes.add(ours)

    assert [None, None, ours] == [processes.duplicate_of(new_link(proved=one)) for one in ("mallory", "", "billing")]


def named(name: str, principal: str = "", received: dict[int, int] | None = None) -> Any:
    return SimpleNamespace(peer_name=name, principal=principal, label="", received=Counter(received or {}))


def labels(counts: PeerFrameCounts, *links: Any) -> list[str]:
    for one in links:
        counts.open(one)
    return [one.label for one in links]


def test_open_and_closed_links_of_one_name_add_up() -> None:
    counts = PeerFrameCounts()
    closed, opened = named("a", received={0x10: 2}), named("a", received={0x10: 1, 0x11: 5})
    labels(counts, closed, opened)

    counts.close(closed)

    assert {"a": {0x10: 3, 0x11: 5}} == counts.totals([opened, named("")])
    assert {"a": {0x10: 2}} == counts.totals([])


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([("", "")], [OTHER_PEERS]),
        ([("a", "CN=1"), ("a", "CN=2"), ("a", ""), ("a", "CN=1")], ["a", OTHER_PEERS, OTHER_PEERS, "a"]),
        ([("a", ""), ("a", ""), ("a", "CN=1"), ("a", "")], ["a", "a", "a", OTHER_PEERS]),
        ([(name, "CN=1") for name in "abcda"] + [("e", "CN=2")], ["a", "b", "c", OTHER_PEERS, "a", "e"]),
        ([(name, "") for name in "abcdef"], ["a", "b", "c", "d", OTHER_PEERS, OTHER_PEERS]),
    ],
    ids=["nameless", "first principal", "proved takes over", "bound of a principal", "bound of all"],
)
def test_name_belongs_to_the_first_principal_within_bounds(
    links: list[tuple[str, str]], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NAMES_EACH_MAX", 3)
    monkeypatch.setattr(module, "PEER_NAMES_MAX", 4)

    assert expected == labels(PeerFrameCounts(), *(named(*one) for one in links))
