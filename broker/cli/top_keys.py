"""
The keys that are pressed while a screen is shown: read one at a time, without Enter, and not echoed.

Source: XTerm Control Sequences, "PC-Style Function Keys".
"""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_SEQUENCES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home", "\x1b[F": "end",
}  # fmt: skip
_READ_BYTES = 256
END = "end of input"


def keys_in(data: str) -> Iterator[str]:
    """The keys in what a terminal sent: a character, or a name such as `left`; unknown sequences are none."""
    at = 0
    while at < len(data):
        if data[at] != "\x1b":
            yield data[at]
            at += 1
            continue
        length = next((size for size in (3, 4) if data[at : at + size] in _SEQUENCES), 0)
        if length:
            yield _SEQUENCES[data[at : at + length]]
            at += length
        else:
            at += 1
            while at < len(data) and not ("@" <= data[at] <= "~" and data[at] not in "[O"):
                at += 1
            at += 1


@contextmanager
def pressed_one_by_one() -> Iterator[None]:
    """Standard input gives each key at once; Ctrl-C still interrupts. Afterwards it is as it was."""
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def wait_for_keys(seconds: float) -> list[str]:
    """The keys that are pressed within so many seconds, as soon as there are any; `END` when no more will come."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return []
    data = os.read(sys.stdin.fileno(), _READ_BYTES)
    return list(keys_in(data.decode(errors="replace"))) if data else [END]
