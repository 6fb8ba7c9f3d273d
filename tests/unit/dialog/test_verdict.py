"""Each frame that arrives is told once: what became of it, as it came, when that is known."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.dialog.journal_hooks import Verdicts
from broker.flow import Disposition
from broker.forwarding.ring import Record, Ring, decode
from broker.forwarding.way import Buffer, Queued
from broker.wire.frame import Header, encode_dialog
from broker.wire.layout import Kind


class Peer:
    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        raise AssertionError


class Desk:
    """Verdicts with a ring that follows everything."""

    def __init__(self) -> None:
        self.ring = Ring(1 << 16, sample=1, adjacent_of=lambda _: "peer")
        self.verdicts = Verdicts(self.ring)

    def arrive(self, now: float, *frames: bytes) -> None:
        self.ring.begin(now, Peer(), is_from_here=False)
        for frame in frames:
            self.verdicts.expect(frame, is_ack=False)

    def told(self) -> list[tuple[int, Disposition | None, float, float]]:
        """(sequence number, what became of it, arrival, end) of each record."""
        return [
            (record.header.sequence_number, record.disposition, record.arrival.entered, record.left)
            for record in self.records()
        ]

    def records(self) -> list[Record]:
        return list(decode(self.ring.take()))


def make_frame(number: int, hop_count: int) -> bytes:
    header = Header(Kind.MESSAGE, 0, b"m" * 16, b"c" * 16, "Orders", "Far", b"f" * 16, sequence_number=number)
    header.hop_count = hop_count
    return encode_dialog(header, b"body")


@pytest.fixture
def frames() -> list[bytes]:
    return [make_frame(number, 2) for number in range(5)]


def test_frames_are_told_with_the_pass_in_which_they_came(frames: list[bytes]) -> None:
    desk = Desk()
    desk.arrive(1.0, *frames[:2])
    desk.arrive(2.0, frames[2])

    desk.verdicts.begin(3, 0)
    desk.arrive(3.0, frames[3])
    assert [] == desk.told()
    desk.verdicts.judge([Disposition.DELIVERED, Disposition.DUPLICATE, Disposition.DELIVERED], 4.0)
    first = desk.records()
    desk.verdicts.begin(1, 0)
    desk.verdicts.judge([Disposition.CORRUPTED], 5.0)

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
    desk.verdicts.begin(2, 0)
    desk.arrive(2.0, frames[2])

    desk.verdicts.drop(Disposition.STORE_FAILED, 3.0)
    desk.verdicts.begin(1, 0)
    desk.verdicts.judge([Disposition.DELIVERED], 4.0)

    failed = [(number, Disposition.STORE_FAILED, 1.0, 3.0) for number in range(2)]
    assert [*failed, (2, Disposition.DELIVERED, 2.0, 4.0)] == desk.told()


def test_what_waits_longer_than_a_turn_stores_is_told_with_the_next_one(frames: list[bytes]) -> None:
    desk = Desk()
    desk.arrive(1.0, *frames[:3])

    desk.verdicts.begin(2, 0)
    desk.verdicts.judge([Disposition.DELIVERED, Disposition.DUPLICATE], 2.0)
    desk.verdicts.begin(1, 0)
    desk.verdicts.judge([Disposition.DELIVERED], 3.0)

    told = [(0, Disposition.DELIVERED), (1, Disposition.DUPLICATE), (2, Disposition.DELIVERED)]
    assert told == [(number, disposition) for number, disposition, _, _ in desk.told()]


def test_acknowledgements_are_told_behind_the_messages_that_they_came_before(frames: list[bytes]) -> None:
    desk = Desk()
    desk.arrive(1.0)
    for frame, is_ack in zip(frames, (True, False, True, False, True), strict=True):
        desk.verdicts.expect(frame, is_ack=is_ack)

    desk.verdicts.begin(1, 2)
    desk.verdicts.judge([Disposition.DELIVERED, Disposition.DUPLICATE, Disposition.CORRUPTED], 2.0)
    desk.verdicts.close(3.0)

    told = [(1, Disposition.DELIVERED), (0, Disposition.DUPLICATE), (2, Disposition.CORRUPTED)]
    left = [(3, Disposition.SHUTDOWN), (4, Disposition.SHUTDOWN)]
    assert [*told, *left] == [(number, disposition) for number, disposition, _, _ in desk.told()]


def test_frame_that_is_not_taken_at_all_is_told_at_once(frames: list[bytes]) -> None:
    desk = Desk()
    desk.arrive(1.0)

    desk.verdicts.refuse(frames[0], Disposition.STORE_BUSY, 1.5)

    assert [(0, Disposition.STORE_BUSY, 1.0, 1.5)] == desk.told()


def test_what_is_not_stored_in_the_end_is_dropped(frames: list[bytes]) -> None:
    desk = Desk()
    desk.arrive(1.0, frames[0])
    desk.verdicts.begin(1, 0)
    desk.arrive(2.0, frames[1])

    desk.verdicts.close(3.0)

    assert [(0, Disposition.SHUTDOWN, 1.0, 3.0), (1, Disposition.SHUTDOWN, 2.0, 3.0)] == desk.told()


def test_frame_of_a_database_here_came_when_it_was_sent_however_long_it_was_queued() -> None:
    desk = Desk()
    frame = make_frame(0, 0)
    desk.ring.begin(7.0, Peer(), is_from_here=True, queued={b"m" * 16: Queued(1.0, is_resend=True)})
    desk.verdicts.expect(frame, is_ack=False)
    desk.verdicts.begin(1, 0)

    desk.verdicts.judge([Disposition.DELIVERED], 8.0)
    (record,) = desk.records()

    assert (7.0, {}, True, 0) == (
        record.arrival.entered,
        record.arrival.queued,
        record.arrival.is_from_here,
        record.header.hop_count,
    )


def test_writer_that_says_too_little_is_a_bug(frames: list[bytes]) -> None:
    desk = Desk()
    desk.arrive(1.0, *frames[:2])
    desk.verdicts.begin(2, 0)

    with pytest.raises(ValueError, match="shorter"):
        desk.verdicts.judge([Disposition.DELIVERED], 2.0)


def test_span_of_the_application_goes_with_the_messages_that_have_one(frames: list[bytes]) -> None:
    desk = Desk()
    desk.arrive(1.0, *frames[:3])
    desk.verdicts.begin(3, 0)

    traced = {(b"c" * 16, False, 1): "span", (b"c" * 16, True, 2): "of the other direction"}
    desk.verdicts.judge([Disposition.DELIVERED] * 3, 2.0, traced)

    assert ["", "span", ""] == [record.arrival.trace_parent for record in desk.records()]
