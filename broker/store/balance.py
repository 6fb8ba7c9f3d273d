"""
Reading the ledger of a database: what was sent, and what became of it; `broker.store.ledger` is what writes it.

One statement, so the figures are those of one moment. Cost: a walk through the conversations and through an index of
the transmission queue; no message is looked at.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from broker.store.ledger import ACKNOWLEDGED, SENT

HELD, FAILED, UNACCOUNTED = "held", "failed", "unaccounted"
_NONE: Mapping[str, int] = MappingProxyType({})
_READ = f"""
    WITH live AS MATERIALIZED (
     SELECT coalesce(sum(send_sequence), 0) AS sent, coalesce(sum(acknowledged_sequence), 0) AS acknowledged
     FROM broker_conversation
    )
    SELECT entry, messages FROM broker_ledger
    UNION ALL SELECT '{SENT}', sent FROM live
    UNION ALL SELECT '{ACKNOWLEDGED}', acknowledged FROM live
    UNION ALL SELECT '{HELD}', count(*) FROM broker_transmission
"""  # noqa: S608 - own words


@dataclass(frozen=True, slots=True)
class LedgerBalance:
    """Messages of one database since its file was made. Shape: `failed` by reason, never sent or never confirmed."""

    sent: int = 0
    acknowledged: int = 0
    held: int = 0
    failed: Mapping[str, int] = field(default_factory=lambda: _NONE)

    @property
    def unaccounted(self) -> int:
        """What of `sent` nothing tells about: 0, or there is a fault of the program or somebody changed the file."""
        return self.sent - self.acknowledged - self.held - sum(self.failed.values())

    def entries(self) -> Iterator[tuple[str, str | None, int]]:
        """(entry, reason, messages), the reason only of what failed, as the view shows them."""
        yield SENT, None, self.sent
        yield ACKNOWLEDGED, None, self.acknowledged
        yield HELD, None, self.held
        yield from ((FAILED, reason, messages) for reason, messages in sorted(self.failed.items()))
        yield UNACCOUNTED, None, self.unaccounted


def unconfirmed(db: sqlite3.Connection) -> int:
    """How many messages of the conversations that live here are not acknowledged. Cost: a walk through them."""
    query = "SELECT coalesce(sum(send_sequence - acknowledged_sequence), 0) FROM broker_conversation"
    messages: int = db.execute(query).fetchone()[0]
    return messages


def read_balance(db: sqlite3.Connection) -> LedgerBalance:
    """
    The ledger of the database behind this connection.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    sums: dict[str, int] = {}
    for entry, messages in db.execute(_READ):
        sums[entry] = sums.get(entry, 0) + messages
    sent, acknowledged, held = (sums.pop(entry, 0) for entry in (SENT, ACKNOWLEDGED, HELD))
    return LedgerBalance(sent, acknowledged, held, sums)
