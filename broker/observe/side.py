"""
Sides of conversations by service and state, those in quarantine, and what waits in queues, for the metrics.

Counting them walks the tables, and after a leak those have millions of rows. So a walk has a limit, and behind one
there is a rest of many times what it took: a scrape that comes earlier has what was counted last. Blocking, so for a
thread.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from broker.conversation.state import ConversationState
from broker.observe.described import MetricDefinition
from broker.observe.label import Labels
from broker.store.database import open_watch
from broker.store.quarantine import quarantined_by_service
from broker.store.stock import QueueStock, fullest_queues, sides_by_service

WALK_SECONDS = 2.0  # for one database; a walk that takes longer is given up
REST_FACTOR = 20  # times what the last walk took, until the next one: a twentieth of one core at most
_STEPS = 10_000  # of SQLite's machine between two looks at the clock

SIDE_METRICS = (
    MetricDefinition(
        "broker_dialogs",
        "Sides of conversations in the databases here, by service and state.",
        ("service", "state"),
    ),
    MetricDefinition(
        "broker_dialog_oldest_age_seconds",
        "Age of the oldest of them in this state.",
        ("state",),
        fold=max,
    ),
    MetricDefinition(
        "broker_quarantined_dialogs",
        "Dialogs whose next message has failed too often, so that it waits for somebody to decide.",
        ("service",),
    ),
    MetricDefinition(
        "broker_queue_messages",
        "Messages in the queues of the databases here that an application may receive; of a database the 50 fullest"
        " queues.",
        ("database", "queue"),
    ),
    MetricDefinition(
        "broker_queue_oldest_seconds", "Age of the first of them, 0 when there is none.", ("database", "queue")
    ),
)


@dataclass(slots=True)
class _Walked:
    """What was counted in one database. Shape: `due` monotonic seconds at which it is counted again."""

    due: float = 0.0
    states: list[tuple[str, str, int, float]] = field(default_factory=list)
    quarantined: list[tuple[str, int]] = field(default_factory=list)
    queues: list[QueueStock] = field(default_factory=list)


class Sides:
    """What was counted last, by file; changed by one thread. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._walked: dict[Path, _Walked] = {}

    def samples(self, paths: Mapping[str, Path]) -> dict[str, list[tuple[Labels, float]]]:
        """By metric, of the databases in these files; one that cannot be read now is left out."""
        self._walked = {path: walked for path, walked in self._walked.items() if path in paths.values()}
        for path in paths.values():
            self._look(path)
        counts: defaultdict[Labels, float] = defaultdict(float)
        ages: defaultdict[Labels, float] = defaultdict(float)
        quarantined: defaultdict[Labels, float] = defaultdict(float)
        now = time.time()
        for walked in self._walked.values():
            for service, code, count, since in walked.states:
                state = ConversationState(code).name
                counts[service, state] += count
                ages[(state,)] = max(ages[(state,)], now - since)
            for service, count in walked.quarantined:
                quarantined[(service,)] += count
        queues = [
            ((name, one.name), one) for name, path in paths.items() for one in self._walked.get(path, _Walked()).queues
        ]
        ready: dict[Labels, float] = {labels: float(one.ready) for labels, one in queues}
        oldest: dict[Labels, float] = {labels: one.oldest_s for labels, one in queues}
        found: tuple[dict[Labels, float], ...] = (counts, ages, quarantined, ready, oldest)
        return {metric.name: list(some.items()) for metric, some in zip(SIDE_METRICS, found, strict=True)}

    def _look(self, path: Path) -> None:
        began = self._clock()
        walked = self._walked.get(path)
        if walked is not None and began < walked.due:
            return
        try:
            with closing(open_watch(path)) as db:
                db.set_progress_handler(lambda: self._clock() - began > WALK_SECONDS, _STEPS)
                states, quarantined = sides_by_service(db), quarantined_by_service(db)
                walked = _Walked(0.0, states, quarantined, fullest_queues(db, time.time()))
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                self._walked.pop(path, None)
                return
            walked = walked or _Walked()  # what was counted before is better than nothing
        except sqlite3.Error:
            self._walked.pop(path, None)
            return
        walked.due = self._clock() + REST_FACTOR * (self._clock() - began)
        self._walked[path] = walked
