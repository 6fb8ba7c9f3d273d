"""
How long to wait for an acknowledgement: measured round trips, smoothed, and a wait that doubles without one.

Time is an argument. A round trip is measured by frames that were sent once only: of a frame sent again nobody can tell
which copy was answered (Karn's rule). For the same reason an acknowledgement of frames sent again ends the doubling
only in part: where the way takes longer than the first wait, the next frame has to be waited for long enough to be
measured.

Source: RFC 6298, "Computing TCP's Retransmission Timer"; RFC 8985, sections 6.2 (reordering window) and 7.2.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER = float("inf")
FLOOR = 0.2  # seconds; RFC 6298 says 1, Linux 0.2: a commit of the far side and its delayed acknowledgement fit in
GRANULARITY = 0.01  # seconds; what a busy loop adds to any round trip
DOUBLINGS_KEPT = 3  # at most, when only frames sent again were acknowledged: a way 8 times slower than thought is found


@dataclass(frozen=True, slots=True)
class Backoff:
    """Shape: seconds until the first resend while no round trip is known, and the most that doubling leads to."""

    first: float
    cap: float


@dataclass(slots=True)
class RoundTrip:
    """
    The round trips of one direction of a dialog. Changed by its methods only.

    Shape: `smoothed`, `variation` seconds, None before the first measurement; `least` the shortest one, `latest` the
    last one, None once it was looked at; `attempts` time-outs in a row without progress, which double the wait.
    """

    backoff: Backoff
    smoothed: float | None = None
    variation: float = 0.0
    least: float = NEVER
    attempts: int = 0
    latest: float | None = None

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
