"""
The jobs of the pipeline beside two engines that are no cluster: DuckDB, the yardstick, and Polars.

All answer the same questions about the same synthetic journals, on two cores, each in a fresh process and twice in it:
the first pass counts from the start of the process, with the JVM's and all compiling, the second one shows the work.
CPU seconds are what is compared, of all processes of an engine; `pipeline_run` measures them. What is asked of the
memory: 8 GiB of heap, and the same answers, to the last row, with 1 GiB.

Needed are the extra that `broker pipeline` needs, DuckDB and Polars.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from broker.bench.pipeline.task import Task
from broker.bench.result import Row, row_of
from broker.errors import BrokerError, PipelineUnavailableError

NEEDED = ("pyspark", "pandas", "pyarrow", "duckdb", "polars", "psutil")
VISITS_A_MESSAGE = 7.4  # of a synthetic history, about
INSTANCES = 20
SPARK, DUCKDB, POLARS = "spark", "duckdb", "polars"
NAMES = {SPARK: "Spark", DUCKDB: "DuckDB", POLARS: "Polars"}
MANY = ("paths", "routes", "capacity")
QUESTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    MANY: (DUCKDB, POLARS, SPARK),
    ("reconcile",): (DUCKDB, SPARK),
}
"""Who is asked for which jobs."""
PASSES = ("first pass", "second pass")
HEAP, SMALL_HEAP = "8g", "1g"
GROWTH = "growth"
HEADLINE = "cpu_seconds"

Tell = Callable[[str], None]
Sample = dict[str, float]


class UnequalAnswersError(BrokerError):
    """The same question was answered in two ways."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Shape: `records` of each history, growing; `hours` of each; each thing is measured `repeats` times."""

    records: tuple[int, ...]
    hours: float
    repeats: int = 1


QUICK = Scale((200_000,), 4.0)
FULL = Scale((5_000_000, 20_000_000), 24.0)


def measure(scale: Scale, *, tell: Tell = lambda _: None) -> list[Row]:
    """
    Measure all of it; minutes, and with FULL most of an hour.

    Raises:
        PipelineUnavailableError: an engine is not installed.
        UnequalAnswersError: with less memory Spark answers something else.
        BrokerError: an engine failed; tells what it said.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise PipelineUnavailableError(f"{', '.join(missing)}: not installed", "install broker[pipeline,dev]")
    rows: list[Row] = []
    for records in scale.records:
        with history(records, scale.hours, tell) as journal:
            for jobs in QUESTIONS:
                rows += _asked(journal, jobs, records, scale.repeats, tell)
            rows += _with_less_memory(journal, records, tell)
    return rows + growth(rows, scale.records)


@contextmanager
def history(records: int, hours: float, tell: Tell) -> Iterator[Path]:
    """A directory with about so many records."""
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as directory:
        journal = Path(directory) / "history"
        tell(f"making {records:,} records")
        program = (
            "import sys; from pathlib import Path; from tests.support.histories.history import generate; "
            "from tests.support.histories.world import Scenario; "
            "generate(Path(sys.argv[1]), Scenario(messages=int(sys.argv[2]), instances=int(sys.argv[3]), seed=7, "
            "hours=float(sys.argv[4])))"
        )
        arguments = [str(journal), str(max(1, int(records / VISITS_A_MESSAGE))), str(INSTANCES), str(hours)]
        _run([sys.executable, "-c", program, *arguments])
        yield journal


def answered(task: Task) -> list[Sample]:
    """
    What each pass of a task took, in a fresh process.

    Raises:
        BrokerError: it failed.
    """
    return [dict(one) for one in json.loads(_run([sys.executable, "-m", "broker.bench.pipeline.run", task.encoded()]))]


def growth(rows: Sequence[Row], records: Sequence[int]) -> list[Row]:
    """How many times as much the larger history takes as the smaller one: a row for each engine, question and pass."""
    if len(records) < 2:
        return []
    small, large = (mode_of(count, "").rstrip() for count in (records[0], records[-1]))
    found = {row.key: row for row in rows}
    told = []
    for row in rows:
        if row.mode.startswith(large):
            before = found[row.bench, row.case, small + row.mode.removeprefix(large), row.subject]
            mode = f"{GROWTH}, {records[0]:,} to {records[-1]:,} records,{row.mode.removeprefix(large)}"
            times = {"times": row.figure / before.figure}
            told.append(replace(row, mode=mode, headline="times", values=times, spread=0.0))
    return told


def fingerprint(directory: Path, jobs: Sequence[str]) -> dict[str, tuple[int, int]]:
    """
    What answers hold, whatever the order of their rows.

    Shape: rows and a sum of hashes by job, without maps, which have no order either.
    """
    import duckdb  # noqa: PLC0415 - an engine that only the benchmark needs

    found = {}
    with duckdb.connect() as engine:
        for job in jobs:
            answer = engine.sql(f"SELECT * FROM read_parquet('{directory / job}/*.parquet')")  # noqa: S608 - our own
            plain = [name for name, form in zip(answer.columns, answer.types, strict=True) if "MAP" not in str(form)]
            columns = ", ".join(f'"{name}"' for name in plain)
            (told,) = answer.aggregate(f"count(*), sum(hash({columns})::HUGEINT)").fetchall()
            found[job] = int(told[0]), int(told[1] or 0)
    return found


def mode_of(records: int, which: str) -> str:
    """The mode of a row."""
    return f"{records:,} records, {which}"


def _asked(journal: Path, jobs: tuple[str, ...], records: int, repeats: int, tell: Tell) -> list[Row]:
    """Rows of each engine and pass; the engines take turns."""
    engines = QUESTIONS[jobs]
    samples: dict[tuple[str, str], list[Sample]] = {}
    for _ in range(repeats):
        for engine in engines:
            tell(f"{', '.join(jobs)} of {records:,} records: {NAMES[engine]}")
            with _answers(journal) as out:
                task = Task(engine, jobs, str(journal), str(out), len(PASSES), HEAP)
                for which, sample in zip(PASSES, answered(task), strict=True):
                    samples.setdefault((engine, which), []).append(sample)
    return [
        row_of(
            ("pipeline", ", ".join(jobs), mode_of(records, which), NAMES[engine]),
            HEADLINE,
            samples[engine, which],
            yardstick=NAMES[DUCKDB],
        )
        for which in PASSES
        for engine in engines
    ]


def _with_less_memory(journal: Path, records: int, tell: Tell) -> list[Row]:
    """A row; the answers must be the same."""
    found: list[Mapping[str, tuple[int, int]]] = []
    told: list[Sample] = []
    for heap in (HEAP, SMALL_HEAP):
        tell(f"{', '.join(MANY)} of {records:,} records: Spark, heap {heap}")
        with _answers(journal) as out:
            told = answered(Task(SPARK, MANY, str(journal), str(out), 1, heap))
            found.append(fingerprint(out / "0", MANY))
    if found[0] != found[1]:
        raise UnequalAnswersError(f"Spark answers {found[1]} with a heap of {SMALL_HEAP}, and else {found[0]}")
    key = ("pipeline", ", ".join(MANY), mode_of(records, PASSES[0]), f"Spark, heap {SMALL_HEAP}, same answers")
    return [row_of(key, HEADLINE, told, yardstick=NAMES[DUCKDB])]


@contextmanager
def _answers(journal: Path) -> Iterator[Path]:
    """Where answers go: beside the journal, and away when they were looked at."""
    out = journal.with_name("answers")
    try:
        yield out
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    if done.returncode:
        raise BrokerError(f"{command[2]} failed:\n{done.stderr.strip()}")
    return done.stdout
