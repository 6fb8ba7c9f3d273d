"""
What one side of a conversation still has to get acknowledged: what may be sent, what was lost, and when again.

Messages got their sequence numbers in the application's own transaction; they travel as fragments. The unit here is the
fragment, so what is loaded does not depend on how large a message is. Fragments are loaded in order, ahead of the
window, and kept until the far side acknowledges that it stored them. It may say as well what it holds out of order:
then only what is missing is sent again, once something that was sent later has arrived and the hole has had the time
that gateways of different speed need. Time is an argument (monotonic seconds). Nothing here stores or sends; the shell
is `broker.dialog.transmitter`.

Source: Service Broker documentation, "Service Broker Communication Protocols"; RFC 2018 and 6675, selective
acknowledgement; RFC 8985, loss detection by time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from broker.conversation.frames import Place, after
from broker.conversation.window import NEVER, RoundTrip, Window
from broker.protocol.layout import Flag

FAITH = 2  # time-outs in a row after which it is no longer believed what the far side said it holds
HELD_MAX = 64  # ranges remembered for what is not loaded
REFUSED_WAIT_MIN = 0.1  # seconds; a next hop cannot ask for more resends than this, and for fewer each time it refuses
REFUSED_DOUBLINGS = 10
_LAST = int(Flag.LAST_FRAGMENT)

Held = tuple[int, int, int]
"""(sequence, first_fragment, last_fragment) that the far side holds out of order."""


class FragmentStage(IntEnum):
    """Where a fragment is."""

    WAITING = 0
    OUT = 1
    LOST = 2
    HELD = 3  # stored at the far side, and something before it is not
    DONE = 4


@dataclass(slots=True)
class Outgoing:
    """
    One fragment to send; its later fields are changed by `Outbound` only.

    Shape: `place` (sequence, fragment); `flags` END_DIALOG or ERROR of its message, LAST_FRAGMENT; `body` as it
    travels, in fragment 0 with the envelope before the payload: only the payload decides where a message is cut, as the
    envelope's length may differ from one sending to the next. `sent_at` monotonic seconds; `retry_at` when it is sent
    again because the next hop refused it; `enqueued_at` UTC seconds since 1970 at which its message was queued;
    `trace_parent` of its message where that has the TRACE flag, else ""; `lifetime` UTC seconds since 1970 at which its
    dialog is over, of a fragment whose envelope tells what is left of that, else 0.
    """

    place: Place
    flags: int
    body: bytes
    stage: FragmentStage = FragmentStage.WAITING
    is_resent: bool = False
    sent_at: float = 0.0
    retry_at: float = NEVER
    enqueued_at: float = 0.0
    trace_parent: str = ""
    lifetime: float = 0.0


@dataclass(slots=True)
class Outbound:
    """
    What one side still has to get acknowledged. Changed by its methods only.

    Shape: `acknowledged` every place before it is stored at the far side; `load_from` the place behind what is loaded;
    `loaded` fragments, `loaded_bytes` of their bodies; `in_flight` of them sent and neither acknowledged nor lost,
    `in_flight_bytes`; `resend_at` when everything counts as lost, `look_at` when a single fragment may.
    """

    round_trip: RoundTrip
    window: Window
    acknowledged: Place = (0, 0)
    load_from: Place = field(init=False)
    loaded: int = 0
    loaded_bytes: int = 0
    in_flight: int = 0
    in_flight_bytes: int = 0
    resend_at: float = NEVER
    look_at: float = NEVER
    _passed: deque[Outgoing] = field(default_factory=deque)  # sent since the last rewind or held there, in order
    _ahead: deque[Outgoing] = field(default_factory=deque)  # those behind them; the first is not held
    _lost: deque[Outgoing] = field(default_factory=deque)  # of `_passed`, to be sent before what is ahead
    _held_there: tuple[Held, ...] = ()  # as last told; for what is not loaded yet
    _sent_to: Place = (-1, 0)  # highest place ever sent
    _arrived_at: float = -NEVER  # when the latest sent of those that have arrived was sent
    _recovery: Place = (-1, 0)  # losses before this place shrink the window no more: it has been for them
    _refusals: int = 0  # in a row, each of something sent after the one before
    _refused_at: float = -NEVER
    _is_after_silence: bool = False

    def __post_init__(self) -> None:
        """Begin at the first place that is not acknowledged."""
        self.load_from = self.acknowledged

    @property
    def has_unsent(self) -> bool:
        """Whether a fragment may be sent now."""
        if not self._ahead and not self._lost:
            return False
        if not self.in_flight:
            return True
        size = len((self._lost or self._ahead)[0].body)
        return self.in_flight < self.window.frames and self.in_flight_bytes + size <= self.window.bytes

    @property
    def is_window_full(self) -> bool:
        """Whether something could be sent, was there not enough under way."""
        return bool(self._ahead or self._lost) and not self.has_unsent

    @property
    def room(self) -> tuple[int, int]:
        """Frames and bytes to load now: twice the window, so that the file is read while frames travel."""
        window = self.window
        frames = min(window.frames_max, 2 * window.frames) - self.loaded
        size = min(window.bytes_max, 2 * window.bytes) - self.loaded_bytes
        return (max(0, frames), max(0, size)) if self.loaded else (max(1, frames), max(1, size))

    @property
    def alarm_at(self) -> float:
        """When `look` or `time_out` is due."""
        return min(self.resend_at, self.look_at)

    @property
    def sent_at(self) -> float:
        """When the first of what is in flight was sent; -NEVER with nothing in flight."""
        return next((fragment.sent_at for fragment in self._passed if fragment.stage is FragmentStage.OUT), -NEVER)

    def offer(self, fragment: Outgoing) -> None:
        """Add the fragment that follows the last one."""
        self.load_from = after(fragment.place, fragment.flags)
        self.loaded += 1
        self.loaded_bytes += len(fragment.body)
        self._ahead.append(fragment)
        if self._held_there:
            if self.loaded > 1 and _is_in(fragment.place, self._held_there):
                fragment.stage = FragmentStage.HELD
            self._pass_held()

    def take(self, now: float) -> tuple[Outgoing, bool]:
        """The next fragment to send, and whether it was sent before; it counts as sent. Only when `has_unsent`."""
        if self._lost:
            fragment = self._lost.popleft()
            self._clean_lost()
            self.resend_at = now + self.round_trip.timeout
        else:
            fragment = self._ahead.popleft()
            self._passed.append(fragment)
            if self._ahead and self._ahead[0].stage is FragmentStage.HELD:
                self._pass_held()
            if self.resend_at == NEVER:
                self.resend_at = now + self.round_trip.timeout
        is_resend = fragment.place <= self._sent_to
        if not is_resend:
            self._sent_to = fragment.place
        fragment.stage = FragmentStage.OUT
        fragment.is_resent = is_resend
        fragment.sent_at = now
        fragment.retry_at = NEVER
        self.in_flight += 1
        self.in_flight_bytes += len(fragment.body)
        return fragment, is_resend

    # --- what is heard ---

    def acknowledge(self, place: Place, now: float, held_there: tuple[Held, ...] = ()) -> int:
        """
        Everything before `place` is stored at the far side, and it holds `held_there`; how many messages are done with.

        What was said before, or is said of what was never sent, changes nothing.
        """
        done = 0
        arrived: list[Outgoing] = []
        is_progress = place > self.acknowledged
        if is_progress:
            done = place[0] - self.acknowledged[0]
            if self._is_after_silence:
                self._end_silence(place)
            self.acknowledged = place
            self.load_from = max(self.load_from, place)
            self._drop_done(place, arrived)
        if held_there or self._held_there:
            self._hold(held_there, arrived)
        if arrived:
            self.window.grow(len(arrived), sum([len(fragment.body) for fragment in arrived]))
            self._measure(arrived, now)
        if is_progress:
            self.round_trip.progress()
            self._refusals, self._refused_at = 0, -NEVER
            self.resend_at = now + self.round_trip.timeout if self.in_flight or self._lost else NEVER
        if held_there or self.look_at != NEVER or (self._passed and self._passed[0].sent_at < self._arrived_at):
            self.look(now)
        return done

    def look(self, now: float) -> None:
        """Find out what was lost: a later one has arrived, or the next hop refused it, and it has had its time."""
        patience = self.round_trip.patience
        self.look_at = NEVER
        for fragment in self._passed:
            if fragment.stage is not FragmentStage.OUT:
                continue
            due = fragment.retry_at
            if fragment.sent_at < self._arrived_at:
                due = min(due, fragment.sent_at + patience)
            if due <= now:
                self._lose(fragment)
            else:
                self.look_at = min(self.look_at, due)

    def refuse(self, place: Place, now: float, wait: float) -> None:
        """The next hop did not take the fragment and asks for it again after so many seconds; longer each time."""
        fragment = next((one for one in self._passed if one.place == place), None)
        if fragment is None or fragment.stage is not FragmentStage.OUT:
            return
        if fragment.sent_at > self._refused_at:
            self._refused_at = now
            self._refusals += 1
        floor = REFUSED_WAIT_MIN * 2.0 ** min(self._refusals - 1, REFUSED_DOUBLINGS)
        fragment.retry_at = min(fragment.retry_at, now + max(floor, wait))
        self.look_at = min(self.look_at, fragment.retry_at)

    # --- what is not heard ---

    def rewind(self) -> None:
        """The path broke: what is in flight is lost, so send it again from the first unacknowledged fragment."""
        self._passed.extend(self._ahead)
        self._ahead, self._passed = self._passed, deque()
        self._lost.clear()
        for fragment in self._ahead:
            if fragment.stage is not FragmentStage.HELD:
                fragment.stage = FragmentStage.WAITING
        self.in_flight = self.in_flight_bytes = 0
        self.resend_at = self.look_at = NEVER
        self._pass_held()

    def unload(self) -> None:
        """Keep no fragment here; those that are still to be sent will be offered again."""
        for queue in (self._passed, self._ahead, self._lost):
            queue.clear()
        self.loaded = self.loaded_bytes = 0
        self.in_flight = self.in_flight_bytes = 0
        self.resend_at = self.look_at = NEVER
        self.load_from = self.acknowledged

    def rest(self) -> None:
        """Unload for the sake of others, and send nothing again before it is time."""
        resend_at = self.resend_at
        self.unload()
        self.resend_at = resend_at

    def time_out(self) -> None:
        """No acknowledgement came in time: unload, wait longer next time, and begin with a small window."""
        self.round_trip.time_out()
        self.window.collapse()
        self.unload()
        if self.round_trip.attempts >= FAITH:
            self._held_there = ()
        self._recovery = self._sent_to
        self._is_after_silence = True

    # --- the inside ---

    def _end_silence(self, place: Place) -> None:
        """The first acknowledgement after time-outs: does it tell of more than what was sent since?"""
        self._is_after_silence = False
        last = self._passed[-1] if self._passed else None
        if last is None or place > after(last.place, last.flags):
            self.window.resume()

    def _drop_done(self, place: Place, arrived: list[Outgoing]) -> None:
        """Keep nothing that lies before `place`; what was in flight of it has arrived."""
        sequence = place[0]
        for queue in (self._passed, self._ahead):
            while queue:
                fragment = queue[0]
                # A last fragment is done with only when its message is: no place lies behind it in there.
                if fragment.place >= place or (fragment.flags & _LAST and fragment.place[0] == sequence):
                    break
                queue.popleft()
                self.loaded -= 1
                self.loaded_bytes -= len(fragment.body)
                if fragment.stage is FragmentStage.OUT:
                    self._arrive(fragment, arrived)
                fragment.stage = FragmentStage.DONE
            if queue:
                break
        self._clean_lost()
        self._unhold_first()

    def _hold(self, told: tuple[Held, ...], arrived: list[Outgoing]) -> None:
        """Note what the far side holds, of what is loaded and for what is not."""
        sequence = self.acknowledged[0]
        self._held_there = tuple(one for one in told[:HELD_MAX] or self._held_there if one[0] >= sequence)
        if not told:
            return
        by_sequence: dict[int, list[Held]] = {}
        for one in told:
            by_sequence.setdefault(one[0], []).append(one)
        for queue in (self._passed, self._ahead):
            for fragment in queue:
                held = by_sequence.get(fragment.place[0])
                if held is not None and fragment.stage is not FragmentStage.HELD and _is_in(fragment.place, held):
                    if fragment.stage is FragmentStage.OUT:
                        self._arrive(fragment, arrived)
                    fragment.stage = FragmentStage.HELD
        self._clean_lost()
        self._unhold_first()
        self._pass_held()

    def _unhold_first(self) -> None:
        """The far side asks for the first unacknowledged fragment, so it does not hold it, whatever it said."""
        first = self._passed[0] if self._passed else self._ahead[0] if self._ahead else None
        if first is None or first.stage is not FragmentStage.HELD:
            return
        first.stage = FragmentStage.WAITING
        if self._passed:
            first.stage = FragmentStage.LOST
            self._lost.appendleft(first)

    def _arrive(self, fragment: Outgoing, arrived: list[Outgoing]) -> None:
        arrived.append(fragment)
        self.in_flight -= 1
        self.in_flight_bytes -= len(fragment.body)

    def _measure(self, arrived: list[Outgoing], now: float) -> None:
        """Learn from what has arrived: the round trip, and what was sent before it."""
        trip = self.round_trip
        if not any(fragment.is_resent for fragment in arrived):
            latest = max([fragment.sent_at for fragment in arrived])
            trip.measure(now - latest)
        else:  # the answer may be to an earlier copy: not when no round trip was ever so short
            sent = [one.sent_at for one in arrived if not one.is_resent or now - one.sent_at >= trip.least]
            latest = max(sent, default=-NEVER)
        self._arrived_at = max(self._arrived_at, latest)

    def _lose(self, fragment: Outgoing) -> None:
        fragment.stage = FragmentStage.LOST
        self._lost.append(fragment)
        self.in_flight -= 1
        self.in_flight_bytes -= len(fragment.body)
        if fragment.place > self._recovery:
            self._recovery = self._sent_to
            self.window.shrink()

    def _pass_held(self) -> None:
        while self._ahead and self._ahead[0].stage is FragmentStage.HELD:
            self._passed.append(self._ahead.popleft())

    def _clean_lost(self) -> None:
        while self._lost and self._lost[0].stage is not FragmentStage.LOST:
            self._lost.popleft()


def _is_in(place: Place, ranges: Iterable[Held]) -> bool:
    sequence, number = place
    return any(one[0] == sequence and one[1] <= number <= one[2] for one in ranges)
