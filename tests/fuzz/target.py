"""
What fuzzing is aimed at: bytes in, and out come only the errors that the module documents, within a time and a memory.

A target is plain: no fuzzer is needed to run it, so the kept corpus is replayed by every test run.
"""

import atexit
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

CORPUS = Path(__file__).with_name("corpus")
SECONDS_MAX = 2.0 * float(os.environ.get("BROKER_TEST_SLOWNESS", "1"))  # for one input; the slowest take some 20 ms
KIB = 1024


@dataclass(frozen=True)
class Target:
    """
    One door that strangers' bytes come in by.

    Args:
        name: Of its folder in the corpus.
        take: Does with an input what the daemon does; asserts what must hold; runs for long before anybody closes it.
        raises: The errors that are a clear refusal; anything else that comes out is a finding.
        seeds: Good inputs, and known bad ones, from which a fuzzer sets out.
        input_max: Bytes of the longest input that is tried.
        memory_max: Bytes of Python objects that one input may take at its peak.
        words: What the language is made of; a fuzzer puts it in where it likes.
    """

    name: str
    take: Callable[[bytes], None]
    raises: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    input_max: int = 4 * KIB
    memory_max: int = 8 * KIB * KIB
    words: tuple[str, ...] = ()

    def attempt(self, data: bytes) -> str:
        """
        Try one input.

        Returns:
            The refusal; empty when the input was taken.

        Raises:
            Whatever is none of `raises`: that is a finding.
        """
        try:
            self.take(data)
        except self.raises as error:
            return str(error) or type(error).__name__
        return ""

    def measure(self, data: bytes) -> tuple[float, int]:
        """Seconds and peak bytes of one input, taken one after the other, since tracing is slow."""
        began = time.perf_counter()
        self.attempt(data)
        seconds = time.perf_counter() - began
        tracemalloc.start()
        try:
            self.attempt(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return seconds, peak

    def inputs(self) -> list[bytes]:
        """What it sets out from, and what was kept for it."""
        return [*self.seeds(), *(path.read_bytes() for path in self.corpus())]

    def corpus(self) -> list[Path]:
        """The inputs that are kept, in the order of their names."""
        return sorted((CORPUS / self.name).glob("*"))


@cache
def directory() -> Path:
    """Files of this process; gone when it ends."""
    made = tempfile.TemporaryDirectory(prefix="broker-fuzz-")
    atexit.register(made.cleanup)
    return Path(made.name)


def refused(read: Callable[[], object], *kinds: type[Exception]) -> None:
    """Every refusal of what is read is a ValueError or one of these errors, and says something."""
    allowed: tuple[type[Exception], ...] = (ValueError, *kinds)
    try:
        read()
    except allowed as error:
        assert str(error)  # noqa: PT017 - most inputs are refused, and the other readers are asked as well


def groups() -> tuple[ModuleType, ...]:
    """The modules that have targets, imported when they are asked for: a fuzzer instruments one of them."""
    from tests.fuzz import live, operator, peer, word

    return (peer, operator, word, live)


@cache
def targets() -> dict[str, Target]:
    """All targets by name; those that run servers last."""
    found = [target for group in groups() for target in group.targets()]
    assert len(found) == len({target.name for target in found}), "each has a name of its own"
    return {target.name: target for target in found}
