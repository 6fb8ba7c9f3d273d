"""
How much of a dialog may be under way, and how long to wait for its acknowledgement. Pure; time is an argument.

`Window` adapts in frames and in bytes. It starts small and doubles with every round trip that loses nothing (slow
start). Above the size at which something was lost before, it grows by one frame a round trip. A loss that later
acknowledgements showed halves it. When no acknowledgement arrived at all, it starts again with LEAST_FRAMES: trying a
dead path should cost little. When it turns out that the far side was only slow, or one frame was lost, half of the
window is back at once.

`RoundTrip` is measured and smoothed; the wait doubles with every time-out. Only frames that were sent once are
measured: of a frame sent again it is unknown which copy was acknowledged (Karn's rule). For the same reason an
acknowledgement of frames sent again ends the doubling only in part: where the path takes longer than the first wait,
the next frame has to be waited for long enough to be measured.

Sources: RFC 5681, "TCP Congestion Control", sections 3.1 and 3.2; RFC 3522, "The Eifel Detection Algorithm"; RFC 6298,
"Computing TCP's Retransmission Timer"; RFC 8985, sections 6.2 (reordering window) and 7.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NEVER = float("inf")
FLOOR = 0.2  # seconds; RFC 6298 says 1, Linux 0.2: a commit of the far side and its delayed acknowledgement fit in
GRANULARITY = 0.01  # seconds; what a busy loop adds to any round trip
DOUBLINGS_KEPT = 3  # at most, when only frames sent again were acknowledged: a way 8 times slower than thought is found
FIRST_FRAMES = 64  # before anything was acknowledged: a burst of small messages leaves at once
FIRST_BYTES = 1024 * 1024  # sixteen fragments of the default size
LEAST_FRAMES = 4  # after a time-out, and whatever is lost
LEAST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits, in seconds."""

    first: float  # while no round trip is known
    cap: float  # what doubling leads to at most


@dataclass(slots=True)
class RoundTrip:
    """The round trips of one direction of a dialog, in seconds. Changed by its methods only."""

    backoff: Backoff
    smoothed: float | None = None  # None before the first measurement
    variation: float = 0.0
    least: float = NEVER
    attempts: int = 0  # time-outs in a row without progress, which double the wait
    latest: float | None = None  # reset by its reader

    @property
    def timeout(self) -> float:
        """Seconds to wait for an acknowledgement of what is sent now."""
        if self.smoothed is None:
            wait = self.backoff.first
        else:
            wait = max(FLOOR, self.smoothed + max(GRANULARITY, 4.0 * self.variation))
        return min(self.backoff.cap, wait * 2.0 ** min(self.attempts, 32))

    @property
    def patience(self) -> float:
        """Seconds after which a frame is lost when a later one has arrived: other gateways may just be slower."""
        if self.smoothed is None:
            return self.timeout
        return self.smoothed + max(GRANULARITY, self.smoothed / 4.0, 4.0 * self.variation)

    def measure(self, seconds: float) -> None:
        """A frame that was sent once was acknowledged after so long."""
        if self.smoothed is None:
            self.smoothed, self.variation = seconds, seconds / 2.0
        else:
            self.variation += (abs(self.smoothed - seconds) - self.variation) / 4.0
            self.smoothed += (seconds - self.smoothed) / 8.0
        self.least = min(self.least, seconds)
        self.latest = seconds
        self.attempts = 0

    def progress(self) -> None:
        """Something was acknowledged that says nothing about the round trip."""
        self.attempts = min(self.attempts, DOUBLINGS_KEPT)

    def time_out(self) -> None:
        """No acknowledgement came in time."""
        self.attempts += 1


@dataclass(slots=True)
class Window:
    """
    The window of one direction of a dialog. Changed by its methods only.

    One frame may always be under way, however large.
    """

    frames_max: int
    bytes_max: int
    frames: int = field(init=False)  # that may be under way now
    bytes: int = field(init=False)
    _threshold: int = field(init=False)  # frames; from here on it grows slowly
    _half_bytes: int = 0  # of the window before the last silence
    _credit: int = 0  # frames acknowledged towards the next one of slow growth

    def __post_init__(self) -> None:
        """Begin small."""
        self.frames = min(FIRST_FRAMES, self.frames_max)
        self.bytes = min(FIRST_BYTES, self.bytes_max)
        self._threshold = self.frames_max

    def bound(self, frames_max: int, bytes_max: int) -> None:
        """It has these bounds from now on: what is larger is cut, what is smaller may grow to them."""
        self._threshold = frames_max if self._threshold == self.frames_max else min(self._threshold, frames_max)
        self.frames_max, self.bytes_max = frames_max, bytes_max
        self.frames, self.bytes = min(self.frames, frames_max), min(self.bytes, bytes_max)

    def grow(self, frames: int, size: int) -> None:
        """So many frames and bytes were acknowledged."""
        if self.frames < self._threshold:
            self.frames = min(self.frames_max, self.frames + frames)
            self.bytes = min(self.bytes_max, self.bytes + size)
            return
        self._credit += frames
        if self._credit >= self.frames:
            self._credit = 0
            self.bytes = min(self.bytes_max, self.bytes + max(1, self.bytes // self.frames))
            self.frames = min(self.frames_max, self.frames + 1)

    def shrink(self) -> None:
        """Something was lost, and later frames arrive."""
        self.frames = min(self.frames_max, max(LEAST_FRAMES, self.frames // 2))
        self.bytes = min(self.bytes_max, max(LEAST_BYTES, self.bytes // 2))
        self._threshold = self.frames
        self._credit = 0

    def collapse(self) -> None:
        """No acknowledgement arrived: start again, quickly up to half of what it was before the silence."""
        if self.frames > LEAST_FRAMES:
            self._threshold = max(LEAST_FRAMES, self.frames // 2)
            self._half_bytes = max(LEAST_BYTES, self.bytes // 2)
        self.frames = min(self.frames_max, LEAST_FRAMES)
        self.bytes = min(self.bytes_max, LEAST_BYTES)
        self._credit = 0

    def resume(self) -> None:
        """Most or all that was sent before the silence had arrived: continue with half of the window before it."""
        self.frames = max(self.frames, min(self.frames_max, self._threshold))
        self.bytes = max(self.bytes, min(self.bytes_max, self._half_bytes))
