"""
Where a body becomes large, and by what it is cut then.

A body above LARGE_BYTES is never one value: neither in the memory of a process nor in a row of the file, where SQLite
takes 1,000,000,000 bytes at most. What is sent waits as parts of PART_BYTES (`broker_transmission_part`), what came
waits as the fragments that brought it (`broker_fragment`).
"""

from __future__ import annotations

LARGE_BYTES = 1024 * 1024  # one turn of the writer loads many messages: those up to this length whole
PART_BYTES = 256 * 1024  # a part is rewritten as one value: above it SQLite's overflow pages gain nothing any more
