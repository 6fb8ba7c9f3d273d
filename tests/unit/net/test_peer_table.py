"""What is known of addresses, and which of them matter to anybody."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from broker.net import peer_table as module
from broker.net.link import LinkState
from broker.net.peer_table import (
    OTHER_PEERS,
    Addresses,
    DialHistory,
    Nobody,
    Outlets,
    PeerFrameCounts,
    Processes,
    Servers,
    Serving,
    Watcher,
    announced,
)
from broker.net.tls import identify
from broker.protocol.frame import ProbeReply, Rejected
from broker.protocol.layout import NO_GUID
from broker.protocol.link_state import Agreement, agree
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from tests.support.certificates import make
from tests.support.peers import HIGHER, LOWER, OWN, PEER

NORTH, SOUTH = NetworkAddress("10.0.0.1"), NetworkAddress("10.0.0.2")


class Played:
    """As much of a link as this is about."""

    state = LinkState.LOGGED_IN
    is_peer_draining = False


async def test_health_goes_by_who_serves_and_then_by_the_last_attempt() -> None:
    addresses = Addresses()
    link: Any = Played()
    assert (AddressHealth.UNTRIED, "") == (addresses.health_of(NORTH), addresses.problem_of(NORTH))

    addresses.attempts[NORTH] = DialHistory()
    addresses.suppress(NORTH, "Connection refused")
    assert (AddressHealth.SUPPRESSED, "Connection refused") == (addresses.health_of(NORTH), addresses.problem_of(NORTH))
    addresses.servers.add(link, NORTH)
    assert AddressHealth.CONNECTED is addresses.health_of(NORTH)
    addresses.servers.remove(link)
    await asyncio.sleep(1)

    assert AddressHealth.UNTRIED is addresses.health_of(NORTH)
    assert {NORTH} == addresses.known


async def test_address_matters_from_when_its_health_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_MAX", 2)
    addresses = Addresses()

    addresses.health_of(NORTH)
    assert (True, False) == (addresses.matters(NORTH), addresses.matters(SOUTH))
    addresses.health_of(NetworkAddress("10.0.0.3"))
    assert addresses.matters(SOUTH)  # more cannot be told apart
    addresses.forget_who_asked()

    assert (False, False) == (addresses.matters(NORTH), addresses.matters(SOUTH))


async def test_past_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPTS_MAX", 2)
    addresses = Addresses()
    link: Any = Played()
    addresses.servers.add(link, NORTH)
    addresses.attempts |= {NORTH: DialHistory(), SOUTH: DialHistory()}
    addresses.forget_old(0.0)
    assert 2 == len(addresses.attempts)
    trying, resting = NetworkAddress("10.0.0.3"), NetworkAddress("10.0.0.4")
    addresses.attempts |= {trying: DialHistory(is_under_way=True), resting: DialHistory(suppressed_until=10.0)}

    addresses.forget_old(5.0)

    assert {NORTH, trying, resting} == addresses.attempts.keys()


async def test_address_whose_only_link_leaves_is_better_than_one_not_tried() -> None:
    addresses = Addresses()
    link: Any = Played()
    addresses.servers.add(link, NORTH)
    link.is_peer_draining = True

    assert AddressHealth.CONNECTED < addresses.health_of(NORTH) < AddressHealth.UNTRIED


# --- test_announced ---
# What a peer announces is taken as addresses where it is one, and nothing else of it does harm.


def test_announced_addresses_that_are_none_are_left_out() -> None:
    texts = ("tcp://10.0.0.1", "TCP://10.0.0.1:4022", "tcp://there:1", "LOCAL", "TRANSPORT", "nonsense", "")
    agreement = Agreement(1, OWN.max_frame, 1.0, msgspec.structs.replace(PEER, addresses=texts), is_self=False)

    assert {NetworkAddress("10.0.0.1"), NetworkAddress("there", 1)} == announced(agreement)


def test_where_peers_prove_who_they_are_only_covered_hosts_are_believed() -> None:
    texts = ("tcp://a.example", "tcp://b.example")
    agreement = Agreement(1, OWN.max_frame, 1.0, msgspec.structs.replace(PEER, addresses=texts), is_self=False)
    identity = identify(make("a", "a.example").der)

    assert {NetworkAddress("a.example")} == announced(agreement, identity, is_authenticating=True)
    assert set() == announced(agreement, None, is_authenticating=True)
    assert {NetworkAddress("a.example"), NetworkAddress("b.example")} == announced(agreement, identity)


# --- test_heard ---
# Labels of peers in metrics, and counts of frames by them, those of closed links among them.


def link(name: str, principal: str = "", received: dict[int, int] | None = None) -> Any:
    identity = SimpleNamespace(principal_name=principal) if principal else None
    return SimpleNamespace(
        peer_name=name, label="", received=Counter(received or {}), transport=SimpleNamespace(identity=identity)
    )


def labels(heard: PeerFrameCounts, *links: Any) -> list[str]:
    for one in links:
        heard.greet(one)
    return [one.label for one in links]


def test_open_and_closed_links_of_one_name_add_up() -> None:
    heard = PeerFrameCounts()
    closed, opened = link("a", received={0x10: 2}), link("a", received={0x10: 1, 0x11: 5})
    labels(heard, closed, opened)

    heard.close(closed)

    assert {"a": {0x10: 3, 0x11: 5}} == heard.counts([opened])
    assert {"a": {0x10: 2}} == heard.counts([])


def test_link_that_has_not_said_hello_counts_nowhere() -> None:
    assert {} == PeerFrameCounts().counts([link("")])


def test_peer_without_a_name_is_not_counted_as_a_database_here() -> None:
    assert [OTHER_PEERS] == labels(PeerFrameCounts(), link(""))


def test_names_past_the_bound_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.peer_table.PEER_NAMES_MAX", 1)
    heard = PeerFrameCounts()
    for one in [link(name, received={0x10: 1}) for name in "abc"]:
        heard.greet(one)
        heard.close(one)

    assert {"a": {0x10: 1}, OTHER_PEERS: {0x10: 2}} == heard.counts([])


def test_names_of_one_principal_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.peer_table.NAMES_EACH_MAX", 2)
    heard = PeerFrameCounts()

    assert ["a", "b", OTHER_PEERS, "a"] == labels(heard, *(link(name, "CN=many") for name in "abca"))
    assert ["c"] == labels(heard, link("c", "CN=other"))


def test_name_belongs_to_the_principal_that_came_with_it_first() -> None:
    heard = PeerFrameCounts()

    assert ["a", OTHER_PEERS, OTHER_PEERS, "a"] == labels(
        heard, link("a", "CN=first"), link("a", "CN=second"), link("a"), link("a", "CN=first")
    )


def test_name_of_peers_that_prove_nothing_goes_to_whoever_proves_something() -> None:
    assert ["a", "a", "a", OTHER_PEERS] == labels(
        PeerFrameCounts(), link("a"), link("a"), link("a", "CN=first"), link("a")
    )


# --- test_outlets ---
# Which link an outbox leaves by, and whose turn it is when a link takes more.


NORTH_of_outlets, SOUTH_of_outlets = NetworkAddress("north"), NetworkAddress("south")


class Box:
    """An outbox that counts how often it was drained."""

    def __init__(self, *, held: int = 0) -> None:
        self.held = [0] * held
        self.outlet: Any = None
        self.drained = 0
        self.alternatives: set[NetworkAddress] = set()

    def drain(self, _now: float) -> None:
        self.drained += 1


class Link:
    """A link. Shape: `sends` writes so far."""

    def __init__(self, sends: int = 0) -> None:
        self.sends = sends


class Town:
    """Boxes by address, and who serves it."""

    def __init__(self) -> None:
        self.boxes: dict[NetworkAddress, list[Box]] = {}
        self.links: dict[NetworkAddress, Link] = {}
        self.wanted: list[NetworkAddress] = []
        self.outlets = Outlets(cast("Any", self), want=self.wanted.append, on_room=lambda: None)
        self.outlets.forwarder = cast("Any", SimpleNamespace(table=self))

    def outboxes_to(self, address: NetworkAddress) -> list[Box]:
        return self.boxes.get(address, [])

    def all_outboxes(self) -> list[Box]:
        return [box for boxes in self.boxes.values() for box in boxes]

    def serving(self, address: NetworkAddress) -> Link | None:
        return self.links.get(address)

    def staying(self, address: NetworkAddress) -> Link | None:
        return self.links.get(address)

    def addresses_of(self, link: Link) -> list[NetworkAddress]:
        return [address for address, one in self.links.items() if one is link]


@pytest.fixture
async def town() -> Town:
    return Town()


async def test_all_that_leads_to_an_address_gets_the_link_that_serves_it(town: Town) -> None:
    """An outbox of its own, and those of pairs whose principal is there; once each."""
    boxes = town.boxes[NORTH_of_outlets] = [Box(), Box(held=1)]
    town.links[NORTH_of_outlets] = link = Link()

    town.outlets.fit(NORTH_of_outlets)
    town.outlets.fit(NORTH_of_outlets)

    assert [(link, 1), (link, 1)] == [(box.outlet, box.drained) for box in boxes]
    assert [] == town.wanted


async def test_link_is_wanted_where_there_is_none_and_frames_wait(town: Town) -> None:
    """And not where none do."""
    town.boxes = {NORTH_of_outlets: [Box(held=1)], SOUTH_of_outlets: [Box()]}

    for address in town.boxes:
        town.outlets.fit(address)

    assert [NORTH_of_outlets] == town.wanted


@pytest.mark.parametrize("sends", range(3))
async def test_all_that_wait_for_a_link_are_drained_and_another_is_the_first_each_time(town: Town, sends: int) -> None:
    """Or one that always has more would keep the others waiting."""
    link = town.links[NORTH_of_outlets] = town.links[SOUTH_of_outlets] = Link(sends)
    boxes = [Box(held=1), Box(held=1), Box(held=1)]
    town.boxes = {NORTH_of_outlets: [boxes[0], Box()], SOUTH_of_outlets: [*boxes[1:], Box(held=1)]}
    for box in boxes:
        box.outlet = link
    order: list[Box] = []
    for box in boxes:
        box.drain = lambda _, box=box: order.append(box)  # type: ignore[method-assign, misc]

    town.outlets.drain(cast("Any", link))

    assert [boxes[sends], boxes[(sends + 1) % 3], boxes[(sends + 2) % 3]] == order


async def test_link_for_which_nothing_waits_drains_nothing(town: Town) -> None:
    """Whatever it serves."""
    link = town.links[NORTH_of_outlets] = Link()
    town.boxes = {NORTH_of_outlets: [Box()]}

    town.outlets.drain(cast("Any", link))

    assert [0] == [box.drained for box in town.boxes[NORTH_of_outlets]]


async def test_something_drains_while_a_link_may_take_what_waits(town: Town) -> None:
    """Not what has no link, and not what is empty."""
    town.boxes = {NORTH_of_outlets: [Box(held=1)], SOUTH_of_outlets: [Box()]}
    town.boxes[SOUTH_of_outlets][0].outlet = Link()
    assert not town.outlets.is_draining

    town.boxes[NORTH_of_outlets][0].outlet = Link()

    assert town.outlets.is_draining


async def test_frames_for_an_address_may_go_there_again_or_where_else_they_lead(town: Town) -> None:
    """Where frames were sent at all, and nobody serves it yet."""
    used, east, west = Box(), NetworkAddress("east"), NetworkAddress("west")
    used.alternatives = {east, west}
    town.boxes = {NORTH_of_outlets: [used]}
    town.links[west] = Link()

    assert {NORTH_of_outlets, east} == town.outlets.replacing([NORTH_of_outlets, SOUTH_of_outlets])


async def test_address_that_somebody_serves_needs_no_other(town: Town) -> None:
    town.boxes = {NORTH_of_outlets: [Box()]}
    town.links[NORTH_of_outlets] = Link()

    assert set() == town.outlets.replacing([NORTH_of_outlets])


# --- test_processes ---
# Two links to one process from both sides are found, however many others there are.


class ProcessesPlayed:
    """As much of a link as this is about."""

    def __init__(self, arbitration: bytes, *, is_accept: bool, proved: str) -> None:
        self.state = LinkState.LOGGED_IN
        self.transport = SimpleNamespace(identity=SimpleNamespace(fingerprint=proved) if proved else None)
        self.is_accept = is_accept
        self.agreement: Agreement | None = agree(OWN, msgspec.structs.replace(PEER, arbitration=arbitration))


def link_of_processes(arbitration: bytes, *, is_accept: bool, proved: str = "") -> Any:
    return ProcessesPlayed(arbitration, is_accept=is_accept, proved=proved)


def test_rival_is_opened_by_the_other_side_and_open() -> None:
    processes = Processes()
    ours, theirs = link_of_processes(HIGHER, is_accept=False), link_of_processes(HIGHER, is_accept=True)
    another = link_of_processes(LOWER, is_accept=True)
    for one in (theirs, another):
        processes.add(one)

    assert theirs is processes.rival_of(ours)
    assert None is processes.rival_of(link_of_processes(HIGHER, is_accept=True))
    theirs.state = LinkState.DRAINING  # type: ignore[union-attr]
    assert None is processes.rival_of(ours)


def test_whoever_shows_another_certificate_is_another_process() -> None:
    """A HELLO may claim the arbitration id of somebody else."""
    processes = Processes()
    ours = link_of_processes(HIGHER, is_accept=False, proved="billing")
    processes.add(ours)

    assert None is processes.rival_of(link_of_processes(HIGHER, is_accept=True, proved="mallory"))
    assert None is processes.rival_of(link_of_processes(HIGHER, is_accept=True))
    assert ours is processes.rival_of(link_of_processes(HIGHER, is_accept=True, proved="billing"))


def test_process_without_a_name_has_no_rival() -> None:
    processes = Processes()
    processes.add(link_of_processes(NO_GUID, is_accept=True))

    assert None is processes.rival_of(link_of_processes(NO_GUID, is_accept=False))


def test_link_that_is_gone_is_forgotten_wherever_it_was() -> None:
    processes = Processes()
    one, never = link_of_processes(HIGHER, is_accept=True), link_of_processes(HIGHER, is_accept=True)
    stranger = link_of_processes(HIGHER, is_accept=True)
    stranger.agreement = None
    processes.add(one)

    for gone in (one, one, never, stranger):
        processes.remove(gone)

    assert None is processes.rival_of(link_of_processes(HIGHER, is_accept=False))
    assert {} == processes._links


# --- test_servers ---
# Which link serves an address: the one dialled for it first, then the oldest that announced it.


class ServersPlayed:
    """As much of a link as this is about."""

    def __init__(self) -> None:
        self.state = LinkState.LOGGED_IN
        self.is_peer_draining = False


def new_links(count: int) -> Any:
    return [ServersPlayed() for _ in range(count)]


def test_oldest_that_can_send_serves_and_whoever_was_dialled_comes_first() -> None:
    servers = Servers()
    old, young, dialled = new_links(3)
    servers.add(old, NORTH)
    servers.add(young, NORTH)
    assert old == servers.serving(NORTH)

    servers.add(dialled, NORTH, is_first=True)
    assert dialled == servers.serving(NORTH)
    dialled.state = LinkState.DRAINING
    assert old == servers.serving(NORTH)
    assert [NORTH] == servers.remove(old)

    assert young == servers.serving(NORTH)
    assert None is servers.serving(SOUTH)


def test_nothing_stays_of_a_link_that_is_gone() -> None:
    servers = Servers()
    (link,) = new_links(1)
    for _ in range(2):
        servers.add(link, NORTH, is_first=True)
        servers.add(link, SOUTH)
    assert [NORTH, SOUTH] == list(servers.addresses_of(link)) == list(servers.addresses)

    assert [NORTH, SOUTH] == servers.remove(link)

    assert ([], [], [], None) == (
        servers.remove(link), list(servers.addresses), list(servers.addresses_of(link)), servers.serving(NORTH)
    )  # fmt: skip


def test_link_whose_peer_leaves_serves_where_there_is_no_other() -> None:
    servers = Servers()
    leaving, other = new_links(2)
    servers.add(leaving, NORTH, is_first=True)
    leaving.is_peer_draining = True

    assert (leaving, None) == (servers.serving(NORTH), servers.staying(NORTH))

    servers.add(other, NORTH)

    assert (other, other) == (servers.serving(NORTH), servers.staying(NORTH))


# --- test_serving ---
# Who begins and ceases to serve an address is told, and whether anything depends on it.


NORTH_of_serving, SOUTH_of_serving = NetworkAddress("north"), NetworkAddress("south")


class ServingLink:
    """As much of a link as this is about."""

    def __init__(self) -> None:
        self.state = LinkState.LOGGED_IN
        self.is_peer_draining = False
        self.reason = ""


class Office:
    """Outlets and watcher in one, which note what they are told."""

    def __init__(self) -> None:
        self.addresses = Addresses()
        self.fitted: list[NetworkAddress] = []
        self.told: list[tuple[NetworkAddress, object]] = []
        self.outboxes: dict[NetworkAddress, object] = {}
        self.forwarder = self.table = self
        self.serving = Serving(self.addresses, cast("Any", self), lambda: cast("Any", self))

    def fit(self, address: NetworkAddress) -> None:
        self.fitted.append(address)

    def on_served(self, address: NetworkAddress, link: object) -> None:
        self.told.append((address, link))

    def on_unserved(self, address: NetworkAddress, problem: str) -> None:
        self.told.append((address, problem))


@pytest.fixture
async def office() -> Office:
    return Office()


async def test_link_serves_what_it_was_dialled_for_first_and_what_was_announced(office: Office) -> None:
    link: Any = ServingLink()

    office.serving.begin(link, NORTH_of_serving, [SOUTH_of_serving, NORTH_of_serving])

    assert ([NORTH_of_serving, SOUTH_of_serving], [(NORTH_of_serving, link), (SOUTH_of_serving, link)]) == (
        office.fitted,
        office.told,
    )


async def test_it_matters_only_where_somebody_asked_or_sent_and_nobody_serves(office: Office) -> None:
    first, second, third = cast("Any", (ServingLink(), ServingLink(), ServingLink()))

    assert not office.serving.begin(first, NORTH_of_serving)
    office.outboxes[NORTH_of_serving] = object()
    assert not office.serving.begin(second, NORTH_of_serving)
    first.is_peer_draining = second.is_peer_draining = True
    assert office.serving.begin(third, NORTH_of_serving)


async def test_link_that_ends_leaves_its_addresses_to_others_or_to_nobody(office: Office) -> None:
    first, second = cast("Any", (ServingLink(), ServingLink()))
    office.outboxes[NORTH_of_serving] = object()
    office.serving.begin(first, NORTH_of_serving)
    office.serving.begin(second, NORTH_of_serving)
    office.told.clear()

    assert not office.serving.end(first, NORTH_of_serving)
    second.reason = "closed by the peer"
    assert office.serving.end(second, NORTH_of_serving)

    assert [(NORTH_of_serving, second), (NORTH_of_serving, "closed by the peer")] == office.told


async def test_what_was_dialled_and_not_served_yet_is_told_too(office: Office) -> None:
    office.serving.end(cast("Any", ServingLink()), SOUTH_of_serving)

    assert [(SOUTH_of_serving, "the peer is draining")] == office.told


async def test_link_that_leaves_is_as_good_as_gone_to_whoever_watches(office: Office) -> None:
    link: Any = ServingLink()
    office.serving.begin(link, NORTH_of_serving)
    office.told.clear()

    link.is_peer_draining = True
    office.serving.look(NORTH_of_serving, "the peer is draining")

    assert [(NORTH_of_serving, "the peer is draining")] == office.told


# --- test_watcher ---
# An instance without mirrored pairs hears of everything and does nothing.


def test_nobody_takes_whatever_is_told() -> None:
    """It is a watcher like any other."""
    nobody: Watcher = Nobody()
    address, link = NetworkAddress("far"), cast("Any", None)

    nobody.on_served(address, link)
    nobody.on_unserved(address, "gone")
    nobody.on_answered(link, ProbeReply())
    nobody.on_rejected(link, Rejected())
    nobody.on_role(b"i" * 16)
