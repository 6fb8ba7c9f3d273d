"""Each frame that arrives is told once: what became of it, as it came, when that is known."""

import pytest

from broker.conversation.frames import Contact, Fragment, Travel, message_frame
from broker.conversation.outbound import Outgoing
from broker.dialog import journal_hooks as module
from broker.dialog.journal_hooks import ReceiverJournal, SenderJournal
from broker.flow import Disposition
from broker.forwarding.entry import Queued, UnknownOrigin
from broker.forwarding.ring import Ring
from broker.protocol.layout import Flag
from tests.support.forwarding import make_frame
from tests.support.visits import VisitRecord, decode


class Desk:
    """ReceiverJournal with a ring that follows everything."""

    def __init__(self) -> None:
        self.ring = Ring(1 << 16, sample=1, adjacent_of=lambda _: "peer")
        self.journal = ReceiverJournal(self.ring)

    def arrive(self, now: float, *frames: bytes) -> None:
        self.ring.begin(now, UnknownOrigin(), is_from_here=False)
        for frame in frames:
            self.journal.on_received(frame, is_ack=False)

    def told(self) -> list[tuple[int, Disposition | None, float, float]]:
        """(sequence number, what became of it, arrival, end) of each record."""
        return [
            (record.header.sequence_number, record.disposition, record.arrival.entered, record.left)
            for record in self.records()
        ]

    def records(self) -> list[VisitRecord]:
        return list(decode(self.ring.take()))


@pytest.fixture
def frames() -> list[bytes]:
    return [make_frame(sequence_number=number, hop_count=2) for number in range(5)]


def test_frames_are_told_with_the_pass_in_which_they_came(frames: list[bytes]) -> None:
    desk = Desk()
    desk.arrive(1.0, *frames[:2])
    desk.arrive(2.0, frames[2])

    desk.journal.begin(3, 0)
    desk.arrive(3.0, frames[3])
    assert [] == desk.told()
    desk.journal.finish([Disposition.DELIVERED, Disposition.DUPLICATE, Disposition.DELIVERED], 4.0)
    first = desk.records()
    desk.journal.begin(1, 0)
    desk.journal.finish([Disposition.CORRUPTED], 5.0)

    assert [(1, "peer"), (1, "peer"), (1, "peer")] == [
        (record.header.hop_count, record.arrival.adjacent_in) for record in first
    ]
    assert [(3, Disposition.CORRUPTED, 3.0, 5.0)] == desk.told()
    expected = [Disposition.DELIVERED, Disposition.DUPLICATE, Disposition.DELIVERED]
    assert expected == [record.disposition for record in first]
    assert [1.0, 1.0, 2.0] == [record.arrival.entered for record in first]


def test_what_the_store_failed_with_is_dropped_and_what_waits_is_not(frames: list[bytes]) -> None:
    desk = Desk()
    desk.arrive(1.0, *frames[:2])
    desk.journal.begin(2, 0)
    desk.arrive(2.0, frames[2])

    desk.journal.drop(Disposition.STORE_FAILED, 3.0)
    desk.journal.begin(1, 0)
    desk.journal.finish([Disposition.DELIVERED], 4.0)

    failed = [(number, Disposition.STORE_FAILED, 1.0, 3.0) for number in range(2)]
    assert [*failed, (2, Disposition.DELIVERED, 2.0, 4.0)] == desk.told()


def test_acknowledgements_are_told_behind_the_messages_that_they_came_before(frames: list[bytes]) -> None:
    """What is not taken at all is told at once, and what is not stored in the end is dropped."""
    desk = Desk()
    desk.arrive(1.0)
    for frame, is_ack in zip(frames, (True, False, True, False, True), strict=True):
        desk.journal.on_received(frame, is_ack=is_ack)
    desk.journal.refuse(frames[0], Disposition.STORE_BUSY, 1.5)
    assert [(0, Disposition.STORE_BUSY, 1.0, 1.5)] == desk.told()

    desk.journal.begin(1, 2)
    traced = {(b"c" * 16, False, 1): "span", (b"c" * 16, True, 2): "of the other direction"}
    desk.journal.finish([Disposition.DELIVERED, Disposition.DUPLICATE, Disposition.CORRUPTED], 2.0, traced)
    desk.journal.close(3.0)

    told = [(1, Disposition.DELIVERED), (0, Disposition.DUPLICATE), (2, Disposition.CORRUPTED)]
    left = [(3, Disposition.SHUTDOWN), (4, Disposition.SHUTDOWN)]
    records = desk.records()
    assert [*told, *left] == [(record.header.sequence_number, record.disposition) for record in records]
    assert ["span", "", "", "", ""] == [record.arrival.trace_parent for record in records]


LAST = int(Flag.LAST_FRAGMENT)
WALL, NOW = 1_750_000_100.0, 100.0


class WitnessDesk:
    """A witness with a ring."""

    def __init__(self, sample: float = 1.0) -> None:
        self.ring = Ring(1 << 16, sample=sample)
        self.journal = SenderJournal(self.ring)
        self._ids = 0

    def send(self, *places: tuple[int, int], flags: int = LAST, endpoint_id: int = 1, is_resend: bool = False) -> None:
        """Fragments leave that were queued half a second after each other."""
        for place in places:
            self._ids += 1
            contact = Contact(endpoint_id.to_bytes(16, "big"), True, "Orders", b"h" * 16, "Far")
            fragment = Outgoing(place, flags, b"body", enqueued_at=WALL - 50 + place[0] / 2)
            message_id = self._ids.to_bytes(16, "big")
            frame = message_frame(contact, Travel(), message_id, Fragment(place, flags, b"body", (0, 0)))
            self.journal.on_sent(endpoint_id, frame, fragment, is_resend=is_resend)

    def acknowledge(self, *place: int, after: float = 0.0) -> list[VisitRecord]:
        self.journal.on_acknowledged(1, (place[0], place[1]), now=NOW + after, wall=WALL + after)
        return list(decode(self.ring.take()))


def places(records: list[VisitRecord]) -> list[tuple[int, int]]:
    return [record.header.place for record in records]


def ids(records: list[VisitRecord]) -> list[int]:
    return [int.from_bytes(record.header.message_id, "big") for record in records]


def test_what_is_sent_goes_with_when_it_was_queued_and_whether_it_was_sent_before() -> None:
    desk = WitnessDesk()
    desk.send((0, 0), (1, 0))
    desk.send((0, 0), is_resend=True)

    expected = [Queued(WALL - 50, False), Queued(WALL - 49.5, False), Queued(WALL - 50, True)]
    assert {number.to_bytes(16, "big"): one for number, one in enumerate(expected, 1)} == desk.journal.pop_queued()
    assert {} == desk.journal.pop_queued()


def test_span_of_the_application_goes_with_a_traced_message_whoever_samples_its_dialog() -> None:
    desk = WitnessDesk(sample=0.0)
    contact = Contact(bytes(16), True, "Orders", b"h" * 16, "Far")
    flags = LAST | int(Flag.TRACE)
    frame = message_frame(contact, Travel(), b"m" * 16, Fragment((0, 0), flags, b"body", (0, 0)))

    desk.journal.on_sent(
        1, frame, Outgoing((0, 0), flags, b"body", enqueued_at=WALL, trace_parent="p"), is_resend=False
    )

    assert {b"m" * 16: Queued(WALL, False, "p")} == desk.journal.pop_queued()
    (record,) = desk.acknowledge(1, 0)
    assert "p" == record.arrival.queued[b"m" * 16].trace_parent


def test_acknowledged_fragments_are_told_once_with_their_newest_copy() -> None:
    desk = WitnessDesk()
    desk.send((0, 0), (1, 0), (2, 0))
    desk.send((1, 0), is_resend=True)

    first, again, rest = desk.acknowledge(2, 0), desk.acknowledge(2, 0), desk.acknowledge(3, 0, after=1.0)

    assert [(0, 0), (1, 0)] == places(first)
    assert [1, 4] == ids(first)
    assert ([], [(2, 0)]) == (again, places(rest))
    assert [(None, None, NOW - 50, NOW)] * 2 == [
        (record.entry, record.disposition, record.arrival.entered, record.left) for record in first
    ]
    assert [NOW + 1] == [record.left for record in rest]
    queued = [record.arrival.queued[record.header.message_id].enqueued_at for record in first + rest]
    assert [WALL - 50, WALL - 49.5, WALL - 49] == queued


def test_last_fragment_is_acknowledged_with_its_message() -> None:
    desk = WitnessDesk()
    desk.send((0, 0), (0, 1), flags=0)
    desk.send((0, 2), (1, 0))

    assert [(0, 0)] == places(desk.acknowledge(0, 1))
    assert [(0, 1)] == places(desk.acknowledge(0, 7))
    assert [(0, 2)] == places(desk.acknowledge(1, 0))
    desk.journal.on_acknowledged(1, (2, 0), now=NOW, wall=WALL - 3600)
    (record,) = decode(desk.ring.take())
    assert NOW == record.arrival.entered, "a clock that went back does not make it queued later than now"


def test_above_the_bound_acknowledgements_are_shed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SENT_MAX", 2)
    desk = WitnessDesk()
    desk.send((0, 0), (1, 0), (2, 0))
    desk.send((2, 0), is_resend=True)

    assert 1 == desk.ring.shed
    assert 4 == len(desk.journal.pop_queued())
    assert [(0, 0), (1, 0)] == places(desk.acknowledge(3, 0))
    desk.send((3, 0), (4, 0))
    desk.journal.forget(1)
    desk.send((0, 0), (1, 0), endpoint_id=2)
    assert 1 == desk.ring.shed


def test_only_sampled_dialogs_are_followed_and_none_without_a_ring() -> None:
    conversations = [number.to_bytes(16, "big") for number in range(200)]
    desk = WitnessDesk(0.3)

    followed = [desk.journal.follows(one) for one in conversations]

    assert {True, False} == set(followed)
    assert [desk.ring.follows(one) for one in conversations] == followed
    nobody = SenderJournal(None)
    assert not any(map(nobody.follows, conversations))
    nobody.on_acknowledged(1, (1, 0), now=NOW, wall=WALL)
    nobody.forget(1)
    assert {} == nobody.pop_queued()
