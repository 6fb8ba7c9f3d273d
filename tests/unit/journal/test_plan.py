"""The buffer is shared out between the ring and what waits."""

from __future__ import annotations

from pathlib import Path

from broker.journal.writer import RINGS, JournalPlan


def test_ring_is_a_part_of_the_buffer() -> None:
    assert 4 << 20 == JournalPlan(Path("/flows"), "gw", buffer_bytes=32 << 20).ring_bytes
    assert RINGS > 3  # the ring, copies, and at least two to take turns
