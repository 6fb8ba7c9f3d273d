"""Why a dialog waits: every reason has its sentence, which says what happens next and when."""

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
from broker.protocol.layout import Flag
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Candidate, Decision
from tests.support.dialog import make_forwarder

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
        self.forwarder = make_forwarder()
        super().__init__(
            self.forwarder,
            cast("LoadBudget", SimpleNamespace(loaded_bytes=loaded_bytes)),
            clock=lambda: NOW,
            problem_of=lambda _: problem,
            request_status=lambda service: f"asked for {service}, not answered yet",
        )

    def connect(self, *, can_send: bool = True) -> "Here":
        self.forwarder.table.outbox(HOP).outlet = Link(can_send=can_send)  # type: ignore[assignment]
        return self


def dialog(
    fragments: int = 1, *, is_sent: bool = True, attempts: int = 0, window: int = 10, is_resting: bool = False
) -> Sender:
    """A dialog with so many fragments loaded, and sent as far as the window allows."""
    outbound = Outbound(RoundTrip(Backoff(4.0, 64.0)), Window(window, 1 << 20))
    for number in range(fragments):
        outbound.offer(Outgoing((number, 0), int(Flag.LAST_FRAGMENT), b"x"))
    while is_sent and outbound.has_unsent:
        outbound.pop(NOW)
    if is_resting:
        outbound.unload_until_resend()
    outbound.round_trip.attempts = attempts
    return Sender(1, Contact(bytes(16), True, "Orders", bytes(16), "Billing"), outbound, (0, 0))


FORWARDED = Decision(Disposition.FORWARDED, 1, candidates=(Candidate(HOP, None, AddressHealth.CONNECTED),))  # type: ignore[arg-type]


REFUSED = PathProblem("Connection refused", NOW + 5)
AT = "2025-06-15 15:08"
USED = f"{LOADED_MAX_BYTES} of at most {LOADED_MAX_BYTES} bytes are loaded for other dialogs"
SENT = "sent to tcp://gateway:4022 and not acknowledged yet"
UNDER_WAY = f"on its way: {SENT}"


@pytest.mark.parametrize(
    ("here", "sender", "status"),
    [
        (
            Here(REFUSED),
            dialog(is_sent=False),
            (
                f"waiting for a connection to tcp://gateway:4022: Connection refused, next attempt at {AT}:25 UTC"
                "; broker why says whether that is over"
            ),
        ),
        (Here(), dialog(is_sent=False), "waiting for a connection to tcp://gateway:4022"),
        (
            Here().connect(can_send=False),
            dialog(is_sent=False),
            "waiting for room on the connection to tcp://gateway:4022",
        ),
        (Here().connect(), dialog(is_sent=False), "on its way: queued for sending"),
        (Here().connect(), dialog(is_sent=False, attempts=2), "queued for sending, attempt 3"),
        (Here(loaded_bytes=LOADED_MAX_BYTES // 2).connect(), dialog(0), "on its way: queued for sending"),
        (Here(loaded_bytes=LOADED_MAX_BYTES).connect(), dialog(0), f"waiting for memory: {USED}"),
        (Here().connect(), dialog(3), f"{UNDER_WAY}, 3 fragments under way: sent again at {AT}:24 UTC"),
        (
            Here().connect(),
            dialog(3, window=2),
            f"{UNDER_WAY}, 2 fragments under way: sent again at {AT}:24 UTC, window full",
        ),
        (Here().connect(), dialog(2, is_resting=True), f"{UNDER_WAY}: sent again at {AT}:24 UTC"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.promise("views 5")
def test_each_reason_to_wait_has_its_sentence(here: Here, sender: Sender, status: str) -> None:
    assert status == here.render(sender, FORWARDED)


def test_refusal_of_the_next_hop_is_told_with_its_time() -> None:
    sender = dialog(attempts=2)
    sender.last_rejection = "refused by the next hop: pool limit exceeded (11289)"

    assert Here().connect().render(sender, FORWARDED) == (
        f"{SENT}, 1 fragment under way: sent again at {AT}:24 UTC; attempt 3, at 2025-06-15 15:06:40 UTC,"
        " refused by the next hop: pool limit exceeded (11289); broker why says whether that is over"
    )


def test_way_inside_the_instance_needs_no_connection() -> None:
    status = Here().render(dialog(), Decision(Disposition.DELIVERED, 1))

    assert status.startswith(
        "on its way: sent to the service in this instance and not acknowledged yet, 1 fragment under way:"
    )
    assert connecting(HOP, PathProblem("why")) == "waiting for a connection to tcp://gateway:4022: why"


@pytest.mark.parametrize(
    ("disposition", "what"),
    [
        (Disposition.NO_ROUTE, "no route to 'Billing' (9798)"),
        (Disposition.ROUTE_INVALID, "delayed, route invalid (11294)"),
    ],
)
def test_what_keeps_routing_is_told_with_its_number_and_the_next_try(disposition: Disposition, what: str) -> None:
    sender, delayed = dialog(is_sent=False), Decision(disposition, 1)

    assert Here().render(sender, delayed) == f"{what}: matched again when routes or services change"
    sender.timer_at = NOW + 10
    status = Here().render(sender, delayed)
    assert status == f"{what}: matched again at 2025-06-15 15:08:30 UTC, or when routes or services change"


def test_a_route_that_is_asked_for_is_told_with_whom() -> None:
    route: Any = SimpleNamespace(name="ask", address_text="tcp://far:1")

    assert Here().render(dialog(is_sent=False), Decision(Disposition.ASKING_FOR_ROUTE, 1, route=route)) == (
        "delayed, asking for route (9770) by ask to tcp://far:1: asked for Billing, not answered yet"
    )


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


def test_sentence_is_written_when_it_changes_and_once_a_second() -> None:
    """And not if the file says it already."""
    desk = Desk()
    written = [Desk(told="waits").telling.due(LATER), *[desk.telling.due(now) for now in (1.0, LATER)]]
    for now in (LATER + 0.5, LATER + 1.0):
        desk.sentence = f"waits since {now}"
        written.append(desk.telling.due(now))
    written.append(desk.telling.due(LATER + 2.0))

    assert written == [{}, {}, {1: "waits"}, {}, {1: f"waits since {LATER + 1.0}"}, {}]


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


@pytest.mark.parametrize(("count", "written"), [(2, {2: "waits"}), (5, {})])
def test_what_keeps_a_dialog_is_written_at_once_unless_many_wait(
    monkeypatch: pytest.MonkeyPatch, count: int, written: dict[int, str]
) -> None:
    monkeypatch.setattr(module, "STATUSES_MAX", 3)
    desk = Desk(count)

    is_hastened = desk.telling.hasten(2, 1.0)

    assert (bool(written), written) == (is_hastened, desk.telling.due(1.0))


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
