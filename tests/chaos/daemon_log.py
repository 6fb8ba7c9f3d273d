"""
What the logs of a fault run may not have: errors that its faults do not explain, tracebacks, and what libraries say of
tasks that nobody waited for.

Of an error that comes again and again the first line is written at once, and then one a minute: so what a fault
explains is explained for a while longer.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ERRORS = ("error", "critical")
WORDS = (
    "Traceback (most recent call last)",
    "never retrieved",
    "never awaited",
    "core dumped",
    "Fatal Python error",
)
LATER_SECONDS = 120.0  # a minute between two lines, and what a busy machine needs
SHOWN = 300  # characters of a line
_KILLED = {"worker died": "a process of the gateway was killed, which is the fault"}
_NO_FILE = {
    "audit unavailable": "its file can be neither opened nor written: what came by files is told, the rest refused",
    "store failed": "the database can be neither opened nor written",
}
ALLOWED: Mapping[str, Mapping[str, str]] = {
    "kill-worker": _KILLED,
    "memory": _KILLED,
    "full-disk": _NO_FILE,
    "descriptors": _NO_FILE
    | {
        "certificates not loaded, those before stay": "their files cannot be opened",
        "journal cannot be written": "its next file cannot be opened; what is lost is counted",
    },
    "rotation": {
        "certificates not loaded, those before stay": "key and certificate are replaced one after the other",
    },
}
"""By the name of a fault: events that it may cause, each with the reason."""
_UVLOOP = "said by uvloop when a daemon ends that once could not start its role command for want of descriptors"
ALLOWED_AT_THE_END: Mapping[str, Mapping[str, str]] = {
    "descriptors": {
        "UVProcessTransport is open in __dealloc__": _UVLOOP,
        "'uvloop.loop.UVHandle.__dealloc__'": _UVLOOP,
        "Too many open files": "whatever needed one, a request say; nothing but the fault takes them away",
    }
}
"""By the name of a fault: parts of lines that a daemon may say then and later on, each with the reason."""


class DaemonLogs:
    """
    The logs of all daemons and applications.

    Args:
        daemons: Files of those that write a JSON object a line.
        applications: Files of those that write text.
    """

    def __init__(self, daemons: Iterable[Path], applications: Iterable[Path]) -> None:
        self._daemons, self._applications = list(daemons), list(applications)
        self._offsets: Counter[Path] = Counter()
        self._faults: list[tuple[float, Collection[str]]] = []
        self._ever: set[str] = set()

    def unexpected(self, faults: Collection[str]) -> list[str]:
        """What came since the last call that these faults, and those of the last minutes, do not explain."""
        now = time.monotonic()
        self._faults = [(at, names) for at, names in self._faults if now - at < LATER_SECONDS] + [(now, faults)]
        names = {name for _, names in self._faults for name in names}
        self._ever.update(faults)
        found = [
            f"log of {path.parent.name}: {one}"
            for path in self._daemons
            for one in wrong(self._news(path), names, ever=self._ever)
        ]
        texts = ((path, line) for path in self._applications for line in self._news(path))
        return found + [f"log of {path.stem}: {_short(line)}" for path, line in texts if has_word(line)]

    def _news(self, path: Path) -> list[str]:
        """Whole lines that have come since; what is begun is read the next time."""
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._offsets[path])
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._offsets[path] += len(data)
        return data.decode(errors="replace").splitlines()


def wrong(lines: Iterable[str], faults: Collection[str], *, ever: Collection[str] = ()) -> Iterator[str]:
    """Those of a daemon's lines that these faults, and those that `ever` were, do not explain, each kind once."""
    last_words = [text for name in ever for text in ALLOWED_AT_THE_END.get(name, ())]
    allowed = {event for name in faults for event in ALLOWED.get(name, ())}
    seen: set[str] = set()
    for line in lines:
        told = _object(line)
        event = str(told.get("event", "")) if told else line
        if event in allowed or event in seen or any(text in line for text in last_words):
            continue
        is_text = told is None and not line.startswith("{")  # else it was torn, by the end of its process
        if is_text or has_word(line) or (told or {}).get("level") in ERRORS:
            seen.add(event)
            yield _short(line)


def has_word(line: str) -> bool:
    """Whether it says what no line may say."""
    return any(word in line for word in WORDS)


def _object(line: str) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _short(line: str) -> str:
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}..."
