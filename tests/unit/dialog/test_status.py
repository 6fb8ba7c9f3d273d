"""Why a dialog waits: every reason has its sentence, which says what happens next and when."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.conversation.frames import Contact
from broker.conversation.outbound import Outbound, Outgoing
from broker.conversation.window import Backoff, RoundTrip, Window
from broker.dialog import status as module
from broker.dialog.send_queue import LOADED_MAX_BYTES, LoadBudget, Sender
from broker.dialog.status import MOVING, WRITE_SECONDS, PathProblem, StatusWriter, TransmissionStatus, connecting
from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.protocol.layout import Flag
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Candidate, Decision

HOP = NetworkAddress("gateway", 4022)
NOW = 100.0
WALL = 1_750_000_000.0  # 2025-06-15 15:06:40 UTC at loop time 0


class Link:
    """An outlet that takes frames, or not."""

    max_frame = 1 << 20
    is_narrow = False

    def __init__(self, *, can_send: bool) -> None:
        self.can_send = can_send


class Here(TransmissionStatus):
    """A renderer with what surrounds the sender; its wall clock does not move."""

    wall_offset = WALL

    def __init__(self, problem: PathProblem = PathProblem(), loaded_bytes: int = 0) -> None:  # noqa: B008 - a constant
        self.forwarder = Forwarder(
            Limits(pool_bytes=1 << 20, max_frame=1 << 20, max_hops=16),
            deliver=lambda *_: None,
            request_link=lambda _: None,
            health_of=lambda _: AddressHealth.CONNECTED,
        )
        super().__init__(
            self.forwarder,
            cast("LoadBudget", SimpleNamespace(loaded_bytes=loaded_bytes)),
            clock=lambda: NOW,
            problem_of=lambda _: problem,
            request_status=lambda service: f"asked for {service}, not answered yet",
        )

    def connect(self, *, can_send: bool = True) -> Here:
        self.forwarder.table.outbox(HOP).outlet = Link(can_send=can_send)  # type: ignore[assignment]
        return self


def sender(fragments: int = 1, *, window: int = 10) -> Sender:
    """A dialog with so many fragments loaded."""
    outbound = Outbound(RoundTrip(Backoff(4.0, 64.0)), Window(window, 1 << 20))
    for number in range(fragments):
        outbound.offer(Outgoing((number, 0), int(Flag.LAST_FRAGMENT), b"x"))
    return Sender(1, Contact(bytes(16), True, "Orders", bytes(16), "Billing"), outbound, (0, 0))


def sent(fragments: int = 1, **more: Any) -> Sender:
    """And sent as far as the window allows."""
    dialog = sender(fragments, **more)
    while dialog.outbound.has_unsent:
        dialog.outbound.pop(NOW)
    return dialog


def forwarded() -> Decision:
    return Decision(Disposition.FORWARDED, 1, candidates=(Candidate(HOP, None, AddressHealth.CONNECTED),))  # type: ignore[arg-type]


def delayed(disposition: Disposition, **more: Any) -> Decision:
    return Decision(disposition, 1, **more)


def test_no_connection_is_told_with_its_reason_and_the_next_attempt() -> None:
    here = Here(PathProblem("Connection refused", NOW + 5))

    assert here.render(sender(), forwarded()) == (
        "waiting for a connection to tcp://gateway:4022: Connection refused, next attempt at 2025-06-15 15:08:25 UTC"
    )


def test_connection_under_way_has_no_reason_yet() -> None:
    assert Here().render(sender(), forwarded()) == "waiting for a connection to tcp://gateway:4022"
    assert connecting(HOP, PathProblem("why")) == "waiting for a connection to tcp://gateway:4022: why"


def test_full_connection_is_told() -> None:
    status = Here().connect(can_send=False).render(sender(), forwarded())

    assert status == "waiting for room on the connection to tcp://gateway:4022"


def test_what_was_sent_is_told_with_its_next_hop_and_when_it_is_sent_again() -> None:
    status = Here().connect().render(sent(3), forwarded())

    assert status == (
        "sent to tcp://gateway:4022 and not acknowledged yet, 3 fragments under way:"
        " sent again at 2025-06-15 15:08:24 UTC"
    )


def test_full_window_is_told() -> None:
    assert Here().connect().render(sent(3, window=2), forwarded()).endswith(", window full")


def test_way_inside_the_instance_needs_no_connection() -> None:
    status = Here().render(sent(), delayed(Disposition.DELIVERED))

    assert status.startswith("sent to the service in this instance and not acknowledged yet, 1 fragment under way:")


def test_resting_dialog_tells_when_it_goes_on() -> None:
    dialog = sent(2)
    dialog.outbound.unload_until_resend()

    status = Here().connect().render(dialog, forwarded())

    assert status.endswith("and not acknowledged yet: sent again at 2025-06-15 15:08:24 UTC")


def test_open_way_is_used_in_turn() -> None:
    assert Here().connect().render(sender(), forwarded()) == "waiting for its turn"


@pytest.mark.parametrize(
    ("used", "status"),
    [
        (LOADED_MAX_BYTES // 2, "waiting for its turn"),
        (
            LOADED_MAX_BYTES,
            f"waiting for memory: {LOADED_MAX_BYTES} of at most {LOADED_MAX_BYTES} bytes are loaded for other dialogs",
        ),
    ],
)
def test_lack_of_memory_is_told(used: int, status: str) -> None:
    assert status == Here(loaded_bytes=used).connect().render(sender(0), forwarded())


@pytest.mark.parametrize(
    ("disposition", "what"),
    [
        (Disposition.NO_ROUTE, "no route to 'Billing' (9798)"),
        (Disposition.PRINCIPAL_UNKNOWN, "delayed, principal unknown (9794)"),
        (Disposition.ROUTE_INVALID, "delayed, route invalid (11294)"),
    ],
)
def test_what_keeps_routing_is_told_with_its_number_and_the_next_try(disposition: Disposition, what: str) -> None:
    dialog = sender()
    unarmed = Here().render(dialog, delayed(disposition))
    dialog.timer_at = NOW + 10

    status = Here().render(dialog, delayed(disposition))

    assert unarmed == f"{what}: matched again when routes or services change"
    assert status == f"{what}: matched again at 2025-06-15 15:08:30 UTC, or when routes or services change"


def test_a_route_that_is_asked_for_is_told_with_whom() -> None:
    class Route:
        name = "ask"
        address_text = "tcp://far:1"

    decision = delayed(Disposition.ASKING_FOR_ROUTE, route=Route())

    assert Here().render(sender(), decision) == (
        "delayed, asking for route (9770) by ask to tcp://far:1: asked for Billing, not answered yet"
    )


@pytest.mark.parametrize("make", [sender, sent])
def test_later_attempts_are_numbered(make: Callable[[], Sender]) -> None:
    dialog = make()
    dialog.outbound.round_trip.attempts = 2

    assert Here().connect().render(dialog, forwarded()).endswith(", attempt 3")


def test_advice_of_the_next_hop_is_passed_on() -> None:
    dialog = sent()
    dialog.last_rejection = "pool limit exceeded (11289)"

    status = Here().connect().render(dialog, forwarded())

    assert status.endswith("; refused by the next hop: pool limit exceeded (11289)")


# --- telling ---

LATER = 1.0 + WRITE_SECONDS


class Desk:
    """A telling whose sentences are set by the test."""

    def __init__(self, count: int = 1, told: str | None = None) -> None:
        self.senders: dict[int, Sender] = {}
        self.sentence = "waits"
        self.telling = StatusWriter(self.senders, lambda _: self.sentence)
        for endpoint_id in range(1, count + 1):
            self.watch(endpoint_id, told)

    def watch(self, endpoint_id: int, told: str | None = None, now: float = 1.0) -> None:
        outbound = Outbound(RoundTrip(Backoff(1.0, 64.0)), Window(10, 1000))
        contact = Contact(bytes(16), True, "A", bytes(16), "B")
        self.senders[endpoint_id] = Sender(endpoint_id, contact, outbound, (0, 0))
        self.telling.watch(self.senders[endpoint_id], told, now)


def test_dialog_that_waits_for_a_second_has_a_sentence() -> None:
    desk = Desk()

    assert [desk.telling.due(now) for now in (1.0, LATER)] == [{}, {1: "waits"}]


def test_sentence_is_written_when_it_changes_and_once_a_second() -> None:
    desk = Desk()
    written = [desk.telling.due(LATER)]

    for now in (LATER + 0.5, LATER + 1.0):
        desk.sentence = f"waits since {now}"
        written.append(desk.telling.due(now))
    written.append(desk.telling.due(LATER + 2.0))

    assert written == [{1: "waits"}, {}, {1: f"waits since {LATER + 1.0}"}, {}]


def test_what_the_file_says_already_is_not_written() -> None:
    assert Desk(told="waits").telling.due(LATER) == {}


def test_dialog_that_moves_has_a_sentence_that_stays() -> None:
    desk = Desk()
    written = []

    for step in range(1, 4):
        desk.senders[1].outbound.acknowledge((step, 0), 0.0)
        written.append(desk.telling.due(1.0 + step))

    assert written == [{1: MOVING}, {}, {}]


def test_sentence_is_removed_when_nothing_waits_any_more() -> None:
    desk = Desk(2)
    desk.telling.due(LATER)
    desk.watch(3, now=LATER)

    for endpoint_id in (1, 3, 99):
        desk.telling.forget(endpoint_id)

    assert [desk.telling.due(LATER), desk.telling.due(LATER)] == [{1: None}, {}]


def test_dialog_that_begins_again_before_its_sentence_was_removed_has_it_written_anew() -> None:
    desk = Desk()
    desk.telling.due(LATER)
    desk.telling.forget(1)

    desk.watch(1, now=LATER)

    assert desk.telling.due(LATER) == {}
    assert desk.telling.due(LATER + WRITE_SECONDS) == {1: "waits"}


def test_what_could_not_be_written_is_written_later() -> None:
    desk = Desk(2)
    desk.telling.due(LATER)
    desk.telling.forget(2)
    lost = desk.telling.due(LATER + WRITE_SECONDS) | {1: "waits"}

    desk.telling.mark_unwritten(lost)

    assert desk.telling.due(LATER + 2 * WRITE_SECONDS) == {1: "waits", 2: None}


def test_so_many_are_looked_at_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATUSES_MAX", 3)
    desk = Desk(5)

    turns = [desk.telling.due(LATER).keys() for _ in range(3)]

    assert turns == [{1, 2, 3}, {4, 5}, set()]
