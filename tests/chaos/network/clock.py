"""
The wall clock of the processes of one host, stepped while they run.

A small library, `wall_clock.c`, stands before libc in every process started with `words` and in their children, and
adds an offset that it reads from a mapped file, so that a step is felt at once, at no cost. Monotonic clocks are not
touched, and nothing that waits is: select, sleep, locks. Debian's libfaketime 0.9.10 does not do: under it, with
monotonic clocks left alone, Python's `time.sleep` fails (its issue 426).
"""

from __future__ import annotations

import struct
from pathlib import Path

from bench.generator import compiler
from tests.chaos.network.command import run
from tests.chaos.network.impairment import ImpossibleError

SOURCE = Path(__file__).with_name("wall_clock.c")
LIBRARY = "wall_clock.so"
NANOSECONDS = 1_000_000_000


class Clock:
    """Shape: `offset` seconds that the wall clock of the host is ahead; negative = behind."""

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: The file that holds the offset; made here, and beside it the library, once for a directory.

        Raises:
            ImpossibleError: there is no C compiler.
            NetworkError: the compiler failed; with what it said.
        """
        self.offset = 0.0
        self._path = path
        self._library = path.with_name(LIBRARY)
        path.write_bytes(bytes(8))
        if not self._library.exists():
            c_compiler = compiler()
            if c_compiler is None:
                raise ImpossibleError("no C compiler for a clock; set CC")
            run(c_compiler, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE), "-ldl")

    @property
    def words(self) -> tuple[str, ...]:
        """Words before a command whose clock this is to be."""
        return ("env", f"LD_PRELOAD={self._library}", f"BROKER_TEST_CLOCK={self._path}")

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back; adds to what was done before."""
        self.offset += seconds
        with self._path.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", round(self.offset * NANOSECONDS)))

    def restore(self) -> None:
        """The time of the system again."""
        self.step(-self.offset)
