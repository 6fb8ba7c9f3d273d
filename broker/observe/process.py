"""
What the process takes of its machine, under the names that every exporter has for it.

Cheap, and for any thread: files of /proc and counters of the interpreter, nothing that others have to wait for. What a
system does not tell is left out.

Source: Prometheus documentation, "Writing client libraries", "Process metrics"; Linux, proc(5).
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from broker.observe.described import MetricDefinition
from broker.observe.label import Labels

PROCESS_METRICS = (
    MetricDefinition("process_cpu_seconds_total", "Processor time used, in user and system mode."),
    MetricDefinition("process_resident_memory_bytes", "Memory in use."),
    MetricDefinition("process_virtual_memory_bytes", "Address space in use."),
    MetricDefinition("process_start_time_seconds", "When the process was started, in seconds since 1970."),
    MetricDefinition("process_open_fds", "File descriptors that are open."),
    MetricDefinition("process_max_fds", "File descriptors that may be open."),
    MetricDefinition("process_threads", "Threads of the interpreter."),
    MetricDefinition("python_gc_collections_total", "Runs of the garbage collector.", ("generation",)),
    MetricDefinition("python_gc_objects_collected_total", "Objects that it has found and freed.", ("generation",)),
)
_SELF = Path("/proc/self")
_START_FIELD = 19  # of stat, behind the name in brackets: ticks since the machine was started


def process_samples() -> Mapping[str, list[tuple[Labels, float]]]:
    """By metric, as of now. Cost: some 100 us, and 0.3 us for each descriptor."""
    return {name: [(labels, value)] for name, labels, value in _single()} | {
        name: [((str(generation),), float(stats[field])) for generation, stats in enumerate(gc.get_stats())]
        for name, field in (
            ("python_gc_collections_total", "collections"),
            ("python_gc_objects_collected_total", "collected"),
        )
    }


def _single() -> Iterator[tuple[str, Labels, float]]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield "process_cpu_seconds_total", (), used.ru_utime + used.ru_stime
    yield "process_max_fds", (), float(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield "process_threads", (), float(threading.active_count())
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = (_SELF / "statm").read_text().split()
        page = resource.getpagesize()
        yield "process_virtual_memory_bytes", (), float(int(pages[0]) * page)
        yield "process_resident_memory_bytes", (), float(int(pages[1]) * page)
    with contextlib.suppress(OSError):
        yield "process_open_fds", (), float(len(os.listdir(_SELF / "fd")) - 1)  # noqa: PTH208 - names only, no paths
    with contextlib.suppress(OSError, ValueError, IndexError):
        yield "process_start_time_seconds", (), _started_at()


def _started_at() -> float:
    """UTC seconds since 1970."""
    ticks = int((_SELF / "stat").read_text().rpartition(")")[2].split()[_START_FIELD])
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
