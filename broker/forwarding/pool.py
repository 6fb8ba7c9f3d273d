"""
The bounded pool: how many bytes the frames waiting here may take, all next hops together.

Every held frame is charged its own bytes and a fixed overhead for what Python needs to hold it, so that the bound
holds for the process and not only for payload: many small frames cannot take more memory than few large ones.
`MESSAGE_FORWARD_SIZE` of the original. Loop-only; changed by outboxes alone.
"""

from __future__ import annotations

# Bytes a held frame costs beside itself: its bytes object, its tuple in the queue and its key in the set of held
# frames, as measured with tracemalloc on CPython 3.11 (about 290) and rounded up.
HELD_OVERHEAD = 320


class Pool:
    """
    A counter with a bound.

    Shape: `used_bytes` charged now, overhead included; `frames` held now; `limit_bytes` the bound.
    """

    __slots__ = ("frames", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.frames = 0

    def admit(self, frame_bytes: int) -> bool:
        """Charge one frame; False, and nothing charged, when it does not fit."""
        cost = frame_bytes + HELD_OVERHEAD
        if self.used_bytes + cost > self.limit_bytes:
            return False
        self.used_bytes += cost
        self.frames += 1
        return True

    def release(self, frame_bytes: int) -> None:
        """Take back the charge of one admitted frame."""
        self.used_bytes -= frame_bytes + HELD_OVERHEAD
        self.frames -= 1
