"""The circumstances of a figure: printed above every table, kept in every result."""

import json
import os
import platform
import sqlite3
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from broker.errors import BrokerError

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
        "broker": _version("service-broker"),
    }


def load_averages() -> str:
    """Return the load of the machine over 1, 5 and 15 minutes; the benchmark itself counts."""
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process so far, all its threads; exact to the nanosecond, not to a tick."""
    # The number that clock_getcpuclockid(3) gives for another process; the standard library knows it for threads only.
    return time.clock_gettime(~pid << 3 | 2)


def thread_seconds(pid: int, thread: int) -> float:
    """The same of one thread of a process; its first has the number of the process."""
    text = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii")
    return int(text.split()[0]) / 1e9


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
    raise ProcessLookupError(f"process {pid} has ended and has no memory")


def _processor(cpuinfo: Path) -> str:
    """Return the name of the processor as the system reports it, which Python knows on few machines."""
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


# --- result ---
# Figures as values: rows, the run that made them, and what has changed since another run.
#
# Machines differ and have neighbours, so two runs are never compared by their figures, but by the ratio of each figure
# to the yardstick of the same run. The yardstick is a row of the same benchmark, the same case and the same mode that
# does the least there is to do, such as a relay that reads nothing.


SMALLEST_CHANGE = 0.05  # below it two runs are the same, however steady they were
LARGEST_NOISE = 0.5  # above it two runs cannot distinguish an increase of a half from none
FORMAT = 1  # of the file

Key = tuple[str, str, str, str]
"""Benchmark, case, mode, subject: what makes rows of two runs the same row."""


class ResultError(BrokerError):
    """A file of stored results that cannot be read."""


@dataclass(frozen=True, slots=True)
class Row:
    """
    One thing measured in one way.

    Attributes:
        values: Medians by name and unit (`cpu_us`, `messages_s`, `p50_us` ...).
        headline: The name of the value that is compared.
        spread: Half the interquartile range of the headline value, relative to itself.
    """

    bench: str
    case: str
    mode: str
    subject: str
    headline: str
    values: dict[str, float]
    spread: float = 0.0
    is_yardstick: bool = False

    @property
    def key(self) -> Key:
        """Its place among the rows."""
        return self.bench, self.case, self.mode, self.subject

    @property
    def figure(self) -> float:
        """The value that is compared."""
        return self.values[self.headline]

    @property
    def is_less_better(self) -> bool:
        """Whether the smaller figure is the better one: times are, rates are not."""
        return not self.headline.endswith("_s")


@dataclass(frozen=True, slots=True)
class Result:
    """
    A run of the benchmark.

    Attributes:
        machine: As `machine` returns it.
        load: `load_averages` before and after.
        at: UTC, ISO 8601.
        notes: In words.
    """

    machine: dict[str, str]
    at: str
    load: dict[str, str]
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FigureChange:
    """
    One row against the same row of an earlier run.

    Attributes:
        then: Ratio to the yardstick of the earlier run, None where there is nothing to compare with.
        now: Ratio to the yardstick of this run.
        tolerance: Relative.
    """

    row: Row
    now: float
    then: float | None = None
    tolerance: float = field(default=SMALLEST_CHANGE)

    @property
    def verdict(self) -> str:
        """Return "better", "worse", "same" or "new" in words, or that the runs are too noisy to compare."""
        if self.then is None:
            return "new"
        ratio = self.now / self.then if self.row.is_less_better else self.then / self.now
        if abs(ratio - 1) <= self.tolerance:
            return "same" if self.tolerance <= LARGEST_NOISE else "too noisy"
        return f"better, {1 / ratio:.2f} times" if ratio < 1 else f"WORSE, {ratio:.2f} times"


def row_of(key: Key, headline: str, samples: Sequence[dict[str, float]], *, yardstick: str) -> Row:
    """Make a row from at least one sample, all with the same names; `yardstick` is a subject."""
    values = {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}
    spread = _spread([sample[headline] for sample in samples])
    return Row(*key, headline, values, spread, is_yardstick=key[-1] == yardstick)


def yardsticks(rows: Iterable[Row]) -> dict[tuple[str, ...], Row]:
    """The yardstick of each benchmark, case and mode that has one."""
    return {row.key[:3]: row for row in rows if row.is_yardstick}


def compare(now: Sequence[Row], then: Sequence[Row]) -> list[FigureChange]:
    """Every row of this run that has a yardstick, against the earlier one; the yardsticks themselves are left out."""
    earlier = {row.key: row for row in then}
    sticks, earlier_sticks = yardsticks(now), yardsticks(then)
    changes = []
    for row in now:
        stick, old, old_stick = sticks.get(row.key[:3]), earlier.get(row.key), earlier_sticks.get(row.key[:3])
        if row.is_yardstick or stick is None:
            continue
        if old is None or old_stick is None or old.headline != row.headline:
            changes.append(FigureChange(row, row.figure / stick.figure))
            continue
        noise = sum(each.spread**2 for each in (row, stick, old, old_stick)) ** 0.5
        tolerance = max(SMALLEST_CHANGE, 2 * noise)
        changes.append(FigureChange(row, row.figure / stick.figure, old.figure / old_stick.figure, tolerance))
    return changes


def save(result: Result, path: Path) -> None:
    """Write it as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"format": FORMAT, **asdict(result)}, indent=2) + "\n", encoding="utf-8")


def load(path: Path) -> Result:
    """
    Read what `save` wrote.

    Raises:
        ResultError: no such file, not JSON, or not of this form.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.pop("format") != FORMAT:
            raise ResultError(f"{path}: stored by another version; run the benchmark again")
        rows = tuple(Row(**row) for row in stored.pop("rows"))
        return Result(**(stored | {"rows": rows, "notes": tuple(stored["notes"])}))
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultError(f"{path}: holds no results of a benchmark; name a file that `bench.run` has saved") from error


def _spread(samples: Sequence[float]) -> float:
    middle = statistics.median(samples)
    if len(samples) < 2 or not middle:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / 2 / middle
