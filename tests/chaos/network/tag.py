"""
The name that everything of one network carries, and whether whoever made it still lives.

A process is known by its number and the instant at which it started (`/proc/PID/stat`, field 22): a number alone comes
back some day.
"""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path

PATTERN = re.compile(r"broker-hosts-(\d+)-(\d+)-\d+")
_numbers = count(1)


def new_tag() -> str:
    """A tag of this process that no other network has."""
    return f"broker-hosts-{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"


def find_tag(text: str) -> str:
    """The tag that a name begins with; "" when it has none."""
    found = PATTERN.match(text)
    return found.group() if found else ""


def is_alive(tag: str) -> bool:
    """Whether the process that made it still runs."""
    found = PATTERN.fullmatch(tag)
    assert found, tag
    return _started(int(found.group(1))) == int(found.group(2))


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the system did; None when there is none, or only what is left of it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])
