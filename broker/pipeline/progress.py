"""
How far an incremental job has come: a directory beside its results that survives `kill -9` at any moment.

A *step* takes some new files and what the step before carried along, writes rows and what is carried on, and then
renames `state.json`: that is the only moment at which the step counts. Whatever a step that did not come so far left
behind is written over by the next, which has the same number; what a counted step no longer needs is removed after.
The ids of files that were read are one line each, and the state tells how much of that file counts.

Shape of the directory: `state.json`; `files.jsonl`; `carried/step=K`; `checkpoint`, Spark's own; `lock`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from broker.errors import PipelineError
from broker.journal.survey import FileState
from broker.pipeline.inventory import TOLD_MAX
from broker.pipeline.result import write_json

FORMAT = 2


@dataclass(frozen=True, slots=True)
class State:
    """
    What a job knows between two steps.

    Shape: `step` how many there were; `spark_batch` the number of Spark's batch that the last of them was; `newest`
    instant seen and `emitted_before`, the watermark, None before the first visit; `files_bytes` how much of
    `files.jsonl` counts; `carried_rows` of the visits carried along; `options` that all runs must have in common;
    `totals` of all steps, by name; `samples` of the dialogs, by instance, and the first files `left_out`, of all steps;
    `unread` files that were broken or could not be opened when last looked at, with their fitness.
    """

    step: int = 0
    spark_batch: int = -1
    newest: datetime | None = None
    emitted_before: datetime | None = None
    files_bytes: int = 0
    carried_rows: int = 0
    is_finished: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    shed: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    left_out: Sequence[Mapping[str, str]] = ()
    unread: Mapping[str, str] = field(default_factory=dict)

    def added(self, counts: Mapping[str, int], files: Mapping[str, Any], read: Collection[str] = ()) -> State:
        """With what one more step counted, what it tells of its files (`Inventory.summary`), and which it `read`."""
        totals, shed = Counter(self.totals), Counter(self.shed)
        totals.update(counts)
        shed.update(files["shed_records"])
        names = sorted({*self.samples, *files["samples"]})
        samples = {one: sorted({*self.samples.get(one, ()), *files["samples"].get(one, ())}) for one in names}
        left_out = [one for one in (*self.left_out, *files["left_out"]) if one["file"] not in read][:TOLD_MAX]
        return replace(self, totals=dict(totals), shed=dict(shed), samples=samples, left_out=left_out)


class Progress:
    """
    The directory of one job. Changed by the process that has the lock.

    Raises:
        OSError: it cannot be read or written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.state = State()
        self.known: dict[str, Path] = {}  # files that were read, by their ids

    @contextmanager
    def held(self, options: Mapping[str, Any]) -> Iterator[Progress]:
        """
        With the state of the run before, for this process alone.

        Raises:
            PipelineError: another process has it; or the runs before had other options.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(f"another process works in {self.directory}", "wait for it") from None
            self._load(json.loads(json.dumps(options, default=str)))
            yield self

    def carried(self, step: int) -> Path:
        """Where the visits are that a step carries on."""
        return self.directory / "carried" / f"step={step}"

    def commit(self, after: State, read: Iterable[FileState]) -> None:
        """Let a step count: it read some files."""
        lines = [(state.file, str(state.path)) for state in read]
        with (self.directory / "files.jsonl").open("ab") as out:
            out.truncate(self.state.files_bytes)
            out.seek(0, os.SEEK_END)
            out.writelines(json.dumps(line).encode() + b"\n" for line in lines)
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        self.state = replace(after, files_bytes=size)
        write_json(self.directory / "state.json", {"format": FORMAT, **asdict(self.state)})
        self.known.update((file, Path(path)) for file, path in lines)
        self._tidy()

    def _load(self, options: dict[str, Any]) -> None:
        path = self.directory / "state.json"
        if not path.exists():
            shutil.rmtree(self.checkpoint, ignore_errors=True)  # of a first step that never counted
            self.state = State(options=options)
            return
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if told.pop("format") != FORMAT:
                raise PipelineError(f"{path} is of another version", "use the version that wrote it, or another --out")
            self.state = msgspec.convert(told, State)
            self.known = self._files_read()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            problem = f"{self.directory} does not hold what was written into it: {error!r}"
            raise PipelineError(problem, "restore it, or give another --out") from error
        before = self.state.options
        other = sorted(name for name in options | dict(before) if options.get(name) != before.get(name))
        if other:
            change = "; ".join(f"{name} was {before.get(name)}, is {options.get(name)}" for name in other)
            raise PipelineError(f"the runs before had other options: {change}", "give the same, or another --out")
        self._tidy()

    def _files_read(self) -> dict[str, Path]:
        with (self.directory / "files.jsonl").open("rb") as lines:
            if not 0 <= self.state.files_bytes <= os.fstat(lines.fileno()).st_size:
                raise ValueError(f"files.jsonl has no {self.state.files_bytes} bytes")
            return {file: Path(name) for file, name in map(json.loads, lines.read(self.state.files_bytes).splitlines())}

    def _tidy(self) -> None:
        """Remove what no step needs any more."""
        for path in (self.directory / "carried").glob("*"):
            if path != self.carried(self.state.step):
                shutil.rmtree(path, ignore_errors=True)
