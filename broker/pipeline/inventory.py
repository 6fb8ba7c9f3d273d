"""
Which files of the journals are read, which are not and why, and what the footers tell that a figure cannot.

A file is judged by its footer before Spark hears of it (`broker.journal.schema`), because one broken file ends a Spark
job, and a copy counts twice without a word. What is left out is kept here with its reason, so that every run can tell
it: a figure that lacks a file is never silently wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from broker.errors import NoJournalError
from broker.journal.schema import FileState, Fitness, files, judge
from broker.pipeline.results import VISIT

TOLD_MAX = 20  # files that are named one by one
SILENT = timedelta(hours=1)  # behind the newest instant of all; an instance that tells nothing for longer has ended
_JUDGES = 8  # threads: judging waits for the disk


@dataclass(slots=True)
class Inventory:
    """
    The files of a run. Changed by whoever adds to it, nobody else.

    Shape: `states` of all files found; `gone` those that were read, and vanished before the run ended.
    """

    states: list[FileState] = field(default_factory=list)
    gone: list[Path] = field(default_factory=list)

    @property
    def readable(self) -> list[FileState]:
        """Those whose rows are read."""
        return [state for state in self.states if state.is_readable]

    def horizon_us(self) -> int | None:
        """
        Up to when the journals tell everything, microseconds since 1970; None when no footer tells an instant.

        Instances close their files at different times, so the newest instant of each is asked for, and the earliest of
        these is the horizon: what was on its way then may have arrived in a file that is not there yet. An instance
        that is silent holds it back by SILENT at most.
        """
        newest: dict[str, int] = {}
        for state in self.readable:
            if state.last_us is not None:
                newest[state.instance] = max(state.last_us, newest.get(state.instance, state.last_us))
        if not newest:
            return None
        return max(min(newest.values()), max(newest.values()) - SILENT // timedelta(microseconds=1))

    @property
    def samples(self) -> dict[str, list[float]]:
        """The shares of their dialogs that instances have followed, in order."""
        samples: defaultdict[str, set[float]] = defaultdict(set)
        for state in self.readable:
            samples[state.instance].add(state.sample)
        return {name: sorted(found) for name, found in samples.items()}

    def look_again(self) -> None:
        """Find those that vanished while they were read: Spark leaves them out without a word."""
        self.gone = [state.path for state in self.readable if not state.path.exists()]

    def summary(self) -> dict[str, Any]:
        """Everything there is to tell, as JSON values; counts are of files unless they say otherwise."""
        readable = self.readable
        fitness = Counter(state.fitness for state in self.states)
        left_out = [state for state in self.states if not state.is_readable]
        return {
            "found": len(self.states),
            "read": len(readable),
            "rows": sum(state.rows for state in readable),
            "bytes": sum(state.bytes for state in readable),
            "instances": len({state.instance for state in readable}),
            **{str(one): fitness[one] for one in Fitness if one is not Fitness.GOOD},
            "vanished_while_read": len(self.gone),
            "shed_records": dict(sorted(_shed(readable).items())),
            "samples": {name: list(found) for name, found in sorted(self.samples.items())},
            "left_out": [
                {"file": str(state.path), "why": state.fitness, "problem": state.problem}
                for state in left_out[:TOLD_MAX]
            ],
        }


def take(directories: Iterable[Path], *, only: Callable[[list[Path]], list[Path]] = list) -> Inventory:
    """
    The files below some directories, those that are wanted judged.

    Raises:
        NoJournalError: a directory is not there or cannot be read.
    """
    found: list[Path] = []
    for directory in directories:
        try:
            found += files(directory)
        except OSError as error:
            raise NoJournalError(str(directory), error.strerror or str(error)) from None
    return judge_all(only(found))


def judge_all(paths: Iterable[Path]) -> Inventory:
    """Judge files. Of those that are copies of each other the first counts."""
    first: dict[str, Path] = {}
    states = []
    with ThreadPoolExecutor(_JUDGES) as judges:
        for state in judges.map(judge, dict.fromkeys(paths)):
            other = first.setdefault(state.file, state.path) if state.is_readable else state.path
            is_copy = other != state.path
            states.append(
                replace(state, fitness=Fitness.COPY, problem=f"a copy of {other}") if is_copy else state
            )  # fmt: skip
    return Inventory(states)


def read(spark: SparkSession, paths: Iterable[Path]) -> DataFrame:
    """
    The visits in some files, with the schema VISIT: a column that a file lacks is null, one that it adds is not read.

    The names are taken literally: Spark would else look for patterns in them.
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
            names = there  # one vanished: `look_again` tells which
    return spark.createDataFrame([], VISIT)


def told(summary: Mapping[str, Any]) -> list[str]:
    """What a run must say about its files, in sentences; the first is the count, others are trouble."""
    lines = [f"{summary['read']:,} files of {summary['instances']:,} instances read, {summary['rows']:,} visits"]
    words = {
        "damaged": "broken off or unreadable, left out",
        "unreadable": "files or directories that cannot be opened, left out",
        "foreign": "no journal, left out",
        "copy": "copies of files that were read, left out",
        "vanished": "vanished before they were read",
        "vanished_while_read": "vanished while they were read: their visits may be missing from some results",
        "newer": "of a later version: columns that it adds were not read",
        "older": "of an earlier version: the columns that it lacks are null",
    }
    lines += [f"{summary[key]:,} {text}" for key, text in words.items() if summary.get(key)]
    lines += [f"  {one['file']}: {one['why']}: {one['problem']}" for one in summary["left_out"]]
    shed = {name: count for name, count in summary["shed_records"].items() if count}
    lines += [f"{name} shed {count:,} records for want of room: figures lack them" for name, count in shed.items()]
    samples = {one for found in summary["samples"].values() for one in found}
    if len(samples) > 1:
        text = ", ".join(f"{name} {'/'.join(map(str, one))}" for name, one in summary["samples"].items())
        lines.append(f"the samples differ ({text}): paths of some dialogs are known in part only")
    elif samples and min(samples) < 1:
        lines.append(f"only a sample of {min(samples):g} of the dialogs was followed, and whatever was dropped")
    return lines


def _shed(states: Iterable[FileState]) -> Counter[str]:
    shed: Counter[str] = Counter()
    for state in states:
        shed[state.instance] += state.shed
    return shed
