"""Timers, windows and bounds of the sending side; where each fragment is: `tests/property/test_conversation.py`."""

import pytest

from broker.conversation.outbound import HELD_MAX, REFUSED_WAIT_MIN, Outbound, Outgoing
from broker.conversation.window import FIRST_FRAMES, FLOOR, LEAST_FRAMES, NEVER, Backoff, RoundTrip, Window
from broker.protocol.layout import Flag

FIRST, CAP = 4.0, 64.0
NOW = 1000.0
SIZE = 10
LAST = int(Flag.LAST_FRAGMENT)


def _fragments(sequence: int, count: int) -> list[Outgoing]:
    """A message of so many fragments."""
    return [Outgoing((sequence, n), LAST if n == count - 1 else 0, bytes(SIZE)) for n in range(count)]


def _outbound(*fragments: int, first: int = 0, frames: int = 1024, size: int = 1 << 20) -> Outbound:
    """Loaded with messages of so many fragments each."""
    outbound = Outbound(RoundTrip(Backoff(FIRST, CAP)), Window(frames, size), (first, 0))
    for sequence, count in enumerate(fragments, first):
        for fragment in _fragments(sequence, count):
            outbound.offer(fragment)
    return outbound


def _take_all(outbound: Outbound, now: float = NOW) -> list[tuple[int, int]]:
    """The places sent, as far as the window allows."""
    places = []
    while outbound.has_unsent:
        places.append(outbound.pop(now)[0].place)
    return places


# --- sending --------------------------------------------------------------------------------------------------------


def test_fragments_are_taken_in_order() -> None:
    """The first one sets the timer, and later ones leave it."""
    outbound = _outbound(2, 1, 3)

    outbound.pop(NOW)
    assert _take_all(outbound, NOW + 1) == [(0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert (outbound.in_flight, outbound.in_flight_bytes, outbound.loaded, outbound.loaded_bytes) == (6, 60, 6, 60)
    assert outbound.resend_at == NOW + FIRST


@pytest.mark.parametrize(
    ("fragments", "frames", "size", "room"),
    [
        (0, 1024, 1 << 20, (2 * FIRST_FRAMES, 1 << 20)),
        (100, 1024, 1 << 20, (28, (1 << 20) - 1000)),
        (0, 1, 1, (1, 1)),
        (1, 1, 1, (0, 0)),
        (200, 1024, 1 << 20, (0, (1 << 20) - 2000)),
    ],
)
def test_room_to_load_is_twice_the_window_within_its_bounds(
    fragments: int, frames: int, size: int, room: tuple[int, int]
) -> None:
    assert room == _outbound(*[fragments] * bool(fragments), frames=frames, size=size).room


# --- cumulative acknowledgement -------------------------------------------------------------------------------------


def test_acknowledgement_restarts_the_timer_while_something_is_in_flight() -> None:
    outbound = _outbound(1, 1)
    _take_all(outbound)
    timers = []

    for sequence in (1, 2):
        outbound.acknowledge((sequence, 0), NOW + 3)
        timers.append(outbound.resend_at - (NOW + 3) - outbound.round_trip.timeout)

    assert timers == [0.0, NEVER]


def test_old_acknowledgement_changes_nothing() -> None:
    outbound = _outbound(2, 3)
    _take_all(outbound)
    outbound.acknowledge((1, 1), NOW)
    before = (outbound.in_flight, outbound.window.frames, outbound.resend_at, outbound.loaded)

    done = [outbound.acknowledge(old, NOW + 9) for old in ((1, 1), (1, 0), (0, 1), (0, 0))]

    assert done == [0, 0, 0, 0]
    assert before == (outbound.in_flight, outbound.window.frames, outbound.resend_at, outbound.loaded)


def test_acknowledgement_from_the_future_ends_what_is_loaded() -> None:
    outbound = _outbound(2, 1)
    outbound.pop(NOW)

    outbound.acknowledge((9, 0), NOW)

    assert (outbound.loaded, outbound.loaded_bytes, outbound.in_flight, outbound.in_flight_bytes) == (0, 0, 0, 0)
    assert (outbound.load_from, outbound.resend_at) == ((9, 0), NEVER)


def test_place_beyond_the_end_of_a_message_never_skips_its_last_fragment() -> None:
    """A far side that claims fragments which do not exist must not make this side send such fragments."""
    outbound = _outbound()
    outbound.acknowledge((5, 3), NOW)
    assert outbound.load_from == (5, 3)  # where loading begins with the last one there is

    outbound.offer(_fragments(5, 1)[0])
    sent = _take_all(outbound)
    outbound.rewind()

    assert [sent, _take_all(outbound)] == [[(5, 0)]] * 2
    assert outbound.acknowledge((6, 0), NOW) == 1
    assert outbound.in_flight == 0


# --- round trips ----------------------------------------------------------------------------------------------------


def test_round_trip_is_measured_by_what_was_sent_last_of_what_has_arrived_and_sets_the_timer() -> None:
    outbound = _outbound(2, 1)
    outbound.pop(NOW)
    outbound.pop(NOW + 2)

    outbound.acknowledge((1, 0), NOW + 2.01)

    assert outbound.round_trip.smoothed == pytest.approx(0.01)
    outbound.pop(NOW + 3)
    assert outbound.resend_at == NOW + 3 + FLOOR


def test_frame_that_was_sent_again_is_not_measured() -> None:
    outbound = _outbound(2)
    outbound.pop(NOW)
    outbound.rewind()
    _take_all(outbound, NOW + 1)

    outbound.acknowledge((1, 0), NOW + 1.1)

    assert outbound.round_trip.smoothed is None


def test_sent_at_is_when_the_first_in_flight_was_sent() -> None:
    outbound = _outbound(3)
    instants = [outbound.sent_at]

    for after in range(3):
        outbound.pop(NOW + after)
    for place in ((0, 0), (0, 1), (1, 0)):
        outbound.acknowledge(place, NOW + 3)
        instants.append(outbound.sent_at)

    assert instants == [-NEVER, NOW, NOW + 1, -NEVER]


# --- selective acknowledgement --------------------------------------------------------------------------------------


def test_hole_is_not_lost_before_its_time_other_gateways_may_be_slower() -> None:
    outbound = _outbound(1, 3)
    outbound.pop(NOW - 1)
    outbound.acknowledge((1, 0), NOW - 0.9)  # a round trip of 0.1 s
    outbound.pop(NOW)
    outbound.pop(NOW + 0.001)

    outbound.acknowledge((1, 0), NOW + 0.05, ((1, 1, 1),))
    meanwhile = _take_all(outbound, NOW + 0.05)
    due = outbound.loss_check_at
    outbound.detect_losses(due)

    assert meanwhile == [(1, 2)]  # what follows goes on
    assert due == NOW + outbound.round_trip.patience
    assert _take_all(outbound, due) == [(1, 0)]


def test_losses_of_one_window_shrink_it_once() -> None:
    outbound = _outbound(40)
    for now in range(40):
        outbound.pop(NOW + now / 1000)

    outbound.acknowledge((0, 0), NOW + 1, ((0, 10, 39),))
    windows = [outbound.window.frames]
    for number in range(10):
        outbound._passed[number].retry_at = NOW + 2 + number
        outbound.detect_losses(NOW + 2 + number)
        windows.append(outbound.window.frames)

    assert windows == [windows[0]] + [windows[0] // 2] * 10


def test_what_is_remembered_of_what_is_said_is_bounded() -> None:
    outbound = _outbound()

    outbound.acknowledge((0, 0), NOW, tuple((n, 0, 0) for n in range(10_000)))

    assert len(outbound._held_there) == HELD_MAX


# --- refusals of the next hop ---------------------------------------------------------------------------------------


def test_refusals_one_after_the_other_make_longer_waits_and_progress_forgets_them() -> None:
    outbound = _outbound(2)
    waits = []
    now = NOW
    outbound.pop(now)
    outbound.pop(now)
    for _ in range(4):
        outbound.refuse((0, 0), now + 0.01, 0.0)
        waits.append(round(outbound.loss_check_at - now - 0.01, 3))
        now = outbound.loss_check_at
        outbound.detect_losses(now)
        outbound.pop(now)
    outbound.acknowledge((0, 1), now)
    outbound.refuse((0, 1), now + 0.01, 0.0)

    assert waits == [REFUSED_WAIT_MIN * factor for factor in (1, 2, 4, 8)]
    assert outbound._passed[0].retry_at - now - 0.01 == pytest.approx(REFUSED_WAIT_MIN)


def test_refusals_of_one_burst_count_once() -> None:
    outbound = _outbound(3)
    _take_all(outbound)

    for number in range(3):
        outbound.refuse((0, number), NOW + 0.01, 0.0)

    assert [one.retry_at for one in outbound._passed] == [NOW + 0.01 + REFUSED_WAIT_MIN] * 3


@pytest.mark.parametrize("place", [(0, 2), (7, 7)], ids=["not sent yet", "unknown"])
def test_refusal_of_what_is_not_under_way_is_no_trouble(place: tuple[int, int]) -> None:
    outbound = _outbound(3, frames=2)
    _take_all(outbound)

    outbound.refuse(place, NOW, 0.5)

    assert outbound.loss_check_at == NEVER


# --- a broken path, silence -----------------------------------------------------------------------------------------


def test_time_out_unloads_shrinks_the_window_and_waits_longer_each_time() -> None:
    outbound = _outbound(100)
    _take_all(outbound)
    waits = []

    for _ in range(3):
        outbound.time_out()
        left = (outbound.window.frames, outbound.in_flight, outbound.loaded, outbound.loaded_bytes)
        assert left == (LEAST_FRAMES, 0, 0, 0)
        outbound.offer(_fragments(0, 100)[0])
        outbound.pop(NOW)
        waits.append(outbound.resend_at - NOW)

    assert waits == [8.0, 16.0, 32.0]


@pytest.mark.parametrize(
    ("time_outs", "place", "frames"),
    [
        (2, (0, 50), FIRST_FRAMES // 2),
        (2, (0, 4), 2 * LEAST_FRAMES),
        (2, (0, 3), 2 * LEAST_FRAMES - 1),
        (1, (0, 64), FIRST_FRAMES // 2),
    ],
    ids=["it was only slow", "it was lost", "less than was sent since", "before anything was sent again"],
)
def test_answer_to_what_was_sent_before_the_silence_brings_half_of_the_window_back(
    time_outs: int, place: tuple[int, int], frames: int
) -> None:
    outbound = _outbound(100)
    _take_all(outbound)
    for _ in range(time_outs):
        outbound.time_out()
    if time_outs > 1:
        for fragment in _fragments(0, 100)[:8]:
            outbound.offer(fragment)
        assert _take_all(outbound) == [(0, number) for number in range(LEAST_FRAMES)]

    outbound.acknowledge(place, NOW)

    assert frames == outbound.window.frames


def test_measured_progress_forgets_the_attempts() -> None:
    outbound = _outbound(2)
    outbound.time_out()
    for fragment in _fragments(0, 2):
        outbound.offer(fragment)
    _take_all(outbound)

    outbound.acknowledge((0, 1), NOW + 1)

    assert (outbound.round_trip.attempts, outbound.resend_at) == (0, NOW + 1 + 3.0)


def test_rest_keeps_nothing_and_the_time_at_which_it_ends() -> None:
    outbound = _outbound(3)
    _take_all(outbound)

    outbound.unload_until_resend()

    assert (outbound.loaded, outbound.in_flight, outbound.resend_at) == (0, 0, NOW + FIRST)
    outbound.acknowledge((0, 1), NOW + 1)
    assert outbound.resend_at == NEVER
