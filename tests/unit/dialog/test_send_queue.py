"""One timer for many instants."""

import asyncio
from collections import Counter

import pytest

from broker.conversation.frames import Contact
from broker.conversation.outbound import Outbound, Outgoing
from broker.conversation.window import NEVER, Backoff, RoundTrip, Window
from broker.dialog import send_queue as module
from broker.dialog.send_queue import (
    GUARD_TURNS,
    MICROSECONDS,
    QUANTUM_BYTES,
    SILENCE,
    AckHorizon,
    FairQueue,
    LoadBudget,
    RoundTripCounts,
    Sender,
    TimerHeap,
    count_round_trip,
)
from broker.forwarding.latency import bucket
from broker.protocol.layout import Flag
from broker.routing.address import NetworkAddress
from broker.store.port import LoadedFragments, LoadRequest
from tests.support.virtual_time import virtual_time


@virtual_time
async def test_alarms_ring_in_their_order_until_they_are_closed() -> None:
    rung: list[tuple[float, int]] = []
    timers = TimerHeap(lambda at, endpoint_id: rung.append((at, endpoint_id)))

    for endpoint_id, at in ((1, 3.0), (2, 1.0), (3, 2.0)):
        timers.set(sender(endpoint_id), at)
    first = timers.next_at
    await asyncio.sleep(2.5)

    assert (first, rung, timers.next_at) == (1.0, [(1.0, 2), (2.0, 3)], 3.0)
    for _ in range(2):
        timers.close()
        timers.set(sender(4), 4.0)
    await asyncio.sleep(5.0)
    assert 2 == len(rung)


@virtual_time
async def test_alarm_is_moved_forward_and_never_back() -> None:
    rung: list[float] = []
    timers = TimerHeap(lambda at, _: rung.append(at))
    one = sender(1)

    for at in (3.0, 5.0, 1.0):
        timers.set(one, at)
    await asyncio.sleep(10.0)

    assert (one.timer_at, rung) == (1.0, [1.0, 3.0])


def test_who_sent_later_waits_while_acknowledgements_come_in() -> None:
    """One that comes late takes nothing back, and shows that the line moves."""
    horizon = AckHorizon()
    turns = [horizon.due_at("A", 2.0, -NEVER)]

    horizon.record("A", sent_at=1.0, now=5.0)

    turns += [horizon.due_at("A", sent_at, -NEVER) for sent_at in (0.5, 1.0, 2.0)]
    assert turns == [-NEVER, -NEVER, -NEVER, 5.0 + SILENCE]
    assert horizon.due_at("B", 2.0, -NEVER) == -NEVER
    horizon.record("A", sent_at=3.0, now=5.0)
    horizon.record("A", sent_at=1.0, now=6.0)
    assert [horizon.due_at("A", sent_at, -NEVER) for sent_at in (2.0, 4.0)] == [-NEVER, 6.0 + SILENCE]


@pytest.mark.parametrize(("sent_at", "acked_at"), [(5.0, -NEVER), (6.0, 2.0), (2.0, 5.0)])
def test_who_has_heard_of_nobody_else_since_is_alone(sent_at: float, acked_at: float) -> None:
    """It was acknowledged something itself, or sent only then."""
    horizon = AckHorizon()

    horizon.record("A", sent_at=1.0, now=5.0)

    assert horizon.due_at("A", sent_at, acked_at) == -NEVER


def test_services_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was not heard of for longest is forgotten."""
    monkeypatch.setattr(module, "SERVICES_MAX", 2)
    horizon = AckHorizon()

    for service in "ABAC":
        horizon.record(service, sent_at=1.0, now=5.0)

    assert [horizon.due_at(service, 2.0, -NEVER) > 0 for service in "ABC"] == [True, False, True]


def sender(endpoint_id: int, priority: int = 5, *, frames: int = 10, size: int = 1000) -> Sender:
    outbound = Outbound(RoundTrip(Backoff(1.0, 64.0)), Window(frames, size))
    return Sender(endpoint_id, Contact(bytes(16), True, "A", bytes(16), "B"), outbound, (0, 0), priority)


LAST = int(Flag.LAST_FRAGMENT)
SIZE = 100


class Desk:
    """A loading, and its senders."""

    def __init__(self, count: int = 1) -> None:
        self.waiting: set[int] = set()
        self.senders = {
            endpoint_id: sender(endpoint_id, frames=1000, size=8 << 20) for endpoint_id in range(1, count + 1)
        }
        self.budget = LoadBudget(self.senders, SIZE, waiting=self.waiting)

    def load(self, endpoint_id: int, fragments: int) -> Sender:
        """A sender wants something, and so many fragments come."""
        sender = self.senders[endpoint_id]
        self.budget.check(sender)
        (want,) = self.budget.requests()
        first = want.place[0]
        came = [Outgoing((first + number, 0), LAST, bytes(SIZE)) for number in range(fragments)]
        assert self.budget.on_loaded(sender, LoadedFragments(want, came, is_all=not came))
        return sender


@pytest.mark.parametrize("hindrance", ["is_loading", "no more", "resting", "full"])
def test_who_could_do_nothing_with_it_wants_nothing(hindrance: str) -> None:
    desk = Desk()
    sender = desk.load(1, 128)
    sender.is_loading = hindrance == "is_loading"
    if hindrance == "no more":
        sender.outbound.unload()
        sender.has_more = False
    elif hindrance == "resting":
        sender.outbound.pop(0.0)
        sender.outbound.unload_until_resend()

    desk.budget.check(sender)

    assert not desk.budget


def test_what_comes_behind_something_unloaded_meanwhile_is_not_taken() -> None:
    desk = Desk()
    sender = desk.load(1, 2)
    desk.budget.check(sender)
    (want,) = desk.budget.requests()
    desk.budget.time_out(sender)

    assert not desk.budget.on_loaded(sender, LoadedFragments(want, [Outgoing((2, 0), LAST, b"")], is_all=True))
    assert (sender.is_loading, sender.has_more, sender.outbound.loaded) == (False, True, 0)


def test_what_was_not_loaded_is_wanted_again() -> None:
    desk = Desk()
    desk.budget.check(desk.senders[1])
    wants = desk.budget.requests()

    desk.budget.requeue([*wants, LoadRequest(99, (0, 0), 1, 1)])

    assert desk.budget.requests() == wants


@pytest.mark.parametrize("is_silent", [True, False])
def test_who_is_silent_makes_room_for_others_and_wants_nothing_itself(
    monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    """But no sender that has something itself makes others unload for more."""
    desk = Desk(2)
    one = desk.load(1, 3)
    if is_silent:
        one.outbound.pop(0.0)
        one.outbound.round_trip.time_out()
    else:
        desk.load(2, 3)
        desk.waiting.add(1)
    monkeypatch.setattr(module, "LOADED_MAX_BYTES", desk.budget.loaded_bytes)
    for sender in desk.senders.values():
        desk.budget.check(sender)

    wants = desk.budget.requests()

    assert ([2] * is_silent, is_silent) == ([want.endpoint_id for want in wants], one.is_unloaded)
    assert (0 if is_silent else 3) == one.outbound.loaded


def test_one_turn_loads_for_so_many_and_the_others_are_asked_for_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who rests takes no place of theirs."""
    monkeypatch.setattr(module, "LOADS_MAX", 2)
    desk = Desk(6)
    for sender in desk.senders.values():
        desk.budget.check(sender)
    desk.senders[1].outbound.resend_at = 5.0

    turns = [[want.endpoint_id for want in desk.budget.requests()] for _ in range(4)]

    assert turns == [[2, 3], [4, 5], [6], []]


def test_round_trip_is_noted_once_under_the_next_hop() -> None:
    """Of an answer that says nothing new nothing is noted."""
    sender = with_fragment()
    sender.next_hop = FAR
    sender.outbound.pop(10.0)
    trips: RoundTripCounts = Counter()

    done = [sender.on_acknowledged((1, 0), now, (), trips, AckHorizon()) for now in (10.25, 11.0)]

    assert done == [1, 0]
    assert trips == {(FAR, bucket(0.25)): 1, (FAR, MICROSECONDS): 250_000}


def test_sender_stands_in_a_line_no_longer_than_the_longest_wait() -> None:
    """What was in flight before was acknowledged, and what it has in flight was not."""
    horizon = AckHorizon()
    sender = with_fragment()
    horizon.record("B", sent_at=9.0, now=20.0)
    horizon.record("another one", sent_at=11.0, now=30.0)
    turns = [sender.resend_due_at(horizon)]
    sender.outbound.pop(10.0)
    turns.append(sender.resend_due_at(horizon))
    horizon.record("B", sent_at=9.5, now=14.0)
    turns.append(sender.resend_due_at(horizon))
    horizon.record("B", sent_at=10.5, now=14.5)

    turns.append(sender.resend_due_at(horizon))

    assert turns == [-NEVER, 18.0, 14.0 + SILENCE, -NEVER]


def test_answer_tells_how_far_its_service_has_got_unless_it_may_be_to_an_earlier_copy() -> None:
    horizon = AckHorizon()
    for is_resent in (True, False):
        sender = with_fragment(f"B{is_resent}")
        sender.outbound.pop(10.0)
        if is_resent:
            sender.outbound.rewind()
            sender.outbound.pop(11.0)

        sender.on_acknowledged((1, 0), 12.0, (), Counter(), horizon)

    assert [horizon.due_at(f"B{is_resent}", 10.5, -NEVER) for is_resent in (True, False)] == [-NEVER, 12.0 + SILENCE]


def with_fragment(service: str = "B") -> Sender:
    """A dialog with this service that has one fragment to send."""
    outbound = Outbound(RoundTrip(Backoff(1.0, 8.0)), Window(8, 1 << 20))
    outbound.offer(Outgoing((0, 0), LAST, b"x"))
    return Sender(1, Contact(bytes(16), True, "A", bytes(16), service), outbound, (0, 0))


NEAR, FAR = NetworkAddress("near", 1), NetworkAddress("far", 1)


def test_trips_are_counted_in_their_bucket_and_in_the_sum_and_next_hops_past_the_bound_are_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TRIPS_MAX", 2)
    counted: RoundTripCounts = Counter()

    for hop, seconds in [(NEAR, 0.003), (NEAR, 0.004), (FAR, 0.003), (None, 1.5), (NEAR, 0.003)]:
        count_round_trip(counted, hop, seconds)

    assert counted == {
        (NEAR, bucket(0.003)): 3,
        (NEAR, MICROSECONDS): 10_000,
        (None, bucket(0.003)): 1,
        (None, bucket(1.5)): 1,
        (None, MICROSECONDS): 1_503_000,
    }


def play(turns: FairQueue, count: int, frame: dict[int, int]) -> list[int]:
    """FairQueue of senders that always have more; each sends frames of its size while it has credit."""
    order = []
    for _ in range(count):
        one = turns.pop()
        while one.credit > 0:
            one.credit -= frame[one.endpoint_id]
            order.append(one.endpoint_id)
        turns.add(one)
    return order


@pytest.mark.parametrize("large", [3 * QUANTUM_BYTES // 2, 15 << 20])
def test_senders_get_the_same_bytes_whatever_the_size_of_their_frames(large: int) -> None:
    turns = FairQueue()
    frame = {1: 1000, 2: large}
    for endpoint_id in frame:
        turns.add(sender(endpoint_id))

    order = play(turns, 20 * large // QUANTUM_BYTES, frame)

    sent = {endpoint_id: frames * frame[endpoint_id] for endpoint_id, frames in Counter(order).items()}
    assert abs(sent[1] - sent[2]) <= large + QUANTUM_BYTES


def test_higher_priority_is_first_and_lower_ones_move_as_well() -> None:
    turns = FairQueue()
    for priority in (5, 10, 1, 10):
        turns.add(sender(priority, priority=priority))
    one = turns.pop()
    assert 10 == one.endpoint_id
    for _ in range(2):
        turns.add(one)

    turns_of = Counter(play(turns, 16 * GUARD_TURNS, dict.fromkeys((10, 5, 1), QUANTUM_BYTES)))

    assert turns_of[10] == 14 * GUARD_TURNS
    assert {5: 8, 1: 8} == {priority: turns_of[priority] for priority in (5, 1)}
