"""What a figure was measured on: printed above every table, kept in every result."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CORES = sorted(os.sched_getaffinity(0))  # that this process was given, before it gave them out itself


def machine() -> dict[str, str]:
    """Processor, cores, memory, system and versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": _processor(CPUINFO),
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "uvloop": _version("uvloop"),
        "sqlite": sqlite3.sqlite_version,
        "broker": _version("broker"),
    }


def load_averages() -> str:
    """What else the machine does, over 1, 5 and 15 minutes; the benchmark itself counts."""
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all its threads. Shape: exact to the nanosecond, not to a tick."""
    # The number that clock_getcpuclockid(3) gives for another process; the standard library knows it for threads only.
    return time.clock_gettime(~pid << 3 | 2)


def thread_seconds(pid: int, thread: int) -> float:
    """The same of one thread of a process; its first has the number of the process."""
    told = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii")
    return int(told.split()[0]) / 1e9


def peak_mib(pid: int) -> float:
    """MiB of a process that were in memory at most, since its start or the last `forget_peak`."""
    return _memory_mib(pid, "VmHWM:")


def resident_mib(pid: int) -> float:
    """MiB of a process that are in memory now."""
    return _memory_mib(pid, "VmRSS:")


def forget_peak(pid: int) -> None:
    """The peak of a process counts from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def pin(pid: int, core: int) -> None:
    """Keep a process, all its threads, on one of `CORES`, where there are two; core 0 and core 1 are different ones."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {CORES[core % len(CORES)]})


def unpin(pid: int) -> None:
    """Let a process use every core again."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), CORES)


def _memory_mib(pid: int, word: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(word):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has no memory any more")


def _processor(cpuinfo: Path) -> str:
    """The name of the processor as the system tells it, which Python knows on few machines."""
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
