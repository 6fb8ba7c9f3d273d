"""
uvloop with a clock that tells microseconds.

Its own is the kernel's coarse one, in whole milliseconds: up to some milliseconds behind `time.monotonic`, which is too
little to say how long a frame was here. Both count from the same instant, and so does every instant that the loop
gives out. Timers stay those of uvloop, which may ring up to two milliseconds early.
"""

from __future__ import annotations

import time

import uvloop


class ExactLoop(uvloop.Loop):
    """The loop of an instance, where uvloop is installed. Cost: of `time`, 0.1 microseconds more."""

    time = staticmethod(time.monotonic)
