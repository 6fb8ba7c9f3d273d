"""Each visit of a frame that is followed is one record, whole when it ends; the ring counts what has no room in it."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from broker.flow import Disposition
from broker.forwarding import ring as module
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin, PassOrigin, Queued
from broker.forwarding.outbox import Outbox
from broker.forwarding.pool import HELD_OVERHEAD
from broker.forwarding.ring import HEAD_BYTES, Ring, Sample, mix
from broker.protocol.frame import decode_dialog
from broker.protocol.layout import HEADER_BYTES, Flag, FrameKind
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.route import Route
from tests.support.forwarding import HERE, NOW, ForwarderStation, Sender, Wire, make_frame
from tests.support.kernel import Walker
from tests.support.visits import VisitRecord, decode

NORTH, WEST, EAST = NetworkAddress("north"), NetworkAddress("west"), NetworkAddress("east")
ROUTES = (
    Route("ToNorth", NORTH, remote_service_name="//north"),
    Route("West", WEST, remote_service_name="//far"),
    Route("East", EAST, remote_service_name="//far"),
    Route("Here", LOCAL, remote_service_name="//here"),
)


class Station(ForwarderStation):
    """A forwarder with a ring; `asked` from whom it asked the name, `given` what a database got."""

    def __init__(self, sample: float = 1, *, capacity: int = 1 << 20, pool_bytes: int = 100_000) -> None:
        self.asked: list[str] = []
        self.given: list[list[tuple[bytes, PassOrigin]]] = []
        self.ring = Ring(capacity, sample=sample, adjacent_of=self.name_of)
        super().__init__(*ROUTES, ring=self.ring, pool_bytes=pool_bytes, share_percent=100)

    def deliver(self, database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        self.given.append([(frame, self.ring.arrival_of(frame)) for frame in frames])

    def name_of(self, origin: FrameOrigin) -> str:
        self.asked.append(origin.name if isinstance(origin, Sender) else "")
        return self.asked[-1]

    def records(self) -> list[VisitRecord]:
        return list(decode(self.ring.take()))

    def story(self) -> list[tuple[object, ...]]:
        """Which frame came and went when, and what became of it."""
        return story(self.records())


def story(records: list[VisitRecord]) -> list[tuple[object, ...]]:
    return [(one.header.sequence_number, one.arrival.entered, one.left, one.disposition) for one in records]


def next_hop(record: VisitRecord) -> object:
    assert record.entry is not None
    return record.entry.sink.address if isinstance(record.entry.sink, Outbox) else None


def route(record: VisitRecord) -> str:
    assert record.entry is not None
    return record.entry.route


pytestmark = pytest.mark.usefixtures("kernel_name")


# --- which frames ---


def test_all_frames_of_sampled_dialogs_are_recorded_and_no_others() -> None:
    station, sample = Station(0.3), Sample(0.3)
    station.connect(NORTH)
    ids = [n.to_bytes(16, "big") for n in range(200)]

    for _ in range(2):
        station.take(*(make_frame(to_service="//north", conversation_id=each) for each in ids))

    recorded = [record.header.conversation_id for record in station.records()]
    assert [each for each in ids if each in sample] * 2 == recorded


def test_frame_with_the_trace_flag_is_recorded_whatever_the_sample() -> None:
    station = Station(0)
    station.connect(NORTH)
    flags = [0, Flag.TRACE, Flag.LAST_FRAGMENT, Flag.TRACE | Flag.FROM_TARGET, 0xDF]

    for _ in range(2):
        station.take(*(make_frame(to_service="//north", flags=each) for each in flags))

    assert [Flag.TRACE, Flag.TRACE | Flag.FROM_TARGET] * 2 == [record.header.flags for record in station.records()]


@pytest.mark.parametrize(
    ("fields", "disposition", "hop_count"),
    [
        ({"to_service": "//nobody", "hop_count": 3}, Disposition.NO_ROUTE, 3),
        ({"to_service": "//north", "hop_count": 16}, Disposition.HOPS_EXHAUSTED, 16),
        ({"to_service": "//north", "time_to_live": 5, "time_consumed": 5}, Disposition.LIFETIME_EXCEEDED, 0),
    ],
)
def test_every_frame_that_leads_nowhere_is_recorded_once(
    fields: dict[str, Any], disposition: Disposition, hop_count: int
) -> None:
    station = Station(0)
    station.connect(NORTH)

    for _ in range(2):
        station.take(*[make_frame(**fields)] * 2, make_frame(to_service="//north"))
    records = station.records()

    assert [(0, NOW, NOW, disposition)] * 4 == story(records)
    assert {hop_count} == {record.header.hop_count for record in records}


# --- what they say ---


@pytest.mark.parametrize("is_served", [True, False])
def test_what_a_database_here_sends_has_spent_no_hop(*, is_served: bool) -> None:
    """How long it was queued goes with its arrival."""
    station = Station()
    forwarder, frame = station.forwarder, make_frame(to_service="//north")
    wire = station.connect(NORTH, 1 << 20 if is_served else 0)
    way = station.entry_of(frame, database=HERE)
    queued = {decode_dialog(frame)[0].message_id: Queued(5.0, is_resend=True)}

    forwarder.submit([(way, frame)], NOW, Sender("database"), queued)
    wire.breathe()
    forwarder.table.outbox(NORTH).drain(NOW + 1)
    forwarder.submit([(way, frame)], NOW + 1, Sender("database"))
    first, second = station.records()

    assert (True, 0, NOW) == (first.arrival.is_from_here, first.header.hop_count, first.arrival.entered)
    assert (NOW + (not is_served), way) == (first.left, first.entry)
    assert (queued, {}) == (first.arrival.queued, second.arrival.queued)


# --- frames that wait ---


@pytest.mark.parametrize("sample", [0, 1])
@pytest.mark.parametrize(
    ("end", "later", "why"),
    [
        ("expire", NOW + 3, Disposition.EXPIRED_HERE),
        ("drain", NOW + 3, Disposition.EXPIRED_HERE),
        ("abandon", NOW + 3, Disposition.SHUTDOWN),
        ("narrow", NOW + 1, Disposition.FRAME_TOO_LARGE),
    ],
)
def test_frame_that_waited_and_is_dropped_is_recorded_then(
    sample: float, end: str, later: float, why: Disposition
) -> None:
    station = Station(sample)
    outbox = station.forwarder.table.outbox(NORTH)
    station.take(make_frame(to_service="//north", time_to_live=2000, hop_count=1))

    if end == "expire":
        station.forwarder.expire(later)
    elif end == "abandon":
        station.forwarder.drop_all(later)
    else:
        outbox.outlet = Wire(max_frame=10 if end == "narrow" else 1 << 20)
        outbox.drain(later)
    (record,) = station.records()

    assert [(0, NOW, later, why)] == story([record])
    assert (1, (later - NOW) * 1000) == (record.header.hop_count, record.header.time_consumed)
    assert (NORTH, "peer") == (next_hop(record), record.arrival.adjacent_in)


@pytest.mark.parametrize("sample", [0, 1])
def test_frames_that_an_outbox_refuses_are_recorded_once_with_why(sample: float) -> None:
    room = len(make_frame(to_service="//north")) + HELD_OVERHEAD
    station = Station(sample, pool_bytes=room)
    first, second = (make_frame(to_service="//north", sequence_number=n, hop_count=4) for n in range(2))

    station.take(first, first, second)
    held = station.records()
    station.take(first, now=NOW + 1)
    wire = station.connect(NORTH)
    station.forwarder.table.outbox(NORTH).drain(NOW + 2)
    wire.is_narrow, wire.max_frame = True, len(first)
    station.take(first, make_frame(b"x" * 500, to_service="//north", sequence_number=2, hop_count=4), now=NOW + 3)
    told = station.records()

    assert [(0, NOW, NOW, Disposition.ALREADY_HELD), (1, NOW, NOW, Disposition.POOL_LIMIT)] == story(held)
    expected = [
        (0, NOW + 1, NOW + 1, Disposition.ALREADY_HELD),
        (0, NOW, NOW + 2, Disposition.FORWARDED),
        (0, NOW + 3, NOW + 3, Disposition.FORWARDED),
        (2, NOW + 3, NOW + 3, Disposition.FRAME_TOO_LARGE),
    ]
    assert [each for each in expected if sample or each[3] is not Disposition.FORWARDED] == story(told)
    assert {(4, NORTH)} == {(record.header.hop_count, next_hop(record)) for record in held + told}
    assert station.ring.shed == 0


def test_routes_that_change_in_the_middle_of_a_pass_change_no_record_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    station = Station()
    wire = station.connect(NORTH)

    def send(data: Buffer) -> int:
        station.lead(Route("Other", EAST, remote_service_name="//far"))
        return len(data)

    monkeypatch.setattr(wire, "send", send)
    station.take(make_frame(to_service="//north"), make_frame(to_service="//far", sequence_number=1))
    assert [(0, NOW, NOW, Disposition.FORWARDED)] == station.story()
    station.forwarder.expire(NOW + 60)

    assert [(1, NOW, NOW + 60, Disposition.EXPIRED_HERE)] == station.story()
    assert station.ring.shed == 0


@pytest.mark.parametrize("sample", [0, 1])
@pytest.mark.promise("R6.6")
def test_frame_that_waits_for_a_principal_is_one_visit(sample: float) -> None:
    station = Station(sample)
    station.lead(Route("Pair", NORTH, "//pair", UUID(int=9), mirror_address=WEST))

    for n in range(2):
        station.take(make_frame(to_service="//pair", to_broker_instance=UUID(int=9).bytes, sequence_number=n))
    assert [] == station.story()
    station.forwarder.expire(NOW + 60)

    assert [(n, NOW, NOW + 60, Disposition.EXPIRED_HERE) for n in range(2)] == station.story()
    assert station.ring.shed == 0


# --- frames that move ---


@pytest.mark.parametrize("sample", [0, 1])
def test_frames_that_move_are_one_visit_each_whatever_becomes_of_them(sample: float) -> None:
    station = Station(sample)
    station.connect(WEST, 0)
    frames = [make_frame(to_service="//far", sequence_number=n, time_to_live=5000 + n, hop_count=1) for n in range(3)]
    station.take(frames[0], sender=Sender("one"))
    station.take(*frames[1:], now=NOW + 1, sender=Sender("two"))
    station.cut(WEST)
    wire = station.connect(EAST, len(frames[0]))

    station.mend(NOW + 2)  # the first leaves at once, the others wait there
    moved = station.records()
    wire.breathe(len(frames[0]))
    station.forwarder.table.outbox(EAST).drain(NOW + 3)
    left = station.records()
    station.forwarder.expire(NOW + 9)
    lost = station.records()

    assert [(0, NOW, NOW + 2, Disposition.FORWARDED)] * int(sample) == story(moved)
    assert [(1, NOW + 1, NOW + 3, Disposition.FORWARDED)] * int(sample) == story(left)
    assert [(2, NOW + 1, NOW + 9, Disposition.EXPIRED_HERE)] == story(lost)
    told = moved + left + lost
    assert {("East", EAST, 1)} == {(route(record), next_hop(record), record.header.hop_count) for record in told}
    assert ["one", "two", "two"][-len(told) :] == [record.arrival.adjacent_in for record in told]
    assert [2000, 2000, 8000][-len(told) :] == [record.header.time_consumed for record in told]
    assert station.ring.shed == 0


# --- bounds ---


def record_bytes(frame: bytes) -> int:
    header, _ = decode_dialog(frame)
    return HEAD_BYTES + HEADER_BYTES + len(header.to_service) + len(header.from_service)


@pytest.mark.parametrize("spare", [0, 1, -1])
def test_what_finds_no_room_is_shed_and_counted(spare: int) -> None:
    frames = [make_frame(to_service="//north", sequence_number=n) for n in range(6)]
    capacity = 4 * record_bytes(frames[0]) + spare
    station = Station(capacity=capacity)
    station.connect(NORTH)
    fit = 4 if spare >= 0 else 3

    def numbers() -> list[int]:
        return [record.header.sequence_number for record in station.records()]

    station.take(frames[0])
    station.take(*frames[1:])
    assert (list(range(fit)), 6 - fit) == (numbers(), station.ring.shed)
    station.take(*frames[:2])

    assert ([0, 1], 6 - fit, capacity) == (numbers(), station.ring.shed, len(station.ring.buffer))


def test_shed_record_is_lost_only_when_its_visit_ends() -> None:
    frames = [make_frame(to_service="//north", sequence_number=n) for n in range(3)]
    station = Station(capacity=record_bytes(frames[0]))

    station.take(*frames)
    assert ([], 0) == (station.story(), station.ring.shed)
    station.connect(NORTH)
    station.forwarder.table.outbox(NORTH).drain(NOW + 1)

    assert ([(0, NOW, NOW + 1, Disposition.FORWARDED)], 2) == (station.story(), station.ring.shed)


def test_what_was_taken_is_gone_from_the_ring_and_stays_as_it_was() -> None:
    station = Station()
    station.connect(NORTH)
    station.take(make_frame(to_service="//north"), make_frame(to_service="//here"))
    taken = station.ring.take()
    before = list(decode(taken))

    station.take(make_frame(to_service="//nobody", sequence_number=9), now=NOW + 1, sender=Sender("later"))

    assert (2, before) == (len(before), list(decode(taken)))
    assert [9] == [record.header.sequence_number for record in station.records()]
    assert [] == station.records()


def test_number_of_a_way_that_is_no_more_is_free_only_when_its_records_were_taken() -> None:
    walker = Walker()
    ring = Ring(1 << 20, sample=1)

    def enter(name: str) -> ForwardingEntry:
        way = walker.way(name, FrameKind.MESSAGE)
        ring.enter(make_frame(to_service=name), 0, way, 0)
        return way

    gone, stays = enter("gone"), enter("stays")
    ring.retire([gone])
    walker.ways.clear()
    early = enter("early")
    first = ring.take()
    late = enter("late")
    second = ring.take()

    assert [gone, stays, early] == [record.entry for record in decode(first)]
    assert [late] == [record.entry for record in decode(second)]
    assert {stays, early, late} == {way for way, _ in second.endings.values()}
    assert max(second.endings) == 2


def test_where_frames_come_from_is_asked_once_for_a_pass_and_only_if_it_is_recorded() -> None:
    station = Station(0)
    station.connect(NORTH)
    station.take(make_frame(to_service="//north"), sender=Sender("unasked"))

    station.take(*[make_frame(to_service="//nobody")] * 3, make_frame(to_service="//north"), sender=Sender("asked"))

    assert ["asked"] == station.asked
    assert ["asked"] * 3 == [record.arrival.adjacent_in for record in station.records()]


def test_retired_outboxes_take_their_numbers_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.forwarding.fib.INVENTED_MAX", 1)
    station = Station()
    station.lead(*ROUTES, Route("Anywhere", TRANSPORT))
    invented = make_frame(to_service="tcp://invented/x", sequence_number=1)
    station.take(invented, make_frame(to_service="//here"))

    station.connect(NetworkAddress("invented"))
    station.forwarder.table.outbox(NetworkAddress("invented")).drain(NOW)
    station.cut(NetworkAddress("invented"))
    station.forwarder.expire(NOW)
    first, second = station.ring.take(), station.ring.take()

    assert ["Here", "Anywhere"] == [route(record) for record in decode(first)]
    assert ["Here"] == [way and way.route for way, _ in second.endings.values()]


# --- what databases tell ---


def hand_over(station: Station, frame: bytes, **more: Any) -> tuple[bytes, PassOrigin]:
    """What a database gets of a frame, and how it came."""
    station.take(frame, **more)
    (given,) = station.given.pop()
    return given


@pytest.mark.parametrize("sample", [0, 1])
def test_databases_tell_of_followed_frames_and_of_all_that_are_dropped(sample: float) -> None:
    station = Station(sample)
    followed, arrival = hand_over(station, make_frame(to_service="//here", flags=Flag.TRACE), sender=Sender("near"))
    plain, _ = hand_over(station, make_frame(to_service="//here"))
    station.records()
    ways = [Disposition.DELIVERED, Disposition.DUPLICATE, None, Disposition.OUT_OF_SEQUENCE]

    for disposition in ways:
        station.ring.report(plain, disposition, arrival, NOW + 1)
        station.ring.report(followed, disposition, arrival, NOW + 1)
    records = station.records()

    assert {(None, NOW + 1)} == {(one.entry, one.left) for one in records}
    assert all((NOW, "near", False, {}, "") == one.arrival for one in records)
    told = [(record.disposition, bool(record.header.flags & Flag.TRACE)) for record in records]
    assert [(each, True) for each in ways] == [one for one in told if one[1]]
    expected = ways if sample else [Disposition.OUT_OF_SEQUENCE]
    assert [(each, False) for each in expected] == [one for one in told if not one[1]]
    assert sample == station.ring.follows(decode_dialog(plain)[0].conversation_id)


def test_what_is_told_in_the_middle_of_a_pass_is_not_taken_back() -> None:
    ring = Ring(1000, sample=1)
    frame = make_frame(to_service="//here", hop_count=1)
    way = Walker().way("x", FrameKind.MESSAGE)
    ring.begin(NOW, Sender("peer"), is_from_here=False)
    ring.enter(frame, 0, way, 0)

    ring.report(frame, Disposition.STORE_BUSY, ring.arrival_of(frame), NOW)
    ring.take_back(frame)

    assert [Disposition.STORE_BUSY] == [record.disposition for record in decode(ring.take())]


def test_frame_that_waited_comes_to_a_database_with_its_own_arrival() -> None:
    station = Station()
    station.take(make_frame(to_service="//north", hop_count=1), sender=Sender("one"))
    station.lead(Route("Here", LOCAL, remote_service_name="//north"), here="//north")

    station.forwarder.reroute_waiting(NOW + 1)
    ((got, arrival),) = station.given.pop()
    station.ring.report(got, Disposition.DELIVERED, arrival, NOW + 2)

    passed, verdict = station.records()
    assert [(NOW, NOW + 1), (NOW, NOW + 2)] == [(one.arrival.entered, one.left) for one in (passed, verdict)]
    assert {(1, "one")} == {(one.header.hop_count, one.arrival.adjacent_in) for one in (passed, verdict)}
    assert passed.entry is not None
    assert verdict.entry is None


# --- sample ---
# Sampling is by dialog, the same everywhere, and as frequent as asked for, however ids are made.


def test_mix_is_what_the_format_says() -> None:
    found = {bytes(16): 0x48218226FF3CD4BF, bytes(range(16)): 0xF271C405951A95E2, b"\xff" * 16: 0x4650BC0EB3312E23}

    assert found == {conversation_id: mix(conversation_id) for conversation_id in found}


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.5, 0.9])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: n.to_bytes(16, "big"),
        lambda n: n.to_bytes(16, "little"),
        lambda n: n.to_bytes(8, "big") * 2,
        lambda n: (n << 64 | n ^ 0xFFFF).to_bytes(16, "big"),
        lambda n: n.to_bytes(4, "big") + b"\x40" + bytes(11),
    ],
)
def test_sample_is_as_large_as_asked_for_whatever_the_ids_look_like(
    fraction: float, make: Callable[[int], bytes]
) -> None:
    sample, count = Sample(fraction), 4000

    hits = sum(make(n) in sample for n in range(count))

    deviation = (count * fraction * (1 - fraction)) ** 0.5
    assert abs(hits - count * fraction) < 5 * deviation


def test_bounds_are_nothing_and_everything() -> None:
    ids = [bytes(16), bytes(8) + (0xE220A8397B1DCDAF).to_bytes(8, "big"), b"\xff" * 16]

    assert [False] * 3 == [each in Sample(0) for each in ids]
    assert [True] * 3 == [each in Sample(1) for each in ids]
    assert [False, True, False] == [each in Sample(2**-53) for each in ids]  # the mix of one of them is 0


def test_verdicts_are_the_same_when_they_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [n.to_bytes(16, "big") for n in range(50)]
    expected = [each in Sample(0.5) for each in ids]
    monkeypatch.setattr(module, "KNOWN_MAX", 7)
    sample = Sample(0.5)

    assert [expected] * 2 == [[each in sample for each in ids] for _ in range(2)]
    assert len(sample._known) <= 7
