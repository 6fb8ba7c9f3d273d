"""
The proof of the demo over instances: the ledgers of all databases, asked of their daemons, against what has arrived.

Each ledger by itself says what its own applications sent and what the far sides acknowledged. That nothing was lost
shows only when all of them are laid side by side: as many messages have arrived, once each, as were sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .topology import Daemon

_LEDGER = "SELECT entry, reason, messages FROM sys.dm_broker_ledger"
_ARRIVED = "SELECT SUM(receive_sequence) AS arrived FROM sys.conversation_endpoints"


@dataclass(frozen=True, slots=True)
class Account:
    """One database. Shape: `failed` by reason; `arrived` whole messages that came in order, each counted once."""

    sent: int = 0
    acknowledged: int = 0
    held: int = 0
    unaccounted: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    arrived: int = 0


def read_account(daemon: Daemon, database: str) -> Account:
    """What a daemon tells of its database."""
    rows = daemon.query(f"{_LEDGER} WHERE database_name = '{database}'")  # a name of the demo
    entries = {row["entry"]: row["messages"] for row in rows if row["reason"] is None}
    failed = {row["reason"]: row["messages"] for row in rows if row["reason"] is not None}
    [arrived] = daemon.query(_ARRIVED, database)
    return Account(**entries, failed=failed, arrived=arrived["arrived"] or 0)


def account_faults(accounts: Mapping[str, Account]) -> list[str]:
    """What does not add up, by database and over all of them; empty when everything sent has arrived once."""
    found = []
    for name, one in accounts.items():
        if one.unaccounted or one.sent != one.acknowledged + one.held + sum(one.failed.values()):
            found.append(
                f"{name}: {one.sent} sent are not {one.acknowledged} acknowledged + {one.held} held"
                f" + {sum(one.failed.values())} failed"
            )
        if one.held:
            found.append(f"{name}: {one.held} are not acknowledged")
        found += [f"{name}: {count} failed: {reason}" for reason, count in sorted(one.failed.items())]
    sent = sum(one.sent for one in accounts.values())
    arrived = sum(one.arrived for one in accounts.values())
    if not sent:
        found.append("nothing was sent at all")
    if sent != arrived:
        found.append(f"{sent} sent by all databases, {arrived} arrived at all of them")
    return found
