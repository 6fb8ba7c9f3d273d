"""
The inventory of a run: which files are read, which are left out and why, and how complete they are.

Every file is checked by its footer (`broker.journal.schema.judge`) before Spark gets it, because one broken file ends a
Spark job, and a copy would silently count twice. Files that are left out are kept with the reason, and every run
reports them: a figure that lacks a file is never silently wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from broker.config.units import counted
from broker.errors import NoJournalError
from broker.journal.schema import FileState, Fitness, files, judge, without_copies
from broker.pipeline.results import VISIT

NAMED_MAX = 20  # files that are named one by one
SILENT = timedelta(hours=1)  # an instance that wrote nothing for longer is taken as ended
TRANSIT_US = 1_000_000  # a frame that left so shortly before a hole may have come in it
_FIRST_FILE = "-000001-"  # in the name of the first file of a process
_JUDGES = 8  # threads: judging waits for the disk


@dataclass(slots=True)
class Inventory:
    """The files of a run: `states` of all that were found."""

    states: list[FileState]

    @property
    def readable(self) -> list[FileState]:
        """The files whose rows are read."""
        return [state for state in self.states if state.is_readable]

    def horizon_us(self) -> int | None:
        """
        Return up to when the journals are complete, microseconds since 1970; None if no footer has an instant.

        Instances close their files at different times. The horizon is the earliest of their newest instants: a frame
        in transit at that time may have arrived in a file that is not there yet. A silent instance delays it by SILENT
        at most.
        """
        newest: dict[str, int] = {}
        for state in self.readable:
            if state.last_us is not None:
                newest[state.instance] = max(state.last_us, newest.get(state.instance, state.last_us))
        if not newest:
            return None
        return max(min(newest.values()), max(newest.values()) - SILENT // timedelta(microseconds=1))

    def holes(self) -> dict[str, list[tuple[int, int]]]:
        """
        Return by instance from when to when, microseconds since 1970, nothing is known of it.

        A process that is killed takes its unfinished file with it. So nothing is known between the last record of one
        process and the first of the next, nor before the first of all. A record is of the instant at
        which its visit ended: messages may have been queued by the process that was killed.
        """
        holes: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        last: dict[str, int] = {}
        for state in sorted(self.readable, key=lambda one: one.first_left_us or 0):
            if state.first_left_us is not None and state.last_us is not None:
                before = last.get(state.instance, 0)
                if _FIRST_FILE in state.path.name:
                    holes[state.instance].append((before - TRANSIT_US, state.first_left_us))
                last[state.instance] = max(before, state.last_us)
        return dict(holes)

    @property
    def samples(self) -> dict[str, list[float]]:
        """The shares of dialogs that instances recorded, sorted."""
        samples: defaultdict[str, set[float]] = defaultdict(set)
        for state in self.readable:
            samples[state.instance].add(state.sample)
        return {name: sorted(found) for name, found in samples.items()}

    def summary(self) -> dict[str, Any]:
        """
        Return the report as JSON values; counts are of files unless their names say otherwise.

        Spark silently leaves out files that are removed while it reads: they are looked up now.
        """
        readable = self.readable
        fitness = Counter(state.fitness for state in self.states)
        shed: Counter[str] = Counter()
        for state in readable:
            shed[state.instance] += state.shed
        left_out = [state for state in self.states if not state.is_readable]
        return {
            "found": len(self.states),
            "read": len(readable),
            "rows": sum(state.rows for state in readable),
            "bytes": sum(state.bytes for state in readable),
            "instances": len({state.instance for state in readable}),
            **{str(one): fitness[one] for one in Fitness if one is not Fitness.GOOD},
            "vanished_while_read": sum(not state.path.exists() for state in readable),
            "shed_records": dict(sorted(shed.items())),
            "samples": dict(sorted(self.samples.items())),
            "holes": self.holes(),
            "left_out": [
                {"file": str(state.path), "why": state.fitness, "problem": state.problem}
                for state in left_out[:NAMED_MAX]
            ],
        }


def find(directories: Iterable[Path]) -> list[Path]:
    """
    Find the files below directories.

    Raises:
        NoJournalError: a directory is not there or cannot be read.
    """
    found: list[Path] = []
    for directory in directories:
        try:
            found += files(directory)
        except OSError as error:
            problem = f"{error.strerror or error}; name the journal.directory of an instance, or a copy of it"
            raise NoJournalError(str(directory), problem) from None
    return found


def take(paths: Iterable[Path]) -> Inventory:
    """Judge files. Of copies, the first is read."""
    with ThreadPoolExecutor(_JUDGES) as judges:
        return Inventory(list(without_copies(judges.map(judge, dict.fromkeys(paths)))))


def read(spark: SparkSession, paths: Iterable[Path]) -> DataFrame:
    """
    Read visits with the schema VISIT: a column that a file lacks is null, one that it adds is not read.

    Names are literal: without the option Spark takes them for patterns.
    """
    names = [str(path) for path in paths]
    reader = spark.read.schema(VISIT).option("recursiveFileLookup", "true").option("__globPaths__", "false")
    while names:
        try:
            return reader.parquet(*names)
        except AnalysisException as error:
            there = [name for name in names if Path(name).exists()]
            if error.getCondition() != "PATH_NOT_FOUND" or len(there) == len(names):
                raise
            names = there  # one was removed: the summary says so
    return spark.createDataFrame([], VISIT)


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """Return a summary in sentences for people: the counts, then each problem."""
    read = f"{counted(summary['read'], 'file')} of {counted(summary['instances'], 'instance')} read"
    lines = [f"{read}, {counted(summary['rows'], 'visit')}"]
    words = {
        "damaged": "truncated or damaged, left out",
        "unreadable": "that cannot be opened, left out",
        "foreign": "not of a journal, left out",
        "copy": "left out, because another one with the same contents was read",
        "vanished": "removed before being read",
        "vanished_while_read": "removed while being read: visits may be missing from some results",
        "newer": "of a later version: columns that it adds were not read",
        "older": "of an earlier version: the columns that it lacks are null",
    }
    lines += [f"{counted(summary[key], 'file')} {text}" for key, text in words.items() if summary.get(key)]
    lines += [f"  {one['file']}: {one['why']}: {one['problem']}" for one in summary["left_out"]]
    lines += [
        f"{name} shed {counted(shed, 'record')} because its buffer was full: figures lack them"
        for name, shed in summary["shed_records"].items()
        if shed
    ]
    samples = {one for found in summary["samples"].values() for one in found}
    if len(samples) > 1:
        text = ", ".join(f"{name} {'/'.join(map(str, one))}" for name, one in summary["samples"].items())
        lines.append(f"the samples differ ({text}): paths of some dialogs are known in part only")
    elif samples and min(samples) < 1:
        lines.append(f"only a sample of {min(samples):g} of the dialogs was recorded, and all dropped frames")
    return lines
