"""
How long frames were here: histograms, counted by the batch.

A batch leaves in one call stack after the read that brought it, so its frames share one time, and the clock is read
once for all of them. Where reads bring a frame or two each and follow close on each other, one time counts for up to
`SHARED_FRAMES`: timing each read took half a microsecond, of the five that the pass takes for a lone frame. A frame
that had to wait counts with the time that it waited. The kernels know nothing of it.
"""

from __future__ import annotations

from bisect import bisect_left

# Seconds: from the fastest lone frame to frames that wait for a next hop that restarts.
_MICROSECONDS, _MILLISECONDS = (0.00005, 0.0001, 0.00025, 0.0005), (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
BOUNDS = (*_MICROSECONDS, *_MILLISECONDS, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

SHARED_FRAMES = 16  # that one time counts for at most, when reads bring fewer
REST_SECONDS = 0.01  # after which a read is timed by itself


def bucket(seconds: float) -> int:
    """The index of the first of `BOUNDS` that is not below a time; `len(BOUNDS)` when all are."""
    return bisect_left(BOUNDS, seconds)


class Times:
    """A histogram."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)  # by `bucket`
        self.seconds = 0.0  # the sum

    def observe(self, seconds: float, times: int) -> None:
        """Count so many that took so long each."""
        self.counts[bucket(seconds)] += times
        self.seconds += seconds * times


class HopTimes(Times):
    """The times of frames. Loop-only."""

    __slots__ = ("_last", "due", "pending")

    def __init__(self) -> None:
        super().__init__()
        self.pending = 0  # frames that have left, or are about to, and are not counted yet
        self.due = 0.0  # monotonic seconds from which the next read is timed, however few frames it brings
        self._last = 0.0

    def handed_over(self, since: float, now: float) -> None:
        """The batch that was read at `since` has left; its time counts for all that is pending."""
        self.due = now + REST_SECONDS
        self._last = now - since
        self.count_pending()

    def count_pending(self) -> None:
        """Count what is pending, with the last time there is."""
        frames, self.pending = self.pending, 0
        if frames:
            self.observe(self._last, frames)
