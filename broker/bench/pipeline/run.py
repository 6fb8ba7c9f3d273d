"""
One engine at the questions of the pipeline, in a process of its own: `python -m broker.bench.pipeline.run TASK`.

TASK is a JSON object (`Task`); what was measured is printed as another, one entry for each pass. CPU time is that of
all processes of the tree, a JVM and its Python workers among them; that of the first pass counts from the start of the
process, so that starting and compiling are in it. Memory is the sum of what each of them took at most.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker.bench.machine import peak_mib
from broker.bench.pipeline.task import decoded

if TYPE_CHECKING:  # an installation need not have it
    import psutil


@dataclass(frozen=True, slots=True)
class Spent:
    """Shape: CPU and wall seconds, MiB."""

    cpu_seconds: float
    seconds: float
    peak_mib: float


def main(argument: str) -> None:
    """Do it, and print what it took."""
    task = decoded(argument)
    if task.engine == "spark":
        from broker.bench.pipeline.spark import prepare  # noqa: PLC0415 - each engine is slow to import
    elif task.engine == "duckdb":
        from broker.bench.pipeline.duck import prepare  # noqa: PLC0415 - likewise
    else:
        from broker.bench.pipeline.polars import prepare  # noqa: PLC0415 - likewise
    answer = prepare(task)
    begun, spent_before = _started(), 0.0
    told = []
    for number in range(task.passes):
        out = Path(task.out) / str(number)
        out.mkdir(parents=True)
        answer(out)
        now, spent_now = time.clock_gettime(time.CLOCK_BOOTTIME), cpu_of_tree()
        told.append(asdict(Spent(spent_now - spent_before, now - begun, peak_of_tree())))
        begun, spent_before = now, spent_now
    sys.stdout.write(json.dumps(told) + "\n")


def cpu_of_tree() -> float:
    """CPU seconds of this process and of all that it started, those that ended and were waited for among them."""
    import psutil  # noqa: PLC0415 - see above

    total = 0.0
    for process in _tree():
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def peak_of_tree() -> float:
    """MiB that the processes took at most, each at its own time."""
    total = 0.0
    for process in _tree():
        try:
            total += peak_mib(process.pid)
        except (ProcessLookupError, FileNotFoundError):
            continue
    return total


def _started() -> float:
    """When this process began, by the clock that runs since the boot: the wall clock may have been set since."""
    ticks = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def _tree() -> list[psutil.Process]:
    import psutil  # noqa: PLC0415 - see above

    this = psutil.Process()
    return [this, *this.children(recursive=True)]


if __name__ == "__main__":
    main(sys.argv[1])
