"""
What lies in the file of a database: what waits to leave and why, what waits in its queues, what is in quarantine.

Blocking, so for a thread. A reader never waits for a writer. Counting walks an index from end to end, so whoever asks
again and again rests in between.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from broker.observe.backlog import read_backlog
from broker.observe.ledger import read_ledger
from broker.store.balance import LedgerBalance
from broker.store.database import open_watch
from broker.store.quarantine import quarantined_dialogs
from broker.store.stock import Backlog, QueueStock, WaitReason, fullest_queues, queue_count, reasons_of


@dataclass(frozen=True, slots=True)
class Stock:
    """
    One database.

    Shape: `queues` the fullest first, `queue_count` all of them; `quarantined` dialogs; `reasons` the most frequent
    first.
    """

    backlog: Backlog
    ledger: LedgerBalance
    queues: tuple[QueueStock, ...] = ()
    queue_count: int = 0
    quarantined: int = 0
    reasons: tuple[WaitReason, ...] = ()


def read_stock(path: Path) -> Stock | None:
    """What lies in this file; None when it cannot be read now. Blocking. Cost: the messages that lie there."""
    backlog, ledger = read_backlog(path), read_ledger(path)
    if backlog is None or ledger is None:
        return None
    now = time.time()
    try:
        with closing(open_watch(path)) as db:
            queues, count = fullest_queues(db, now), queue_count(db)
            dialogs = quarantined_dialogs(db)
            reasons = reasons_of(db, now) if backlog.messages else []
    except sqlite3.Error:
        return None
    return Stock(backlog, ledger, tuple(queues), count, dialogs, tuple(reasons))


def read_stocks(paths: Mapping[str, Path]) -> dict[str, Stock | None]:
    """The same of several databases. Blocking."""
    return {name: read_stock(path) for name, path in paths.items()}
