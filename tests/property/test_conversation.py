"""
One direction of a dialog over a network that loses, repeats and reorders, against the obvious model.

The model numbers all fragments of all messages in one row and knows three numbers: how many are acknowledged, which is
sent next, which is the highest that was ever sent. The far side is the rule of the receiver: `place` and `after`.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.dialog.conversation import EARLY_WINDOW, NEVER, Arrival, Backoff, Outbound, Outgoing, after, place
from broker.wire.layout import Flag

FRAGMENT = 3
bodies = st.lists(st.binary(max_size=6 * FRAGMENT), min_size=1, max_size=8)


class FarSide:
    """Stores what is expected, keeps what is early."""

    def __init__(self) -> None:
        self.expected = (0, 0)
        self.early: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.bodies: list[bytes] = []
        self.partial = b""

    def receive(self, where: tuple[int, int], body: bytes, flags: int) -> None:
        arrival = place(self.expected, *where)
        if arrival is Arrival.DUPLICATE:
            return
        self.early[where] = (body, flags)
        while self.expected in self.early:
            body, flags = self.early.pop(self.expected)
            self.expected = after(self.expected, flags)
            self.partial += body
            if flags & Flag.LAST_FRAGMENT:
                self.bodies.append(self.partial)
                self.partial = b""


class OutboundMachine(RuleBasedStateMachine):
    """Rules are what the shell may do, in any order; losing a frame is never delivering it."""

    @initialize(bodies=bodies, window_max=st.integers(1, 100))
    def begin(self, bodies: list[bytes], window_max: int) -> None:
        self.messages = [Outgoing(n, n, 0, body, FRAGMENT) for n, body in enumerate(bodies)]
        self.row = [(message.sequence, n) for message in self.messages for n in range(message.fragments)]
        self.outbound = Outbound(Backoff(1.0, 8.0), window_max)
        self.far = FarSide()
        self.travelling: list[tuple[tuple[int, int], bytes, int]] = []
        self.offered = 0
        self.now = 0.0
        self.acknowledged = self.next = self.highest = 0

    def _number(self, where: tuple[int, int]) -> int:
        return self.row.index(where) if where in self.row else len(self.row)

    @rule(count=st.integers(1, 12))
    def offer(self, count: int) -> None:
        for message in self.messages[self.offered : self.offered + count]:
            self.outbound.offer(message)
            self.offered += 1

    @rule(is_lost=st.lists(st.booleans(), min_size=1, max_size=12))
    def send(self, is_lost: list[bool]) -> None:
        """A burst; what is lost may still turn up later."""
        for is_late in is_lost:
            if self.outbound.has_unsent:
                frame = self.take()
                if is_late:
                    self.travelling.append(frame)
                else:
                    self.far.receive(*frame)

    def take(self) -> tuple[tuple[int, int], bytes, int]:
        message, fragment, is_resend = self.outbound.take(self.now)
        where = (message.sequence, fragment)
        assert self.row[self.next] == where
        assert is_resend == (self.next < self.highest)
        self.next += 1
        self.highest = max(self.highest, self.next)
        return where, *message.fragment(fragment)

    @precondition(lambda self: self.travelling)
    @rule(data=st.data())
    def turn_up(self, data: st.DataObject) -> None:
        self.far.receive(*data.draw(st.sampled_from(self.travelling)))

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """Any acknowledgement the far side has ever made may arrive now."""
        top = self._number(self.far.expected)
        number = data.draw(st.one_of(st.just(top), st.integers(0, top)))
        where = self.row[number] if number < len(self.row) else self.far.expected
        before = self.outbound.acknowledged_sequence
        loaded = len(self.outbound.messages)

        done = self.outbound.acknowledge(*where, self.now)

        self.acknowledged = max(self.acknowledged, number)
        self.next = max(self.next, self.acknowledged)
        assert loaded - len(self.outbound.messages) == done
        assert before <= self.outbound.acknowledged_sequence
        self.offered = max(self.offered, self.outbound.acknowledged_sequence)

    @rule()
    def rewind(self) -> None:
        self.outbound.rewind()
        self.next = self.acknowledged

    @rule(is_timeout=st.booleans())
    def unload(self, is_timeout: bool) -> None:  # noqa: FBT001  (Hypothesis names it)
        if is_timeout:
            self.outbound.time_out()
        else:
            self.outbound.unload()
        self.offered = self.outbound.acknowledged_sequence
        self.next = self.acknowledged

    @rule()
    def pass_time(self) -> None:
        self.now += 1.0

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        assert self.next - self.acknowledged == self.outbound.in_flight
        assert self.outbound.in_flight <= max(self.outbound.window, 1)
        assert self.outbound.window <= self.outbound.window_max
        assert (self.outbound.in_flight == 0) == (self.outbound.resend_at == NEVER)
        assert sum(len(message.body) for message in self.outbound.messages) == self.outbound.loaded_bytes

    def teardown(self) -> None:
        """From any state, a network that has become good brings every message across, whole, once and in order."""
        if not hasattr(self, "far"):
            return
        self.rewind()
        for _ in range(2 * len(self.row) + 2):
            self.offer(len(self.messages))
            while self.outbound.has_unsent:
                self.far.receive(*self.take())
            self.outbound.acknowledge(*self.far.expected, self.now)
            self.acknowledged = self._number(self.far.expected)
            self.next = max(self.next, self.acknowledged)
        assert [message.body for message in self.messages] == self.far.bodies
        assert (len(self.outbound.messages), self.outbound.in_flight, self.outbound.resend_at) == (0, 0, NEVER)


TestOutbound = OutboundMachine.TestCase
TestOutbound.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


@given(bodies, st.data())
def test_fragments_in_any_order_and_number_make_the_messages(bodies: list[bytes], data: st.DataObject) -> None:
    """The walk of place and after: whatever the order of arrival, each message comes out once, in its turn."""
    messages = [Outgoing(n, n, 0, body, FRAGMENT) for n, body in enumerate(bodies)]
    frames = [((message.sequence, n), *message.fragment(n)) for message in messages for n in range(message.fragments)]
    far = FarSide()

    for frame in data.draw(st.permutations(frames * 2)):
        far.receive(*frame)

    assert bodies == far.bodies
    assert (len(bodies), 0) == far.expected


@given(st.tuples(st.integers(0, 50), st.integers(0, 5)), st.integers(0, 60 + EARLY_WINDOW), st.integers(0, 6))
def test_every_place_is_exactly_one_of_the_four(expected: tuple[int, int], sequence: int, fragment: int) -> None:
    """Before, at, after, far after: in the order of the places."""
    arrival = place(expected, sequence, fragment)

    assert (arrival is Arrival.DUPLICATE) == ((sequence, fragment) < expected)
    assert (arrival is Arrival.EXPECTED) == ((sequence, fragment) == expected)
    assert (arrival is Arrival.TOO_EARLY) == (sequence - expected[0] >= EARLY_WINDOW)
