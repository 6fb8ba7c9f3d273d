"""
Unacknowledged fragments of one side of a conversation: which may be sent, which were lost, and when to resend. Pure.

Messages got their sequence numbers in the application's own transaction; they travel as fragments. The unit here is the
fragment, so the amount that is loaded does not depend on the size of a message. Fragments are loaded in order, ahead of
the window, and kept until the far side acknowledges that it stored them. The far side may also acknowledge fragments
that it holds out of order. Then only the missing ones are sent again, once a fragment that was sent later has arrived
and the hole has had the time that gateways of different speed need. Time is an argument (monotonic seconds).
`dialog.transmitter` loads and sends.

Sources: Service Broker documentation, "Service Broker Communication Protocols"; RFC 2018 and 6675, selective
acknowledgement; RFC 8985, loss detection by time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from broker.conversation.frames import Place, Run, after
from broker.conversation.window import NEVER, RoundTrip, Window
from broker.protocol.layout import Flag

FAITH = 2  # time-outs in a row after which what was sent no longer counts as on its way or held
HELD_MAX = 64  # ranges remembered for what is not loaded
REFUSED_WAIT_MIN = 0.1  # seconds; a next hop cannot ask for resends more often, and less each time it refuses
REFUSED_DOUBLINGS = 10
_LAST = int(Flag.LAST_FRAGMENT)


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
    One fragment to send; `stage` to `retry_at` are changed by `Outbound` only.

    In fragment 0 the envelope is before the payload. Only the payload decides where a message is cut, as the length of
    the envelope may differ from one sending to the next.
    """

    place: Place
    flags: int  # END_DIALOG or ERROR of its message, LAST_FRAGMENT
    body: bytes  # as it travels
    stage: FragmentStage = FragmentStage.WAITING
    is_resent: bool = False
    sent_at: float = 0.0  # monotonic seconds
    retry_at: float = NEVER  # when it is sent again because the next hop refused it
    enqueued_at: float = 0.0  # UTC seconds since 1970 at which its message was queued
    trace_parent: str = ""  # of its message, where that has the TRACE flag
    lifetime: float = 0.0  # UTC seconds since 1970 at which its dialog is over, if its envelope says what remains


@dataclass(slots=True)
class Outbound:
    """The fragments of one side that are not acknowledged yet. Changed by its methods only."""

    round_trip: RoundTrip
    window: Window
    acknowledged: Place = (0, 0)  # every place before it is stored at the far side
    load_from: Place = field(init=False)  # the place after what is loaded
    loaded: int = 0  # fragments
    loaded_bytes: int = 0  # of their bodies
    in_flight: int = 0  # of them sent, and neither acknowledged nor lost
    in_flight_bytes: int = 0
    resend_at: float = NEVER  # when everything counts as lost
    loss_check_at: float = NEVER  # when a single fragment may
    _passed: deque[Outgoing] = field(default_factory=deque)  # sent since the last rewind or held there, in order
    _ahead: deque[Outgoing] = field(default_factory=deque)  # those after them; the first is not held
    _lost: deque[Outgoing] = field(default_factory=deque)  # of `_passed`, to be sent before what is ahead
    _held_there: tuple[Run, ...] = ()  # as last reported; for what is not loaded yet
    _sent_to: Place = (-1, 0)  # highest place ever sent
    _arrived_at: float = -NEVER  # when the latest sent of those that have arrived was sent
    _recovery: Place = (-1, 0)  # losses before this place do not shrink the window again
    _refusals: int = 0  # in a row, each of something sent after the one before
    _refused_at: float = -NEVER
    _is_after_silence: bool = False

    def __post_init__(self) -> None:
        """Start at the first place that is not acknowledged."""
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
        """Whether only the window keeps something from being sent."""
        return bool(self._ahead or self._lost) and not self.has_unsent

    @property
    def room(self) -> tuple[int, int]:
        """Frames and bytes to load now: twice the window, so that the file is read while frames travel."""
        window = self.window
        frames = min(window.frames_max, 2 * window.frames) - self.loaded
        size = min(window.bytes_max, 2 * window.bytes) - self.loaded_bytes
        return (max(0, frames), max(0, size)) if self.loaded else (max(1, frames), max(1, size))

    @property
    def timer_at(self) -> float:
        """When `detect_losses` or `time_out` is due."""
        return min(self.resend_at, self.loss_check_at)

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

    def pop(self, now: float) -> tuple[Outgoing, bool]:
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

    # --- acknowledgements and refusals ---

    def acknowledge(self, place: Place, now: float, held_there: tuple[Run, ...] = ()) -> int:
        """
        Everything before `place` is stored at the far side, and it holds `held_there`; how many messages are done with.

        What is old, or is about fragments never sent, changes nothing.
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
        if held_there or self.loss_check_at != NEVER or (self._passed and self._passed[0].sent_at < self._arrived_at):
            self.detect_losses(now)
        return done

    def detect_losses(self, now: float) -> None:
        """Find what was lost: a later fragment has arrived, or the next hop refused this one, and its time is over."""
        patience = self.round_trip.patience
        self.loss_check_at = NEVER
        for fragment in self._passed:
            if fragment.stage is not FragmentStage.OUT:
                continue
            due = fragment.retry_at
            if fragment.sent_at < self._arrived_at:
                due = min(due, fragment.sent_at + patience)
            if due <= now:
                self._lose(fragment)
            else:
                self.loss_check_at = min(self.loss_check_at, due)

    def refuse(self, place: Place, now: float, wait: float) -> None:
        """The next hop refused the fragment and asks for it again after so many seconds; longer each time."""
        fragment = next((one for one in self._passed if one.place == place), None)
        if fragment is None or fragment.stage is not FragmentStage.OUT:
            return
        if fragment.sent_at > self._refused_at:
            self._refused_at = now
            self._refusals += 1
        floor = REFUSED_WAIT_MIN * 2.0 ** min(self._refusals - 1, REFUSED_DOUBLINGS)
        fragment.retry_at = min(fragment.retry_at, now + max(floor, wait))
        self.loss_check_at = min(self.loss_check_at, fragment.retry_at)

    def bring_forward(self, place: Place, at: float) -> None:
        """The fragment may be accepted now: send it again at `at`, without regard to earlier refusals."""
        fragment = next((one for one in self._passed if one.place == place), None)
        if fragment is not None and fragment.stage is FragmentStage.OUT:
            fragment.retry_at = min(fragment.retry_at, at)
            self.loss_check_at = min(self.loss_check_at, at)
        elif self.resend_at != NEVER:
            self.resend_at = min(self.resend_at, at)

    # --- time-outs and broken paths ---

    @property
    def is_on_its_way(self) -> bool:
        """Whether what was sent may still arrive, though it is not acknowledged; false for a while after time-outs."""
        return self.round_trip.attempts < FAITH

    def rewind(self) -> None:
        """The path broke: what is in flight is lost, so send it again from the first unacknowledged fragment."""
        self._passed.extend(self._ahead)
        self._ahead, self._passed = self._passed, deque()
        self._lost.clear()
        for fragment in self._ahead:
            if fragment.stage is not FragmentStage.HELD:
                fragment.stage = FragmentStage.WAITING
        self.in_flight = self.in_flight_bytes = 0
        self.resend_at = self.loss_check_at = NEVER
        self._pass_held()

    def unload(self) -> None:
        """Keep no fragment here; those that are still to be sent will be offered again."""
        for queue in (self._passed, self._ahead, self._lost):
            queue.clear()
        self.loaded = self.loaded_bytes = 0
        self.in_flight = self.in_flight_bytes = 0
        self.resend_at = self.loss_check_at = NEVER
        self.load_from = self.acknowledged

    def unload_until_resend(self) -> None:
        """Free the memory, and send nothing again before it is time."""
        resend_at = self.resend_at
        self.unload()
        self.resend_at = resend_at

    def time_out(self) -> None:
        """No acknowledgement came in time: unload, wait longer next time, and begin with a small window."""
        self.round_trip.time_out()
        self.window.collapse()
        self.unload()
        if not self.is_on_its_way:
            self._held_there = ()
        self._recovery = self._sent_to
        self._is_after_silence = True

    def _end_silence(self, place: Place) -> None:
        """After time-outs: restore the window if more is acknowledged than what was sent since."""
        self._is_after_silence = False
        last = self._passed[-1] if self._passed else None
        if last is None or place > after(last.place, last.flags):
            self.window.resume()

    def _drop_done(self, place: Place, arrived: list[Outgoing]) -> None:
        """Drop what is before `place`; what was in flight of it has arrived."""
        sequence = place[0]
        for queue in (self._passed, self._ahead):
            while queue:
                fragment = queue[0]
                # A last fragment is done with only when its message is: there is no place after it in there.
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

    def _hold(self, held: tuple[Run, ...], arrived: list[Outgoing]) -> None:
        """Record what the far side holds, of what is loaded and for what is not."""
        sequence = self.acknowledged[0]
        self._held_there = tuple(one for one in held[:HELD_MAX] or self._held_there if one[0] >= sequence)
        if not held:
            return
        by_sequence: dict[int, list[Run]] = {}
        for one in held:
            by_sequence.setdefault(one[0], []).append(one)
        for queue in (self._passed, self._ahead):
            for fragment in queue:
                runs = by_sequence.get(fragment.place[0])
                if runs is not None and fragment.stage is not FragmentStage.HELD and _is_in(fragment.place, runs):
                    if fragment.stage is FragmentStage.OUT:
                        self._arrive(fragment, arrived)
                    fragment.stage = FragmentStage.HELD
        self._clean_lost()
        self._unhold_first()
        self._pass_held()

    def _unhold_first(self) -> None:
        """The far side asks for the first unacknowledged fragment, so it does not hold it, even if it said so."""
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


def _is_in(place: Place, ranges: Iterable[Run]) -> bool:
    sequence, number = place
    return any(one[0] == sequence and one[1] <= number <= one[2] for one in ranges)
