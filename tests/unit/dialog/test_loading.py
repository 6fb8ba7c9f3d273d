"""How much of the transmission queue is in memory, and for whom; the transmitter's tests play the rest."""

from __future__ import annotations

import pytest

from broker.conversation.frames import Contact
from broker.conversation.outbound import Outbound, Outgoing
from broker.conversation.window import Backoff, RoundTrip, Window
from broker.dialog import send_queue as module
from broker.dialog.send_queue import LOAD_BYTES, LOADED_MAX_BYTES, Loading, Sender
from broker.store.sending import Loaded, Want
from broker.wire.layout import Flag

LAST = int(Flag.LAST_FRAGMENT)
SIZE = 100


class Desk:
    """A loading, and its senders."""

    def __init__(self, count: int = 1) -> None:
        self.waiting: set[int] = set()
        self.senders = {endpoint_id: _sender(endpoint_id) for endpoint_id in range(1, count + 1)}
        self.loading = Loading(self.senders, SIZE, waits=self.waiting.__contains__)

    def load(self, endpoint_id: int, fragments: int) -> Sender:
        """A sender wants something, and so many fragments come."""
        sender = self.senders[endpoint_id]
        self.loading.look(sender)
        (want,) = self.loading.wants()
        first = want.place[0]
        came = [Outgoing((first + number, 0), LAST, bytes(SIZE)) for number in range(fragments)]
        assert self.loading.loaded(sender, Loaded(want, came, is_all=not came))
        return sender


def _sender(endpoint_id: int) -> Sender:
    outbound = Outbound(RoundTrip(Backoff(1.0, 64.0)), Window(1000, 8 << 20))
    return Sender(endpoint_id, Contact(bytes(16), True, "A", bytes(16), "B"), outbound, (0, 0))


def test_window_decides_what_is_wanted() -> None:
    desk = Desk()
    desk.loading.look(desk.senders[1])

    assert desk.loading
    assert desk.loading.wants() == [Want(1, (0, 0), 128, LOAD_BYTES)]
    assert not desk.loading


@pytest.mark.parametrize("hindrance", ["is_loading", "no more", "resting", "full"])
def test_who_could_do_nothing_with_it_wants_nothing(hindrance: str) -> None:
    desk = Desk()
    sender = desk.load(1, 128)
    sender.is_loading = hindrance == "is_loading"
    if hindrance == "no more":
        sender.outbound.unload()
        sender.has_more = False
    elif hindrance == "resting":
        sender.outbound.take(0.0)
        sender.outbound.rest()

    desk.loading.look(sender)

    assert not desk.loading


def test_loaded_bytes_are_counted_and_given_back() -> None:
    desk = Desk(2)
    one, two = desk.load(1, 3), desk.load(2, 1)
    counts = [desk.loading.loaded_bytes]

    one.outbound.acknowledge((1, 0), 0.0)
    desk.loading.charge(one)
    counts.append(desk.loading.loaded_bytes)
    desk.loading.time_out(one)
    counts.append(desk.loading.loaded_bytes)
    for _ in range(2):
        desk.loading.forget(two)
    counts.append(desk.loading.loaded_bytes)

    assert counts == [4 * SIZE, 3 * SIZE, SIZE, 0]
    assert one.has_more


def test_what_comes_behind_something_unloaded_meanwhile_is_not_taken() -> None:
    desk = Desk()
    sender = desk.load(1, 2)
    desk.loading.look(sender)
    (want,) = desk.loading.wants()
    desk.loading.time_out(sender)

    assert not desk.loading.loaded(sender, Loaded(want, [Outgoing((2, 0), LAST, b"")], is_all=True))
    assert (sender.is_loading, sender.has_more, sender.outbound.loaded) == (False, True, 0)


def test_nothing_is_wanted_while_the_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(2)
    desk.load(1, 3)
    desk.loading.look(desk.senders[2])

    monkeypatch.setattr(module, "LOADED_MAX_BYTES", 3 * SIZE)
    full = (desk.loading.max_bytes, desk.loading.wants(), bool(desk.loading))
    monkeypatch.setattr(module, "LOADED_MAX_BYTES", LOADED_MAX_BYTES)

    assert full == (0, [], True)
    assert [want.endpoint_id for want in desk.loading.wants()] == [2]


def test_what_was_not_loaded_is_wanted_again() -> None:
    desk = Desk()
    desk.loading.look(desk.senders[1])
    wants = desk.loading.wants()

    for want in (*wants, Want(99, (0, 0), 1, 1)):
        desk.loading.unwanted(want)

    assert desk.loading.wants() == wants


def test_who_has_something_never_makes_others_unload_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(2)
    waiting, other = desk.load(1, 3), desk.load(2, 3)
    desk.waiting.add(1)
    monkeypatch.setattr(module, "LOADED_MAX_BYTES", 6 * SIZE)

    desk.loading.look(other)
    desk.loading.wants()

    assert (waiting.outbound.loaded, desk.loading.loaded_bytes) == (3, 6 * SIZE)


def test_who_makes_room_for_others_wants_nothing_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(2)
    silent = desk.load(1, 3)
    silent.outbound.take(0.0)
    silent.outbound.round_trip.time_out()
    monkeypatch.setattr(module, "LOADED_MAX_BYTES", 3 * SIZE)
    for sender in (silent, desk.senders[2]):
        desk.loading.look(sender)

    wants = desk.loading.wants()

    assert ([2], True) == ([want.endpoint_id for want in wants], silent.is_resting)


def test_one_turn_loads_for_so_many_and_the_others_are_asked_for_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who rests takes no place of theirs."""
    monkeypatch.setattr(module, "TURN_WANTS", 2)
    desk = Desk(6)
    for sender in desk.senders.values():
        desk.loading.look(sender)
    desk.senders[1].outbound.resend_at = 5.0

    turns = [[want.endpoint_id for want in desk.loading.wants()] for _ in range(4)]

    assert turns == [[2, 3], [4, 5], [6], []]


def test_nobody_wants_anything_after_the_end() -> None:
    desk = Desk()
    desk.loading.look(desk.senders[1])

    desk.loading.clear()

    assert desk.loading.wants() == []
