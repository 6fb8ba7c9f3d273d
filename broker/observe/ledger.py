"""
The ledgers of databases, read from their files beside the daemons' own connections, for status, metrics and views.

Blocking, so for a thread. A reader never waits for a writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a command that only tells the sentence need not import the store
    from broker.store.balance import LedgerBalance


def read_ledger(path: Path) -> LedgerBalance | None:
    """The ledger of the database in this file; None when the file cannot be read now."""
    import sqlite3  # noqa: PLC0415

    from broker.store.balance import read_balance  # noqa: PLC0415
    from broker.store.database import open_watch  # noqa: PLC0415

    try:
        with closing(open_watch(path)) as db:
            return read_balance(db)
    except sqlite3.Error:
        return None


def ledger_values(balance: LedgerBalance) -> dict[str, Any]:
    """A ledger as the JSON of `/v1/status`."""
    return {
        "sent": balance.sent,
        "acknowledged": balance.acknowledged,
        "held": balance.held,
        "failed": dict(balance.failed),
        "unaccounted": balance.unaccounted,
    }


def add_ledgers(status: dict[str, Any], ledgers: Mapping[str, LedgerBalance | None]) -> dict[str, Any]:
    """Put the ledgers into what `/v1/status` tells, by database; null where a file could not be read."""
    for name, balance in ledgers.items():
        status["databases"][name]["ledger"] = None if balance is None else ledger_values(balance)
    return status


def ledger_sentence(ledger: Mapping[str, Any]) -> str:
    """One line: that it adds up, or by how much it does not."""
    failed = ledger["failed"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(failed.items()))
    sentence = (
        f"{ledger['sent']:,} sent = {ledger['acknowledged']:,} acknowledged + {ledger['held']:,} held"
        f" + {sum(failed.values()):,} failed" + (f" ({reasons})" if reasons else "")
    )
    return f"{sentence} + {ledger['unaccounted']:,} UNACCOUNTED" if ledger["unaccounted"] else sentence
