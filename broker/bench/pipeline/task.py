"""What an engine is asked to do, as a value that goes from one process to another as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

Pass = Callable[[Path], None]
"""Answers the questions and writes the answers below a directory."""


@dataclass(frozen=True, slots=True)
class Task:
    """
    What is to be done.

    Shape: `engine` spark, duckdb or polars; `jobs` names; `journal` the directory, `out` where answers go, one
    directory for each pass; `heap` of the JVM as Spark writes it.
    """

    engine: str
    jobs: tuple[str, ...]
    journal: str
    out: str
    passes: int = 1
    heap: str = "8g"

    def encoded(self) -> str:
        """As the argument of a process."""
        return json.dumps(asdict(self))


def decoded(argument: str) -> Task:
    """What `Task.encoded` made."""
    told = json.loads(argument)
    return Task(**(told | {"jobs": tuple(told["jobs"])}))
