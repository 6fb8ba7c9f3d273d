"""States, the place of an arrival, fragments, and what the sending side still has to get acknowledged."""

from __future__ import annotations

import pytest

from broker.dialog.conversation import (
    CAN_SEND,
    EARLY_WINDOW,
    FIRST_WINDOW,
    NEVER,
    TAKES_MESSAGES,
    TRANSITIONS,
    Arrival,
    Backoff,
    Happening,
    Outbound,
    Outgoing,
    State,
    after,
    place,
)
from broker.wire.layout import Flag

BACKOFF = Backoff(first=4.0, cap=64.0)
NOW = 1000.0
LAST = int(Flag.LAST_FRAGMENT)


def _message(sequence: int, fragments: int = 1) -> Outgoing:
    return Outgoing(100 + sequence, sequence, 0, bytes(10 * fragments), 10)


def _outbound(*fragments: int, first: int = 0, window_max: int = 1024) -> Outbound:
    """Loaded with messages of so many fragments each."""
    outbound = Outbound(BACKOFF, window_max)
    for number, count in enumerate(fragments):
        outbound.offer(_message(first + number, count))
    return outbound


def _take_all(outbound: Outbound, now: float = NOW) -> list[tuple[int, int]]:
    """The places sent, as far as the window allows."""
    places = []
    while outbound.has_unsent:
        message, fragment, _ = outbound.take(now)
        places.append((message.sequence, fragment))
    return places


# --- states -------------------------------------------------------------------------------------------------

STEPS = [
    # state, then what it becomes by: first sent, first received, end received, error received, ended here, end acked
    ("SO", "CO", None, None, "ER", "CD", None),
    ("SI", None, "CO", None, "ER", "DO", None),
    ("CO", None, None, "DI", "ER", "DO", None),
    ("DI", None, None, None, "ER", "CD", None),
    ("DO", None, None, "CD", "CD", None, "CD"),
    ("ER", None, None, None, None, "CD", None),
    ("CD", None, None, None, None, None, None),
]


@pytest.mark.parametrize("row", STEPS, ids=lambda row: row[0])
def test_transitions_are_those_of_the_documented_states(row: tuple[str, ...]) -> None:
    state = State(row[0])

    steps = tuple(TRANSITIONS.get((state, happening)) for happening in Happening)

    assert row[1:] == steps


def test_what_may_be_sent_and_taken_in_which_state() -> None:
    assert {"SO", "CO"} == CAN_SEND
    assert {"SO", "SI", "CO"} == TAKES_MESSAGES


def test_every_state_ends_closed() -> None:
    """From anywhere END CONVERSATION, and at most its acknowledgement, leads to CLOSED."""
    for state in set(State) - {State.CLOSED}:
        ended = TRANSITIONS.get((state, Happening.ENDED_HERE), state)
        assert State.CLOSED in {ended, TRANSITIONS.get((ended, Happening.END_ACKNOWLEDGED))}


# --- inbound ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "sequence", "fragment", "arrival"),
    [
        ((0, 0), 0, 0, Arrival.EXPECTED),
        ((5, 2), 5, 2, Arrival.EXPECTED),
        ((5, 2), 5, 1, Arrival.DUPLICATE),
        ((5, 2), 4, 9, Arrival.DUPLICATE),
        ((5, 2), 5, 3, Arrival.EARLY),
        ((5, 2), 6, 0, Arrival.EARLY),
        ((5, 2), 5 + EARLY_WINDOW - 1, 9, Arrival.EARLY),
        ((5, 2), 5 + EARLY_WINDOW, 0, Arrival.TOO_EARLY),
        ((5, 2), 2**64 - 1, 2**32 - 1, Arrival.TOO_EARLY),
    ],
)
def test_place_tells_what_a_fragment_is(
    expected: tuple[int, int], sequence: int, fragment: int, arrival: Arrival
) -> None:
    assert arrival is place(expected, sequence, fragment)


@pytest.mark.parametrize(
    ("where", "flags", "expected"),
    [
        ((0, 0), 0, (0, 1)),
        ((0, 0), LAST, (1, 0)),
        ((7, 3), LAST | Flag.END_DIALOG, (8, 0)),
        ((7, 3), int(Flag.ERROR), (7, 4)),
    ],
)
def test_last_fragment_makes_the_next_message_expected(
    where: tuple[int, int], flags: int, expected: tuple[int, int]
) -> None:
    assert expected == after(where, flags)


# --- fragments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "flags", "expected"),
    [
        (b"", 0, [(b"", LAST)]),
        (b"123", 0, [(b"123", LAST)]),
        (b"1234", 0, [(b"1234", LAST)]),
        (b"12345", 0, [(b"1234", 0), (b"5", LAST)]),
        (b"12345678", int(Flag.ERROR), [(b"1234", Flag.ERROR), (b"5678", Flag.ERROR | LAST)]),
        (b"", int(Flag.END_DIALOG), [(b"", Flag.END_DIALOG | LAST)]),
    ],
)
def test_message_is_cut_into_fragments(body: bytes, flags: int, expected: list[tuple[bytes, int]]) -> None:
    message = Outgoing(1, 0, flags, body, fragment_size=4)

    assert expected == [message.fragment(number) for number in range(message.fragments)]


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 4.0), (1, 8.0), (2, 16.0), (3, 32.0), (4, 64.0), (5, 64.0), (10**9, 64.0)]
)
def test_wait_doubles_up_to_the_cap(attempts: int, seconds: float) -> None:
    assert seconds == BACKOFF.wait(attempts)


# --- outbound: sending --------------------------------------------------------------------------------------


def test_nothing_offered_is_nothing_to_send() -> None:
    outbound = _outbound()

    outbound.rewind()

    assert not outbound.has_unsent
    assert (outbound.in_flight, outbound.resend_at, outbound.sent_at) == (0, NEVER, None)


def test_fragments_are_taken_in_order() -> None:
    outbound = _outbound(2, 1, 3)

    assert _take_all(outbound) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert (outbound.in_flight, outbound.loaded_bytes) == (6, 60)


def test_first_fragment_taken_sets_the_timer_and_later_ones_leave_it() -> None:
    outbound = _outbound(3)

    for now in (NOW, NOW + 1):
        outbound.take(now)

    assert (outbound.resend_at, outbound.sent_at) == (NOW + 4, NOW + 1)


def test_no_more_is_sent_than_the_first_window_holds() -> None:
    outbound = _outbound(FIRST_WINDOW + 5)

    assert len(_take_all(outbound)) == FIRST_WINDOW


@pytest.mark.parametrize("window_max", [1, FIRST_WINDOW - 1])
def test_configured_window_below_the_first_one_holds(window_max: int) -> None:
    outbound = _outbound(200, window_max=window_max)

    sent = len(_take_all(outbound))
    outbound.acknowledge(0, 1, NOW)

    assert (sent, outbound.window) == (window_max, window_max)
    outbound.time_out()
    assert outbound.window == window_max


def test_window_grows_by_what_is_acknowledged_up_to_the_configured_one() -> None:
    outbound = _outbound(300, window_max=FIRST_WINDOW + 10)
    windows = []
    _take_all(outbound)

    for fragment in (4, 9, 40):
        outbound.acknowledge(0, fragment, NOW)
        windows.append(outbound.window)

    assert windows == [FIRST_WINDOW + 4, FIRST_WINDOW + 9, FIRST_WINDOW + 10]


# --- outbound: acknowledgements -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequence", "fragment", "done", "in_flight", "left"),
    [
        (0, 0, 0, 6, 3),  # acknowledges nothing
        (0, 1, 0, 5, 3),
        (1, 0, 1, 4, 2),
        (2, 0, 2, 3, 1),
        (2, 2, 2, 1, 1),
        (3, 0, 3, 0, 0),
        (0, 99, 0, 5, 3),  # more fragments than the message has: it is not known to be whole
        (9, 0, 3, 0, 0),
    ],
)
def test_acknowledgement_covers_everything_before_it(
    sequence: int, fragment: int, done: int, in_flight: int, left: int
) -> None:
    outbound = _outbound(2, 1, 3)
    _take_all(outbound)

    finished = outbound.acknowledge(sequence, fragment, NOW + 1)

    assert (done, in_flight, left) == (finished, outbound.in_flight, len(outbound.messages))
    assert sequence == outbound.acknowledged_sequence
    assert sum(len(message.body) for message in outbound.messages) == outbound.loaded_bytes


def test_acknowledgement_restarts_the_timer_while_something_is_in_flight() -> None:
    outbound = _outbound(1, 1)
    _take_all(outbound)
    timers = []

    for sequence in (1, 2):
        outbound.acknowledge(sequence, 0, NOW + 3)
        timers.append(outbound.resend_at)

    assert timers == [NOW + 7, NEVER]


def test_old_acknowledgement_changes_nothing() -> None:
    outbound = _outbound(2, 3)
    _take_all(outbound)
    outbound.acknowledge(1, 1, NOW)
    before = (outbound.in_flight, outbound.window, outbound.resend_at, list(outbound.messages))

    done = [outbound.acknowledge(*old, NOW + 9) for old in ((1, 1), (1, 0), (0, 1), (0, 0))]

    assert done == [0, 0, 0, 0]
    assert before == (outbound.in_flight, outbound.window, outbound.resend_at, list(outbound.messages))


def test_fragment_sizes_count_each_frame_once_across_partial_acknowledgements() -> None:
    outbound = _outbound(4, 4)
    _take_all(outbound)
    in_flight = []

    for place_ in ((0, 1), (0, 3), (1, 0), (1, 2), (2, 0)):
        outbound.acknowledge(*place_, NOW)
        in_flight.append(outbound.in_flight)

    assert in_flight == [7, 5, 4, 2, 0]


def test_sending_goes_on_behind_what_was_sent_when_the_window_opens() -> None:
    outbound = _outbound(2, 70)
    _take_all(outbound)

    outbound.acknowledge(1, 1, NOW)

    assert [(1, number) for number in range(62, 68)] == _take_all(outbound)[:6]


# --- outbound: again ----------------------------------------------------------------------------------------


def test_rewind_starts_at_the_first_unacknowledged_fragment() -> None:
    outbound = _outbound(2, 3)
    _take_all(outbound)
    outbound.acknowledge(1, 1, NOW)

    outbound.rewind()

    assert (outbound.in_flight, outbound.resend_at) == (0, NEVER)
    assert _take_all(outbound) == [(1, 1), (1, 2)]


def test_what_was_sent_before_is_a_resend_and_what_follows_is_not() -> None:
    outbound = _outbound(2, 2)
    for _ in range(3):
        outbound.take(NOW)

    outbound.rewind()

    assert [outbound.take(NOW)[2] for _ in range(4)] == [True, True, True, False]


def test_acknowledgement_that_comes_after_the_rewind_is_not_sent_again() -> None:
    outbound = _outbound(2, 3)
    _take_all(outbound)
    outbound.rewind()
    outbound.take(NOW)

    outbound.acknowledge(1, 2, NOW)

    assert outbound.in_flight == 0
    assert _take_all(outbound) == [(1, 2)]


def test_broken_path_keeps_window_and_waiting_time() -> None:
    outbound = _outbound(80)
    _take_all(outbound)
    outbound.acknowledge(0, 8, NOW)

    outbound.rewind()

    assert (outbound.window, outbound.attempts) == (FIRST_WINDOW + 8, 0)


def test_time_out_unloads_shrinks_the_window_and_waits_longer_each_time() -> None:
    outbound = _outbound(100)
    _take_all(outbound)
    outbound.acknowledge(0, 50, NOW)
    waits = []

    for _ in range(3):
        outbound.time_out()
        left = (outbound.window, outbound.in_flight, len(outbound.messages), outbound.loaded_bytes)
        assert left == (FIRST_WINDOW, 0, 0, 0)
        outbound.offer(_message(0, 100))
        outbound.take(NOW)
        waits.append(outbound.resend_at - NOW)

    assert waits == [8.0, 16.0, 32.0]


def test_progress_forgets_the_attempts() -> None:
    outbound = _outbound(2)
    outbound.time_out()
    outbound.offer(_message(0, 2))
    _take_all(outbound)

    outbound.acknowledge(0, 1, NOW)

    assert (outbound.attempts, outbound.resend_at) == (0, NOW + 4)


def test_message_offered_again_goes_on_where_it_was_acknowledged() -> None:
    outbound = _outbound(5)
    _take_all(outbound)
    outbound.acknowledge(0, 3, NOW)

    outbound.unload()
    outbound.offer(_message(0, 5))

    assert (_take_all(outbound), outbound.in_flight) == ([(0, 3), (0, 4)], 2)


def test_acknowledgement_while_unloaded_counts_when_the_message_comes_back() -> None:
    outbound = _outbound(1, 5)
    _take_all(outbound)
    outbound.unload()

    outbound.acknowledge(1, 4, NOW)
    outbound.offer(_message(1, 5))

    assert _take_all(outbound) == [(1, 4)]
    assert outbound.acknowledge(2, 0, NOW) == 1
    assert (outbound.in_flight, outbound.resend_at) == (0, NEVER)


def test_place_beyond_the_end_of_a_message_never_skips_its_last_fragment() -> None:
    """A far side that claims fragments which do not exist must not make this side send such fragments."""
    outbound = _outbound()
    outbound.acknowledge(5, 3, NOW)

    outbound.offer(_message(5, 1))
    sent = _take_all(outbound)
    outbound.rewind()

    assert [sent, _take_all(outbound)] == [[(5, 0)]] * 2
    assert outbound.acknowledge(6, 0, NOW) == 1
    assert outbound.in_flight == 0


def test_messages_after_a_restart_begin_where_the_store_says() -> None:
    outbound = _outbound(2, 1, first=40)

    assert _take_all(outbound) == [(40, 0), (40, 1), (41, 0)]
    assert (outbound.acknowledge(41, 0, NOW), outbound.in_flight) == (1, 1)
