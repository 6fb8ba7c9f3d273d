"""
One direction of a dialog over a network that loses, repeats and reorders, against the obvious model.

The model keeps for every fragment of every message a word for where it is, and looks at all of them each time. The far
side is the rule of the receiver: `place` and `after`; it may say anything of what it holds, old things and wrong ones.
"""

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker.conversation.frames import FragmentArrival, Run, after, classify
from broker.conversation.outbound import FAITH, HELD_MAX, Outbound, Outgoing
from broker.conversation.window import NEVER, Backoff, RoundTrip, Window
from broker.protocol.layout import EARLY_WINDOW, Flag
from tests.support.tiers import examples

FRAGMENT = 3
bodies = st.lists(st.binary(max_size=6 * FRAGMENT), min_size=1, max_size=8)
Place = tuple[int, int]


def cut(bodies: list[bytes]) -> list[Outgoing]:
    fragments = []
    for sequence, body in enumerate(bodies):
        pieces = [body[start : start + FRAGMENT] for start in range(0, max(1, len(body)), FRAGMENT)]
        for number, piece in enumerate(pieces):
            flags = Flag.LAST_FRAGMENT if number + 1 == len(pieces) else 0
            fragments.append(Outgoing((sequence, number), int(flags), piece))
    return fragments


class FarSide:
    def __init__(self) -> None:
        self.expected = (0, 0)
        self.early: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.bodies: list[bytes] = []
        self.partial = b""

    def receive(self, where: tuple[int, int], body: bytes, flags: int) -> None:
        arrival = classify(self.expected, where)
        if arrival is FragmentArrival.DUPLICATE:
            return
        self.early[where] = (body, flags)
        while self.expected in self.early:
            body, flags = self.early.pop(self.expected)
            self.expected = after(self.expected, flags)
            self.partial += body
            if flags & Flag.LAST_FRAGMENT:
                self.bodies.append(self.partial)
                self.partial = b""

    def held(self) -> tuple[Run, ...]:
        """What it holds out of order, as ranges."""
        ranges: list[Run] = []
        for sequence, places in groupby(sorted(self.early), key=lambda where: where[0]):
            for _, number in places:
                if ranges and ranges[-1][0] == sequence and ranges[-1][2] + 1 == number:
                    ranges[-1] = (sequence, ranges[-1][1], number)
                else:
                    ranges.append((sequence, number, number))
        return tuple(ranges)


class Model:
    """Where every fragment is: "away" (not loaded), "waiting", "out", "lost", "held", "done"."""

    def __init__(self, fragments: list[Outgoing]) -> None:
        self.row = [fragment.place for fragment in fragments]
        self.is_last = {fragment.place: bool(fragment.flags) for fragment in fragments}
        self.where = dict.fromkeys(self.row, "away")
        self.lost: list[Place] = []
        self.sent_at: dict[Place, float] = {}
        self.retry_at: dict[Place, float] = {}
        self.is_resent: dict[Place, bool] = {}
        self.ever_sent: set[Place] = set()
        self.acknowledged: Place = (0, 0)
        self.told: list[Run] = []
        self.arrived_at = -NEVER
        self.least = NEVER

    def all(self, *words: str) -> list[Place]:
        return [one for one in self.row if self.where[one] in words]

    def loaded(self) -> list[Place]:
        return self.all("waiting", "out", "lost", "held")

    def next(self) -> Place | None:
        return self.lost[0] if self.lost else next(iter(self.all("waiting")), None)

    def offer(self, where: Place) -> None:
        is_held = bool(self.loaded()) and _covers(self.told, where)
        self.where[where] = "held" if is_held else "waiting"

    def take(self, now: float) -> tuple[Place, bool]:
        where = self.next()
        assert where is not None
        if self.lost:
            self.lost.pop(0)
        is_resend = where <= max(self.ever_sent, default=(-1, 0))
        self.ever_sent.add(where)
        self.where[where], self.sent_at[where], self.is_resent[where] = "out", now, is_resend
        self.retry_at[where] = NEVER
        return where, is_resend

    def acknowledge(self, where: Place, now: float, held: tuple[Run, ...]) -> int:
        """What was said; how many messages are done with."""
        before, arrived = self.acknowledged, []
        self.acknowledged = max(before, where)
        for one in self.row:
            is_before = one < self.acknowledged and not (self.is_last[one] and one[0] == self.acknowledged[0])
            if is_before or (self.where[one] in ("waiting", "out", "lost") and _covers(held, one)):
                arrived += [one] if self.where[one] == "out" else []
                self.where[one] = "done" if is_before else "held"
        self.told = [one for one in (held[:HELD_MAX] or self.told) if one[0] >= self.acknowledged[0]]
        self.lost = [one for one in self.lost if self.where[one] == "lost"]
        first = next(iter(self.loaded()), None)
        if first is not None and self.where[first] == "held":
            was_passed = any(one > first for one in self.all("out", "lost")) or first in self.passed
            self.where[first] = "lost" if was_passed else "waiting"
            self.lost = [first] * was_passed + self.lost
        if arrived:
            self._learn(arrived, now)
        return self.acknowledged[0] - before[0]

    passed: frozenset[Place] = frozenset()

    def _learn(self, arrived: list[Place], now: float) -> None:
        once = [self.sent_at[one] for one in arrived if not self.is_resent[one]]
        if len(once) == len(arrived):
            self.least = min(self.least, now - max(once))
        else:
            once += [
                self.sent_at[one] for one in arrived if self.is_resent[one] and now - self.sent_at[one] >= self.least
            ]
        self.arrived_at = max([self.arrived_at, *once])

    def look(self, now: float, patience: float) -> None:
        for one in self.all("out"):
            is_overtaken = self.sent_at[one] < self.arrived_at and self.sent_at[one] + patience <= now
            if is_overtaken or self.retry_at[one] <= now:
                self.where[one] = "lost"
                self.lost.append(one)

    def rewind(self) -> None:
        for one in self.all("out", "lost"):
            self.where[one] = "waiting"
        self.lost = []

    def unload(self) -> None:
        for one in self.loaded():
            self.where[one] = "away"
        self.lost = []


def _covers(ranges: list[Run] | tuple[Run, ...], where: Place) -> bool:
    return any(sequence == where[0] and first <= where[1] <= last for sequence, first, last in ranges)


class OutboundMachine(RuleBasedStateMachine):
    """Rules are what the shell may do, in any order; losing a frame is never delivering it."""

    @initialize(bodies=bodies, frames=st.integers(1, 100), size=st.integers(1, 60))
    def begin(self, bodies: list[bytes], frames: int, size: int) -> None:
        self.bodies = bodies
        self.cut = {fragment.place: fragment for fragment in cut(bodies)}
        self.model = Model(list(self.cut.values()))
        self.trip = RoundTrip(Backoff(1.0, 8.0))
        self.window = Window(frames, size)
        self.outbound = Outbound(self.trip, self.window)
        self.far = FarSide()
        self.travelling: list[tuple[Place, bytes, int]] = []
        self.said: list[tuple[Place, tuple[Run, ...]]] = []
        self.now = 0.0

    @rule(count=st.integers(1, 12))
    def offer(self, count: int) -> None:
        for one in [one for one in self.model.row if one >= self.outbound.load_from][:count]:
            fragment = self.cut[one]
            self.outbound.offer(Outgoing(one, fragment.flags, fragment.body))
            self.model.offer(one)

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

    def take(self) -> tuple[Place, bytes, int]:
        expected = self.model.take(self.now)
        fragment, is_resend = self.outbound.pop(self.now)
        assert expected == (fragment.place, is_resend)
        assert self.outbound.in_flight <= max(1, self.window.frames)
        assert self.outbound.in_flight_bytes <= self.window.bytes or self.outbound.in_flight == 1
        return fragment.place, fragment.body, fragment.flags

    @precondition(lambda self: self.travelling)
    @rule(data=st.data())
    def turn_up(self, data: st.DataObject) -> None:
        self.far.receive(*data.draw(st.sampled_from(self.travelling)))

    @rule(is_told=st.booleans(), data=st.data())
    def acknowledge(self, is_told: bool, data: st.DataObject) -> None:  # noqa: FBT001
        """What the far side has now, or anything that it has ever said before."""
        self.said.append((self.far.expected, self.far.held() if is_told else ()))
        self.hear(*data.draw(st.one_of(st.just(self.said[-1]), st.sampled_from(self.said))))

    @rule(ranges=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 7)), max_size=4))
    def lie(self, ranges: list[Run]) -> None:
        """It says that it holds what it does not, or what was never sent."""
        self.hear(self.outbound.acknowledged, tuple(ranges))

    def hear(self, where: Place, held: tuple[Run, ...]) -> None:
        self.model.passed = frozenset(one.place for one in self.outbound._passed)
        done = self.outbound.acknowledge(where, self.now, held)

        assert self.model.acknowledge(where, self.now, held) == done
        self.model.look(self.now, self.trip.patience)

    @rule()
    def look(self) -> None:
        self.outbound.detect_losses(self.now)
        self.model.look(self.now, self.trip.patience)

    @precondition(lambda self: self.model.all("out"))
    @rule(data=st.data(), wait=st.floats(0.0, 3.0))
    def refuse(self, data: st.DataObject, wait: float) -> None:
        where = data.draw(st.sampled_from(self.model.all("out")))
        before = self.model.retry_at[where]
        self.outbound.refuse(where, self.now, wait)
        self.model.retry_at[where] = next(one.retry_at for one in self.outbound._passed if one.place == where)
        assert self.model.retry_at[where] >= min(before, self.now + max(0.1, wait))
        assert self.model.retry_at[where] <= before

    @rule()
    def rewind(self) -> None:
        self.outbound.rewind()
        self.model.rewind()

    @rule(how=st.sampled_from(["unload", "unload_until_resend", "time_out"]))
    def unload(self, how: str) -> None:
        getattr(self.outbound, how)()
        self.model.unload()
        if self.trip.attempts >= FAITH and how == "time_out":
            self.model.told = []

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        out, loaded = self.model.all("out"), self.model.loaded()
        assert len(out) == self.outbound.in_flight
        assert sum(len(self.cut[one].body) for one in out) == self.outbound.in_flight_bytes
        assert len(loaded) == self.outbound.loaded
        assert sum(len(self.cut[one].body) for one in loaded) == self.outbound.loaded_bytes
        assert (self.model.next() is not None) == (self.outbound.has_unsent or self.outbound.is_window_full)
        assert not self.outbound.in_flight or self.outbound.resend_at < NEVER
        assert self.window.frames <= self.window.frames_max
        assert self.window.bytes <= self.window.bytes_max

    def teardown(self) -> None:
        """From any state, a network that has become good brings every message across, whole, once and in order."""
        if not hasattr(self, "far"):
            return
        for _ in range(4 * len(self.model.row) + 4):
            self.offer(len(self.model.row))
            before = self.far.expected
            while self.outbound.has_unsent:
                self.far.receive(*self.take())
            self.hear(self.far.expected, self.far.held())
            if self.far.expected == before and self.outbound.acknowledged == before:
                self.unload("time_out")
        assert self.bodies == self.far.bodies
        assert (self.outbound.loaded, self.outbound.in_flight, self.outbound.resend_at) == (0, 0, NEVER)


@pytest.mark.promise(8)
def test_all_is_sent_and_acknowledged_as_the_model_says() -> None:
    run_state_machine_as_test(OutboundMachine, settings=settings(max_examples=examples(150), stateful_step_count=30))


@given(bodies, st.data())
@pytest.mark.promise(2)
def test_fragments_in_any_order_and_number_make_the_messages(bodies: list[bytes], data: st.DataObject) -> None:
    """The walk of place and after: whatever the order of arrival, each message comes out once, in its turn."""
    frames = [(fragment.place, fragment.body, fragment.flags) for fragment in cut(bodies)]
    far = FarSide()

    for frame in data.draw(st.permutations(frames * 2)):
        far.receive(*frame)

    assert bodies == far.bodies
    assert (len(bodies), 0) == far.expected


@given(st.tuples(st.integers(0, 50), st.integers(0, 5)), st.integers(0, 60 + EARLY_WINDOW), st.integers(0, 6))
@pytest.mark.promise(2)
def test_every_place_is_exactly_one_of_the_four(expected: tuple[int, int], sequence: int, fragment: int) -> None:
    """Before, at, after, far after: in the order of the places."""
    arrival = classify(expected, (sequence, fragment))

    assert (arrival is FragmentArrival.DUPLICATE) == ((sequence, fragment) < expected)
    assert (arrival is FragmentArrival.EXPECTED) == ((sequence, fragment) == expected)
    assert (arrival is FragmentArrival.TOO_EARLY) == (sequence - expected[0] >= EARLY_WINDOW)
