"""What an application of a fault run is told: its own job, and the orders of the moment, each in a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """
    What one application is.

    Shape: `kind` "initiator", "target", "reader" or "mirror"; `histories` directory with one for each phase; `orders`
    the file; `targets` services to which dialogs are begun, `sealed` those with which they have to be sealed, `given`
    those of which a reader is given the messages; `mark` the queuing_order up to which a mirror's queue is known;
    `seed` of what it leaves to chance.
    """

    name: str
    kind: str
    database: str
    histories: str
    orders: str
    queue: str
    service: str = ""
    targets: list[str] = field(default_factory=list)
    sealed: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    mark: int = 0
    seed: int = 0

    def write(self, path: Path) -> None:
        """Write it to a file that `read` reads."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read one."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Orders:
    """What all applications are to do now."""

    phase: str
    is_sending: bool

    def write(self, path: Path) -> None:
        """Replace the file as a whole."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.replace(path)

    @classmethod
    def read(cls, path: Path) -> Orders:
        """Read them."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def history_of(histories: Path, phase: str, application: str) -> Path:
    """Where the history of an application in a phase is."""
    return histories / phase / f"{application}.history"
