"""Which dialog sends when, along which way, and when again; the store is a list and the link a recorder."""

import asyncio
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as dataclasses_replace
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from broker.conversation.frames import Contact, Fragment, Travel
from broker.conversation.outbound import FAITH, Outgoing
from broker.conversation.window import Backoff
from broker.dialog import send_queue as loading
from broker.dialog import transmitter as module
from broker.dialog.transmitter import (
    NO_BINDING,
    NO_CERTIFICATE,
    PUMP_BYTES,
    REMATCH_SECONDS,
    RETRY_MIN,
    DialogTuning,
    FrameBuilder,
    Transmitter,
    next_path,
)
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry
from broker.forwarding.outbox import DatabaseSink, DropSink
from broker.protocol.frame import (
    Envelope,
    Fault,
    Rejected,
    decode_dialog,
    decode_envelope,
    decode_fault,
    decode_stored,
    encode_envelope,
)
from broker.protocol.layout import FLAGS_AT, KIND_AT, NO_GUID, Flag, FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Candidate, Decision
from broker.routing.route import Route, RouteProperties, create_route
from broker.routing.table import RouteChange, RouteTable, build_table
from broker.security.seal import read_box
from broker.security.secured import Mode, Secured
from broker.security.session import CannotSealError, DialogCredentials, Opener, Sealer
from broker.store.port import KeyEvidence, LoadedFragments, LoadRequest, PendingDialog
from tests.support.dialog import ALONE, make_forwarder
from tests.support.identities import credentials
from tests.support.sealed import initiator, target
from tests.support.virtual_time import virtual_time
from tests.unit.dialog import running
from tests.unit.dialog.running import GATEWAY, OTHER

C, U, S = AddressHealth.CONNECTED, AddressHealth.UNTRIED, AddressHealth.SUPPRESSED


@pytest.mark.parametrize(
    ("healths", "fronts", "asked"),
    [
        ((C, C, C), [2, 3, 1], []),
        ((C, C, U), [2, 1, 2], [3] * 3),
        ((U, U), [2, 1, 2], [1, 1, 1, 2, 2, 2]),
        ((C, U, U, S), [1, 1], [2, 2, 3, 3]),
        ((S, S), [1, 1], []),
    ],
)
def test_detours_take_turns_among_those_that_are_as_good_as_the_best(
    healths: tuple[AddressHealth, ...], fronts: list[int], asked: list[int]
) -> None:
    """Addresses 1, 2, ...; links to those that were not tried are asked for."""
    addresses = [NetworkAddress("host", port) for port in range(1, len(healths) + 1)]
    routes = [Route(str(address.port), address) for address in addresses]
    candidates = tuple(map(Candidate, addresses, routes, healths))
    one = Decision(Disposition.FORWARDED, 1, routes[0], candidates=candidates)
    taken, links = [], list[int]()

    def outbox(address: NetworkAddress) -> Any:
        return SimpleNamespace(request_link=lambda: links.append(address.port))

    for _ in fronts:
        one = next_path(one, outbox)
        taken.append(one.candidates[0].address.port)
        assert one.route is one.candidates[0].route

    assert (fronts, asked) == (taken, sorted(links))


INSIDE = ForwardingEntry(
    DatabaseSink(b"b" * 16, lambda *_: None, lambda *_: None), Disposition.DELIVERED, kind=FrameKind.MESSAGE
)
OUTSIDE = ForwardingEntry(
    DropSink(Disposition.NO_ROUTE, lambda *_: None), Disposition.FORWARDED, kind=FrameKind.MESSAGE
)
FULL = Secured(Mode.FULL, "billing")
NONE = Secured(None)
FRAGMENT = Fragment((0, 0), 2, b"text", (0, 0))
ORDERS = credentials("orders", "billing")


def framing(known: DialogCredentials = ORDERS) -> FrameBuilder:
    return FrameBuilder(Travel(), known)


def is_sealed(frame: bytes | None) -> bool:
    assert frame is not None
    return bool(decode_dialog(frame)[0].flags & Flag.SEALED)


def opened(frame: bytes | None) -> bytes:
    assert frame is not None
    header, body = decode_dialog(frame)
    return Opener(credentials("billing", "orders")).open(header, frame, body, lambda: None, time.time()).body


def test_what_leaves_the_instance_is_sealed() -> None:
    made = framing()
    contact = initiator(FULL)

    message = made.message(contact, FRAGMENT, made.seal(contact, OUTSIDE, with_packet=False))
    ack = made.ack(contact, OUTSIDE, (1, 0), ((3, 0, 0),))
    fault = made.fault(contact, OUTSIDE, Fault(-8470, "dropped"))

    assert all(map(is_sealed, (message, ack, fault)))
    assert b"text" == opened(message)
    assert ((3, 0, 0),) == decode_stored(opened(ack)).stored
    assert Fault(-8470, "dropped") == decode_fault(opened(fault))


@pytest.mark.parametrize(
    ("contact", "way"),
    [
        (initiator(None), OUTSIDE),
        (initiator(FULL), INSIDE),
        (initiator(NONE), INSIDE),
        (target(FULL), INSIDE),
        (target(NONE), OUTSIDE),
    ],
    ids=["in clear", "inside", "inside without a binding", "answer inside", "its far side has moved away"],
)
def test_what_stays_or_is_in_clear_is_not_sealed(contact: Contact, way: ForwardingEntry) -> None:
    made = framing()

    assert made.seal(contact, way, with_packet=True) is None
    assert not is_sealed(made.ack(contact, way, (1, 0)))
    assert not is_sealed(made.fault(contact, way, Fault(-1, "x")))


def test_what_cannot_be_sealed_is_not_made() -> None:
    made, contact = framing(credentials("orders")), initiator(FULL)

    with pytest.raises(CannotSealError, match="no certificate of billing is among the peers"):
        made.seal(contact, OUTSIDE, with_packet=False)

    assert made.ack(contact, OUTSIDE, (1, 0)) is None
    assert made.fault(contact, OUTSIDE, Fault(-1, "x")) is None
    assert made.why_unsendable(contact) is None, "the certificate may still come"


@pytest.mark.parametrize(
    ("contact", "known", "code", "what"),
    [
        (initiator(NONE), ORDERS, NO_BINDING, "CREATE REMOTE SERVICE BINDING name TO SERVICE '//shop/Billing'"),
        (initiator(FULL), credentials(None, "billing"), NO_CERTIFICATE, "this database has no certificate"),
        (target(Secured(Mode.FULL, "CN=orders")), credentials(None, "orders"), None, ""),
    ],
    ids=["no binding", "no certificate", "a target has begun with one, and waits for it"],
)
def test_what_will_never_be_sealed_has_an_error_with_the_number_of_the_original(
    contact: Contact, known: DialogCredentials, code: int | None, what: str
) -> None:
    made = framing(known)

    with pytest.raises(CannotSealError):
        made.seal(contact, OUTSIDE, with_packet=False)
    fault = made.why_unsendable(contact)

    assert code == (None if fault is None else fault.code)
    assert fault is None or what in fault.text


def packet_of(frame: bytes | None) -> bytes:
    assert frame is not None
    return read_box(decode_dialog(frame)[1]).packet


def test_the_packet_stays_away_when_the_far_side_has_named_the_key() -> None:
    made, contact = framing(), initiator(FULL)
    first = made.ack(contact, OUTSIDE, (1, 0), is_urgent=False)
    assert first is not None
    key_id = read_box(decode_dialog(first)[1]).key_id

    made.on_key_evidence(contact.conversation_id, KeyEvidence(key_id[:8], b"k" * 16), is_initiator=True)
    made.on_key_evidence(b"another dialog!!", KeyEvidence(key_id[:8], b"k" * 16), is_initiator=True)

    assert packet_of(first)
    assert b"" == packet_of(made.ack(contact, OUTSIDE, (2, 0), is_urgent=False))
    assert packet_of(made.ack(contact, OUTSIDE, (2, 0), is_urgent=True))


def test_a_dialog_that_is_secured_otherwise_has_another_key_and_keys_that_are_kept_have_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SEALERS_MAX", 2)
    made = framing()

    def sealer_of(guid: bytes, principal: str = "billing") -> Sealer:
        seal = made.seal(initiator(Secured(Mode.FULL, principal), guid * 16), OUTSIDE, with_packet=False)
        assert seal is not None
        return seal.sealer

    first = sealer_of(b"1")
    assert sealer_of(b"1") is first
    second = sealer_of(b"2")
    assert sealer_of(b"1") is first
    sealer_of(b"3")
    assert sealer_of(b"1") is first, "the last used is kept"
    assert sealer_of(b"2") is not second
    assert sealer_of(b"1", "CN=billing") is not first


# --- what is told anew ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("waits", "told"), [(0.0, 60), (10.5, 49), (59.5, 1), (1000.0, 1), (-1800.0, 60)])
def test_lifetime_told_is_what_is_left_when_the_message_goes_out(
    monkeypatch: pytest.MonkeyPatch, waits: float, told: int
) -> None:
    """A clock that has gone back since adds nothing."""
    envelope = Envelope(type="T", contract="C", lifetime=60, headers={"a": "b"})
    fragment = Outgoing((0, 0), 2, encode_envelope(envelope) + b"payload", lifetime=1060.0, enqueued_at=1000.0)
    monkeypatch.setattr(module, "time", type("Clock", (), {"time": staticmethod(lambda: 1000.0 + waits)}))

    body = framing().body(fragment)

    expected = Envelope(type="T", contract="C", lifetime=told, headers={"a": "b"})
    assert (expected, b"payload") == decode_envelope(body)


HERE, THERE = bytes([1]) * 16, bytes([2]) * 16
FIRST_WAIT = 1.0  # seconds until the first resend


class Link(running.Link):
    """An outlet that records; one that cannot send makes frames wait."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[int] = []

    def send(self, data: Buffer) -> int:
        self.writes.append(len(data))
        return super().send(data)

    def places(self) -> list[tuple[int, int]]:
        """(sequence, fragment) of everything sent."""
        return [(header.sequence_number, header.fragment_number) for header in self.headers()]

    def take(self) -> list[tuple[int, int]]:
        """The places sent since the last look."""
        places = self.places()
        self.frames.clear()
        return places


def table(*addresses: str) -> RouteTable:
    """Routes to the far service."""
    now = datetime.now(UTC)
    routes = (create_route(address, RouteProperties("Far", address=address), now=now) for address in addresses)
    return build_table(routes, now=now)


@dataclass(frozen=True)
class Message:
    """A row of the transmission queue."""

    sequence: int
    body: bytes

    def cut(self, size: int) -> list[Outgoing]:
        pieces = [self.body[start : start + size] for start in range(0, max(1, len(self.body)), size)]
        flags = [0] * (len(pieces) - 1) + [int(Flag.LAST_FRAGMENT)]
        return [Outgoing((self.sequence, n), flags[n], piece) for n, piece in enumerate(pieces)]


def contact(endpoint_id: int) -> Contact:
    return Contact(uuid.UUID(int=endpoint_id).bytes, True, "Orders", HERE, "Far")


@dataclass
class Stage:
    """A transmitter with what surrounds it; a turn of the writer happens by itself whenever it is asked for."""

    window: int = 64
    fragment_size: int = 1000
    stored: dict[int, list[Message]] = field(default_factory=lambda: defaultdict(list))
    wanted: list[LoadRequest] = field(default_factory=list)
    asked: list[NetworkAddress] = field(default_factory=list)
    delivered: list[bytes] = field(default_factory=list)
    health: dict[NetworkAddress, AddressHealth] = field(default_factory=dict)
    parted: list[Link] = field(default_factory=list)
    answers_by_itself: bool = True

    def __post_init__(self) -> None:
        self.forwarder = make_forwarder(
            deliver=lambda _database, frames, _origin: self.delivered.extend(frames),
            request_link=self.asked.append,
            health_of=lambda address: self.health.get(address, AddressHealth.UNTRIED),
        )
        settings = DialogTuning(Backoff(FIRST_WAIT, 8.0), Travel(), self.window, self.fragment_size)
        self.transmitter = Transmitter(
            "shop",
            settings,
            self.forwarder,
            dataclasses_replace(ALONE, left_cleanly=lambda link: link in self.parted),
            wake_writer=self._wake,
            ask_for_route=lambda _: False,
            on_acks_carried=lambda *_: None,
            request_status=lambda _: "about to be asked",
            credentials=DialogCredentials(),
        )
        self.transmitter.table = table(str(GATEWAY))
        self.link = self.connect(GATEWAY)
        self._is_turn_due = False

    def connect(self, address: NetworkAddress) -> Link:
        link = Link()
        self.forwarder.table.outbox(address).outlet = link
        return link

    def send(self, endpoint_id: int, *bodies: bytes, **found: Any) -> None:
        """An application commits messages, and the writer finds them."""
        rows = self.stored[endpoint_id]
        first = rows[-1].sequence + 1 if rows else 0
        rows += [Message(n, body) for n, body in enumerate(bodies, first)]
        self.transmitter.on_found(PendingDialog(endpoint_id, contact(endpoint_id), first, (0, 0), **found))

    def acknowledge(self, endpoint_id: int, sequence: int, fragment: int = 0, *held: tuple[int, int, int]) -> None:
        """The far side has stored this; the rows are gone."""
        self.stored[endpoint_id] = [row for row in self.stored[endpoint_id] if row.sequence >= sequence]
        self.transmitter.on_acknowledged(endpoint_id, (sequence, fragment), held)

    def turn(self) -> None:
        """What the writer thread does about wishes to load."""
        self._is_turn_due = False
        room = None
        for want in self.transmitter.budget.requests():
            room = self.transmitter.budget.max_bytes if room is None else room
            room -= self.answer(want, room)

    def answer(self, want: LoadRequest, room: int = 1 << 30) -> int:
        """What the loader does about one wish; bytes loaded."""
        self.wanted.append(want)
        loaded: list[Outgoing] = []
        size = 0
        for row in self.stored[want.endpoint_id]:
            for fragment in row.cut(self.fragment_size):
                if fragment.place < want.place or len(loaded) == want.fragments:
                    continue
                size += len(fragment.body)
                if size > min(want.max_bytes, room) and (loaded or size > room):
                    self._answered(want, loaded or None)
                    return size - len(fragment.body)
                loaded.append(fragment)
        self._answered(want, loaded)
        return size

    def _answered(self, want: LoadRequest, loaded: list[Outgoing] | None) -> None:
        if loaded is None:
            self.transmitter.budget.requeue([want])
        else:
            self.transmitter.on_loaded(LoadedFragments(want, loaded, is_all=not loaded))

    def reroute(self, *addresses: str) -> None:
        self.transmitter.table = table(*addresses)
        self.forwarder.forget_decisions()

    def _wake(self) -> None:
        if self.answers_by_itself and not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self.turn)


async def settle() -> None:
    """Let everything happen that needs no time."""
    await asyncio.sleep(0.001)


async def next_timer(stage: Stage) -> None:
    """Until the next timer of a dialog has rung."""
    await asyncio.sleep(stage.transmitter._timers.next_at + loading.EARLY_SECONDS - asyncio.get_running_loop().time())


def rejected(
    endpoint_id: int, retry_after_ms: int = 0, code: int = 11289, reason: str = "pool limit exceeded"
) -> Rejected:
    conversation = contact(endpoint_id).conversation_id
    return Rejected(conversation=conversation, code=code, reason=reason, retry_after_ms=retry_after_ms)


async def sent(*bodies: bytes) -> Stage:
    """A stage whose first dialog has sent these."""
    stage = Stage()
    stage.send(1, *bodies)
    await settle()
    return stage


async def two_paths() -> tuple[Stage, Link, Link]:
    """A stage that has sent one message to the first of two gateways; the link that had it, and the other one."""
    stage = Stage()
    stage.health = {GATEWAY: AddressHealth.CONNECTED, OTHER: AddressHealth.CONNECTED}
    stage.reroute(str(GATEWAY), str(OTHER))
    links = [stage.link, stage.connect(OTHER)]
    stage.send(1, b"a")
    await settle()
    used, unused = sorted(links, key=lambda link: not link.frames)
    return stage, used, unused


# --- sending ----------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.promise(3)
async def test_dialog_of_three_thousand_messages_keeps_to_its_window() -> None:
    stage = Stage(window=64)
    stage.send(1, *[b"x"] * 3000)
    places: list[tuple[int, int]] = []

    while len(places) < 3000:
        await settle()
        new = stage.link.take()
        assert 0 < len(new) <= 64
        places += new
        stage.acknowledge(1, places[-1][0] + 1)
    await settle()

    assert places == [(n, 0) for n in range(3000)]
    assert stage.transmitter.senders == {}
    assert stage.transmitter.budget.loaded_bytes == 0
    assert all(want.fragments <= 64 for want in stage.wanted)
    assert stage.transmitter.acknowledged == Counter(Orders=3000)


@virtual_time
@pytest.mark.promise("R5.1", "multiple 4", "multiple 27")
async def test_frames_name_the_far_database_once_it_is_known() -> None:
    """And acknowledge what is stored here."""
    stage = await sent(b"a")

    stage.transmitter.bind(1, contact(1).bound_to(THERE))
    stage.transmitter.bind(99, contact(99).bound_to(THERE))
    stage.transmitter.on_stored(1, (3, 2))
    stage.transmitter.on_stored(99, (1, 0))
    stage.send(1, b"b")
    await settle()

    assert [NO_GUID, THERE] == [header.to_broker_instance for header in stage.link.headers()]
    assert [(0, 0), (3, 2)] == [(header.ack_sequence, header.ack_fragment) for header in stage.link.headers()]


@virtual_time
async def test_what_is_handed_over_at_once_is_bounded_however_large_the_fragments() -> None:
    stage = Stage(fragment_size=60_000)

    stage.send(1, b"x" * 3_000_000)
    stage.send(2, b"x" * 3_000_000)
    await settle()

    assert max(stage.link.writes) < 2 * (PUMP_BYTES + 61_000)
    assert sum(stage.link.writes) > 1_900_000


# --- resending --------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.promise(5, "forwarding 11")
async def test_unacknowledged_messages_are_loaded_and_sent_again_after_a_wait_that_doubles() -> None:
    stage = Stage()
    stage.send(1, b"a", b"b")
    loop = asyncio.get_running_loop()
    times: list[float] = []

    for _ in range(6):
        if times:
            await next_timer(stage)
        await settle()
        assert stage.link.take() == [(0, 0), (1, 0)]
        times.append(loop.time())

    waits = [round(later - earlier) for earlier, later in pairwise(times)]
    assert waits == [1, 2, 4, 8, 8]
    assert [want.place for want in stage.wanted].count((0, 0)) == 6
    assert (stage.transmitter.sent, stage.transmitter.resent) == (Counter(Orders=2), Counter(Orders=10))


@virtual_time
@pytest.mark.promise(5)
async def test_who_stands_in_a_line_sends_nothing_again() -> None:
    """The far side takes a dialog every half second, so the last of ten is answered five times later than expected."""
    stage = Stage()
    for endpoint_id in range(1, 11):
        stage.send(endpoint_id, b"x")
        await settle()

    for endpoint_id in range(1, 11):
        await asyncio.sleep(FIRST_WAIT / 2)
        stage.acknowledge(endpoint_id, 1)

    assert (stage.transmitter.resent, stage.transmitter.senders) == (Counter(), {})


@virtual_time
async def test_messages_loaded_for_a_dialog_that_is_gone_are_not_sent() -> None:
    stage = Stage(answers_by_itself=False)
    stage.send(1, b"a")
    await settle()
    (want,) = stage.transmitter.budget.requests()

    stage.transmitter.finish(1)
    stage.answer(want)
    await settle()

    assert (stage.link.frames, stage.transmitter.budget.loaded_bytes) == ([], 0)


# --- ways -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reported", [True, False])
@virtual_time
@pytest.mark.promise("R2.7", "routing 15", "routing 16", "routing 17")
async def test_dialog_without_a_route_is_delayed_without_an_error_until_one_appears(*, is_reported: bool) -> None:
    """It is matched again when paths change, and after a while."""
    stage = Stage()
    stage.reroute()
    stage.send(1, b"a")
    await asyncio.sleep(10 * REMATCH_SECONDS)
    await settle()
    assert 1 in stage.transmitter.senders
    assert (stage.link.frames, stage.wanted, stage.forwarder.dropped) == ([], [], Counter())
    assert len(stage.transmitter._timers._entries) == 1

    stage.reroute(str(GATEWAY))
    if is_reported:
        stage.transmitter.on_paths_changed()
    else:
        await next_timer(stage)
    await settle()

    assert stage.link.places() == [(0, 0)]


@virtual_time
async def test_link_is_asked_for_when_there_is_none_and_used_when_it_comes() -> None:
    stage = Stage()
    stage.forwarder.table.outbox(GATEWAY).outlet = None
    stage.send(1, b"a")
    await settle()
    assert stage.asked == [GATEWAY]

    link = stage.connect(GATEWAY)
    stage.transmitter.on_capacity()
    await settle()

    assert link.places() == [(0, 0)]
    assert stage.forwarder.pool.frames == 0


@virtual_time
async def test_dialogs_whose_next_hop_accepts_nothing_are_counted_with_their_age() -> None:
    stage = Stage()
    stage.forwarder.table.outbox(GATEWAY).outlet = None
    now = asyncio.get_running_loop().time
    began = now()
    stage.send(1, b"a")
    await asyncio.sleep(5)
    stage.send(2, b"b")
    stage.transmitter.on_capacity()
    await settle()
    blocked = stage.transmitter.blocked()

    link = stage.connect(GATEWAY)
    stage.transmitter.on_paths_changed()
    await settle()

    assert {str(GATEWAY): (2, began)} == blocked
    assert {} == stage.transmitter.blocked()
    stage.transmitter.on_rejected(rejected(1), link, "gw")
    [(dialogs, since)] = stage.transmitter.blocked().values()
    assert (1, began) == (dialogs, since)  # the cause is another one, and it has waited as long


@virtual_time
async def test_dialogs_that_cannot_be_sealed_do_not_wait_for_their_next_hop() -> None:
    stage = Stage()
    with mock.patch.object(stage.transmitter.frames, "seal", side_effect=CannotSealError("no certificate of CN=f")):
        stage.send(1, b"a")
        await settle()

    assert {"Far: cannot be sealed: no certificate of CN=f"} == stage.transmitter.blocked().keys()


@virtual_time
async def test_dialogs_that_are_not_acknowledged_are_counted_with_the_last_reason_until_something_is() -> None:
    began = asyncio.get_running_loop().time()
    stage = await sent(b"a", b"b")
    stage.transmitter.bind(1, contact(1).bound_to(THERE))
    at_once = stage.transmitter.blocked()

    stage.transmitter.on_rejected(rejected(1), stage.link, "gw")
    refused = stage.transmitter.blocked()
    await asyncio.sleep(1.1 * FIRST_WAIT)  # its copy is sent, and nothing comes back
    silent = stage.transmitter.blocked()
    stage.acknowledge(1, 1)

    where = f"Far, broker instance {str(uuid.UUID(bytes=THERE)).upper()}, sent to {GATEWAY}"
    reason = "refused by the next hop: pool limit exceeded (11289), answered by gw"
    assert ({}, {f"{where}: {reason}": (1, began)}) == (at_once, refused)
    assert ({f"{where}: not acknowledged": (1, began)}, {}) == (silent, stage.transmitter.blocked())


@virtual_time
@pytest.mark.promise(5, "R3.5", "multiple 19")
async def test_broken_path_sends_again_at_once_along_the_next_one() -> None:
    stage, broken, healthy = await two_paths()
    (address,) = [one for one in (GATEWAY, OTHER) if stage.forwarder.table.outbox(one).outlet is broken]

    stage.forwarder.table.outbox(address).outlet = None
    stage.health[address] = AddressHealth.SUPPRESSED
    stage.forwarder.forget_decisions()
    stage.transmitter.on_paths_changed()
    await settle()

    assert [(0, 0)] == healthy.places()
    assert stage.transmitter.resent == Counter(Orders=1)


@virtual_time
@pytest.mark.promise(5)
async def test_path_without_an_answer_is_left_for_the_next_one_and_the_dialog_stays_there() -> None:
    stage, silent, other = await two_paths()

    await next_timer(stage)
    stage.send(1, b"b")
    await settle()

    assert [(0, 0)] == silent.places()
    assert [(0, 0), (1, 0)] == other.places()


@pytest.mark.parametrize("is_named", [True, False])
@virtual_time
async def test_next_hop_without_the_broker_instance_that_a_dialog_names_is_left_at_once(*, is_named: bool) -> None:
    """A dialog that names none may be refused for another reason: its next path is tried when its time is over."""
    stage, wrong, right = await two_paths()
    if is_named:
        stage.transmitter.bind(1, contact(1).bound_to(THERE))

    stage.transmitter.on_rejected(rejected(1, code=9795, reason="instance not here"), wrong, "gw")
    await settle()

    assert [(0, 0)] == wrong.places()
    assert [(0, 0)] * is_named == right.places()


@pytest.mark.parametrize("is_held_up", [True, False])
@virtual_time
async def test_link_whose_peer_left_in_good_order_has_only_that_sent_again_which_it_had_held_up(
    *, is_held_up: bool
) -> None:
    stage = Stage()
    stage.parted.append(stage.link)
    stage.send(1, b"a")
    await settle()
    for _ in range(FAITH * is_held_up):
        await next_timer(stage)
        await settle()

    link = stage.connect(GATEWAY)
    stage.send(1, b"b")
    await settle()

    assert link.places() == [(0, 0)] * is_held_up + [(1, 0)]


@virtual_time
async def test_a_dialog_is_decided_again_when_the_routes_to_its_service_change_and_only_then() -> None:
    stage = Stage()
    near, far = Route("near", GATEWAY, "Near"), Route("far", GATEWAY, "Far")
    routes = build_table([near, far], now=datetime.now(UTC))
    stage.transmitter.on_routes(routes, None)
    stage.send(1, b"a")
    await settle()
    other = stage.connect(OTHER)

    with mock.patch.object(stage.transmitter, "decide", wraps=stage.transmitter.decide) as decide:
        routes = routes.changed([RouteChange(near, Route("near", OTHER, "Near"))])
        stage.transmitter.on_routes(routes, {"Somewhere"})
        stage.send(1, b"b")
        await settle()
        assert (decide.call_count, stage.link.places()) == (0, [(0, 0), (1, 0)])

        stage.transmitter.on_routes(routes.changed([RouteChange(far, Route("far", OTHER, "Far"))]), set())
        stage.send(1, b"c")
        await settle()
        assert (decide.call_count, other.places()[-1]) == (1, (2, 0))

        stage.transmitter.on_routes(stage.transmitter.table, {"Far"})  # msdb's, which a route that leads here needs
        await settle()
        stage.send(1, b"d")
        await settle()
        assert decide.call_count == 2


# --- memory -----------------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three fragments of 300 bytes fit."""
    monkeypatch.setattr(loading, "LOADED_MAX_BYTES", 1000)
    monkeypatch.setattr(loading, "ENVELOPE_MAX", 0)


@pytest.mark.usefixtures("little_memory")
@virtual_time
async def test_loading_stops_at_the_bound_and_goes_on_below_it() -> None:
    stage = Stage(fragment_size=300)
    sent: list[bytes] = []
    for endpoint_id in (1, 2, 3):
        stage.send(endpoint_id, b"x" * 900)

    for endpoint_id in (1, 2, 3):
        await settle()
        assert stage.transmitter.budget.loaded_bytes == 900
        sent += [header.conversation_id for header in stage.link.headers()]
        stage.link.frames.clear()
        stage.acknowledge(endpoint_id, 1)

    assert sent == [contact(endpoint_id).conversation_id for endpoint_id in (1, 2, 3) for _ in range(3)]


@pytest.mark.usefixtures("little_memory")
@virtual_time
@pytest.mark.promise(3)
async def test_message_of_any_size_takes_no_more_than_the_bound() -> None:
    stage = Stage(fragment_size=300)
    stage.send(1, bytes(30_000))
    loaded = []

    for number in range(1, 101):
        await settle()
        loaded.append(stage.transmitter.budget.loaded_bytes)
        stage.acknowledge(1, *((1, 0) if number == 100 else (0, number)))
    await settle()

    assert stage.link.places() == [(0, number) for number in range(100)]
    assert max(loaded) == 900
    assert stage.transmitter.senders == {}


@pytest.mark.usefixtures("little_memory")
@virtual_time
async def test_dialogs_that_cannot_send_do_not_keep_others_from_loading() -> None:
    """What is loaded for a dead hop would fill the memory for good."""
    stage = Stage(answers_by_itself=False, fragment_size=300)
    stage.send(1, b"x" * 900)
    await settle()
    stage.link.can_send = False
    stage.turn()
    await settle()
    assert stage.transmitter.budget.loaded_bytes == 900

    stage.answers_by_itself = True
    free = stage.connect(OTHER)
    stage.transmitter.table = table(str(OTHER))
    stage.send(2, b"y" * 300)
    await settle()
    assert free.places() == [(0, 0)]

    stage.acknowledge(2, 1)
    stage.link.can_send = True
    stage.transmitter.on_capacity()
    await settle()
    assert stage.link.places() == [(0, 0), (0, 1), (0, 2)]


# --- advice -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["acknowledged", "sent again"])
@virtual_time
@pytest.mark.promise("views 7")
async def test_a_refusal_is_remembered_until_its_frame_is_sent_again_or_acknowledged(end: str) -> None:
    """Also of a frame that was dropped in this instance."""
    stage = await sent(b"a", b"b")
    sender = stage.transmitter.senders[1]

    stage.transmitter.on_rejected(rejected(1), stage.link, "gw (CN=gw)")
    reported = [sender.last_rejection]
    if end == "acknowledged":
        stage.acknowledge(1, 1)
    else:
        await asyncio.sleep(1.1 * FIRST_WAIT)
    reported.append(sender.last_rejection)
    stage.transmitter.reject(stage.link.frames[1], Disposition.POOL_LIMIT)
    reported.append(sender.last_rejection)

    limit = "pool limit exceeded (11289)"
    assert [
        f"refused by the next hop: {limit}, answered by gw (CN=gw)",
        "",
        f"dropped in this instance: {limit}",
    ] == reported


@pytest.mark.parametrize(
    ("flags", "status"),
    [(0, "its acknowledgements are dropped in this instance: no route (9798)"), (Flag.FROM_TARGET, "")],
)
@virtual_time
@pytest.mark.promise("views 7")
async def test_an_acknowledgement_that_is_dropped_here_is_no_refusal_of_a_next_hop(flags: int, status: str) -> None:
    """And it is about the side that sent it, not about the other one."""
    stage = await sent(b"a")
    frame = bytearray(stage.link.frames[0])
    frame[KIND_AT], frame[FLAGS_AT] = FrameKind.ACK, flags

    stage.transmitter.reject(frame, Disposition.NO_ROUTE)

    assert status == stage.transmitter.senders[1].last_rejection


@pytest.mark.parametrize("is_unloaded", [False, True])
@virtual_time
async def test_what_the_next_hop_would_accept_now_is_sent_again_at_once(*, is_unloaded: bool) -> None:
    stage = await sent(b"a")
    await asyncio.sleep(1.1 * FIRST_WAIT)  # the next pause is twice as long
    sender = stage.transmitter.senders[1]
    stage.transmitter.on_rejected(rejected(1), stage.link, "gw")
    if is_unloaded:
        sender.outbound.unload_until_resend()
    before, resend_at = len(stage.link.places()), sender.outbound.resend_at

    stage.transmitter.on_rejected(rejected(1, code=0, retry_after_ms=100), stage.link, "gw")
    assert ("", asyncio.get_running_loop().time() + RETRY_MIN) == (sender.last_rejection, sender.outbound.timer_at)
    if not is_unloaded:
        await asyncio.sleep(1.1 * RETRY_MIN)

    assert resend_at > asyncio.get_running_loop().time()
    assert before + (not is_unloaded) == len(stage.link.places())


@pytest.mark.parametrize("is_unloaded", [False, True])
@pytest.mark.parametrize(("endpoint_id", "count"), [(1, 1), (None, 2), (3, 0)])
@virtual_time
async def test_what_is_not_acknowledged_is_sent_again_when_a_retry_is_asked_for(
    *, is_unloaded: bool, endpoint_id: int | None, count: int
) -> None:
    stage = Stage()
    stage.send(1, b"a")
    stage.send(2, b"b")
    await settle()
    if is_unloaded:
        for sender in stage.transmitter.senders.values():
            sender.outbound.unload_until_resend()
            sender.has_more = True
    before = len(stage.link.places())

    assert count == stage.transmitter.retry(endpoint_id)
    await settle()

    assert before + count == len(stage.link.places())


@pytest.mark.parametrize(
    ("code", "is_given", "resent"),
    [(11289, True, [(1, 0)]), (11289, False, []), *[(code, True, []) for code in (11271, 11285, 9792, 11294, 11292)]],
)
@virtual_time
async def test_only_the_refused_frame_is_sent_again_early(
    *, code: int, is_given: bool, resent: list[tuple[int, int]]
) -> None:
    """
    Not when it is refused for good, nor when a link refuses it that was given nothing.

    A peer that has learnt a conversation id could have its messages sent again and again, and its status lie.
    """
    stage = await sent(b"a", b"b", b"c")

    told = replace(rejected(1, retry_after_ms=200), code=code, sequence=1)
    stage.transmitter.on_rejected(told, stage.link if is_given else Link(), "gw")
    await asyncio.sleep(0.9 * FIRST_WAIT)

    assert stage.link.places() == [(0, 0), (1, 0), (2, 0), *resent]
    is_remembered = bool(stage.transmitter.senders[1].last_rejection)
    assert (is_given and not resent) == is_remembered  # what was sent again is no longer refused


# --- the end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [
        lambda stage: stage.acknowledge(1, 1),
        lambda stage: stage.stored[1].clear(),
        lambda stage: stage.transmitter.finish(1),
        lambda stage: stage.transmitter.close(),
    ],
    ids=["acknowledged", "the rows are gone", "finished", "closed"],
)
@virtual_time
async def test_nothing_is_sent_after_the_end(end: Callable[[Stage], None]) -> None:
    stage = await sent(b"a")

    end(stage)
    stage.transmitter.on_paths_changed()
    stage.transmitter.on_capacity()
    await asyncio.sleep(20 * FIRST_WAIT)

    assert stage.link.places() == [(0, 0)]
    assert (stage.transmitter.senders, stage.transmitter.budget.loaded_bytes) == ({}, 0)


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_new_settings_hold_for_dialogs_under_way_and_messages_are_cut_as_those_before(stage: Stage) -> None:
    transmitter, before = stage.transmitter, stage.transmitter.tuning.fragment_size
    tuning = DialogTuning(Backoff(3.0, 9.0), Travel(5, 3000), window=7, fragment_size=1, window_bytes=5000)
    stage.send(1, b"a")

    transmitter.apply(tuning)
    stage.send(2, b"b")

    for endpoint_id in (1, 2):
        outbound = transmitter.senders[endpoint_id].outbound
        window = outbound.window
        assert (tuning.backoff, 7, 5000) == (outbound.round_trip.backoff, window.frames_max, window.bytes_max)
    assert dataclasses_replace(tuning, fragment_size=before) == transmitter.tuning
    assert tuning.travel == transmitter.frames.travel
