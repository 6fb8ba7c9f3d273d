"""What a journal is told once: where, for whom, how much of it, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RINGS = 8  # of the buffer: the ring, as much for copies, and what the ring goes on in while others are read


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """
    Shape: `directory` absolute; `instance` its name; `sample` the fraction of dialogs; `buffer_bytes` for records that
    are not rows yet, an eighth of it in the ring; `file_bytes`, `file_seconds` at which a file is closed; `keep_bytes`
    of all files, `keep_seconds` of their age, 0 is no bound; `decoder` by name, empty is the fastest.
    """

    directory: Path
    instance: str
    sample: float = 1.0
    buffer_bytes: int = 32 << 20
    file_bytes: int = 64 << 20
    file_seconds: float = 900.0
    keep_bytes: int = 0
    keep_seconds: float = 0.0
    decoder: str = ""

    @property
    def ring_bytes(self) -> int:
        """What the pass may write before the loop looks; so much again may be copied, the rest takes turns with it."""
        return self.buffer_bytes // RINGS
