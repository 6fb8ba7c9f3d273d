"""The jobs of the pipeline as `broker pipeline` runs them, twice in one session."""

from __future__ import annotations

from pathlib import Path

from broker.bench.pipeline.task import Pass, Task
from broker.pipeline import entry, session

MASTER = "local[2]"


def prepare(task: Task) -> Pass:
    """Start a session, which the passes share."""
    options = session.SessionOptions(master=MASTER, driver_memory=task.heap)
    spark = session.start(options)
    journal = Path(task.journal)

    def answer(out: Path) -> None:
        entry.run(entry.Request(task.jobs, (journal,), out, session=options))
        spark.catalog.clearCache()

    return answer
