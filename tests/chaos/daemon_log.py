"""
What the logs of a fault run may not have: errors that its faults do not explain, tracebacks, and what libraries say of
tasks that nobody waited for.

A fault explains what those say that it befell, and nobody else. Of an error that comes again and again the first line
is written at once, and then one a minute: so what a fault explains is explained for a while longer.
"""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ERRORS = ("error", "critical")
Befallen = Mapping[str, Collection[str]]
"""The hosts that a fault befell, by its name."""
WORDS = (
    "Traceback (most recent call last)",
    "never retrieved",
    "never awaited",
    "core dumped",
    "Fatal Python error",
)
LATER_SECONDS = 120.0  # a minute between two lines, and what a busy machine needs
SHOWN = 300  # characters of a line
_NO_FILE = {
    "audit unavailable": "its file can be neither opened nor written: what came by files is told, the rest refused",
    "store failed": "the database can be neither opened nor written",
}
ALLOWED: Mapping[str, Mapping[str, str]] = {
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
KILLS: Mapping[str, int] = {"kill": 1, "lost-principal": 1, "memory": 1, "failover-overtaken": 1}
"""By the name of a fault: how many processes of a daemon it kills at most, each of which may leave half a line."""
ALLOWED_WORDS: Mapping[str, Mapping[str, str]] = {
    "descriptors": {"Too many open files": "whatever needed one, a request say"},
}
"""By the name of a fault: parts of lines that it may cause, each with the reason."""
_UVLOOP = "said by uvloop when a daemon ends that once could not start its role command for want of descriptors"
ALLOWED_AT_THE_END: Mapping[str, Mapping[str, str]] = {
    "descriptors": {
        "UVProcessTransport is open in __dealloc__": _UVLOOP,
        "'uvloop.loop.UVHandle.__dealloc__'": _UVLOOP,
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
        self._faults: list[tuple[float, Befallen]] = []
        self._ever: set[tuple[str, str]] = set()
        self._torn: Counter[str] = Counter()

    def unexpected(self, faults: Befallen) -> list[str]:
        """What came since the last call that these faults, and those of the last minutes, do not explain."""
        now = time.monotonic()
        self._faults = [(at, each) for at, each in self._faults if now - at < LATER_SECONDS] + [(now, faults)]
        for name, hosts in faults.items():
            self._ever.update((name, host) for host in hosts)
            self._torn.update(dict.fromkeys(hosts, KILLS.get(name, 0)))
        found = [f"log of {path.parent.name}: {one}" for path in self._daemons for one in self._wrong(path)]
        texts = ((path, line) for path in self._applications for line in self._news(path))
        return found + [f"log of {path.stem}: {_short(line)}" for path, line in texts if has_word(line)]

    def _wrong(self, path: Path) -> Iterator[str]:
        """Those new lines of a daemon that what befell its host does not explain, each kind once."""
        host, seen = path.parent.name, set[str]()
        names = {name for _, faults in self._faults for name, hosts in faults.items() if host in hosts}
        ever = {name for name, befallen in self._ever if befallen == host}
        words = [text for name in names for text in ALLOWED_WORDS.get(name, ())]
        words += [text for name in ever for text in ALLOWED_AT_THE_END.get(name, ())]
        allowed = {event for name in names for event in ALLOWED.get(name, ())}
        for line in self._news(path):
            told = _object(line)
            event = str(told.get("event", "")) if told else line
            if event in seen or any(text in line for text in words):
                continue
            if told is None and line.startswith("{") and self._torn[host] and not has_word(line):
                self._torn[host] -= 1
            elif told is None or has_word(line) or (told.get("level") in ERRORS and event not in allowed):
                seen.add(event)
                yield _short(line)

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
