"""
What the processes of a dialog spend on a message: CPU time of each, and how often they make the disk keep something.

Rates tell of the neighbours as much as of the broker; this tells of the broker. CPU time is read from the system. The
calls of `fsync` and `fdatasync` are counted by a small library in C that is loaded into processes started meanwhile;
where there is no compiler they are not told.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from broker.bench.generator import GeneratorError, compiler
from broker.bench.machine import cpu_seconds

SOURCE = Path(__file__).with_name("syncs.c")
DIRECTORY = "BROKER_BENCH_SYNCS"  # where the counts are: in the environment, for the library
PRELOAD = "LD_PRELOAD"
_COUNT_BYTES = 8

Spent = dict[str, tuple[float, int]]
"""By what a process is to the benchmark: CPU seconds, and how often it synced, so far."""


@contextmanager
def counting_syncs(c_compiler: str | None) -> Iterator[Path | None]:
    """
    Whoever is started inside counts its syncs.

    Args:
        c_compiler: None to count nothing.

    Returns:
        The directory of the counts, for `spent`; None when nothing is counted.

    Raises:
        GeneratorError: the compiler failed; tells what it said.
    """
    if c_compiler is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "syncs.so"
        command = [c_compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's own
        except OSError as error:
            raise GeneratorError(f"{SOURCE.name}: {c_compiler} does not run: {error.strerror}; set CC") from error
        if done.returncode:
            raise GeneratorError(f"{SOURCE.name}: {c_compiler} cannot compile it: {done.stderr.strip()}")
        before = os.environ.get(PRELOAD)
        os.environ |= {PRELOAD: " ".join(filter(None, (before, str(library)))), DIRECTORY: directory}
        try:
            yield Path(directory)
        finally:
            del os.environ[DIRECTORY], os.environ[PRELOAD]
            if before is not None:
                os.environ[PRELOAD] = before


@contextmanager
def counting() -> Iterator[Path | None]:
    """The same with the compiler of this machine."""
    with counting_syncs(compiler()) as counts:
        yield counts


def spent(pids: Mapping[str, int], counts: Path | None) -> Spent:
    """What these processes have spent so far. Shape: `pids` by what a process is to the benchmark."""
    return {name: (cpu_seconds(pid), _syncs(counts, pid)) for name, pid in pids.items()}


def values_of(before: Spent, after: Spent, messages: int, *, has_syncs: bool) -> dict[str, float]:
    """
    What was spent between, for each message.

    Returns:
        `cpu_us` of all together and `<name>_us` of each, microseconds; `syncs` of all together where they were counted.
    """
    micros = {name: (after[name][0] - before[name][0]) / messages * 1e6 for name in after}
    syncs = sum(after[name][1] - before[name][1] for name in after) / messages
    values = {"cpu_us": sum(micros.values())} | ({"syncs": syncs} if has_syncs else {})
    return values | {f"{name}_us": value for name, value in micros.items()}


def _syncs(counts: Path | None, pid: int) -> int:
    """Zero for a process that has not synced yet."""
    try:
        data = b"" if counts is None else (counts / str(pid)).read_bytes()
    except FileNotFoundError:
        data = b""
    return int.from_bytes(data[:_COUNT_BYTES], "little")
