"""What the log is told of frames that were not believed: one of each kind now and then, for anybody may send many."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from broker.flow import Disposition

TELL_SECONDS = 60.0  # between two lines about one kind

log = structlog.get_logger(__name__)


class Refusals:
    """The refusals of one database. Loop-only."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._told_at: dict[Disposition, float] = {}

    def tell(self, refusals: Mapping[Disposition, str], now: float) -> None:
        """Tell why frames of a turn were refused, by disposition; monotonic seconds."""
        for disposition, why in refusals.items():
            told_at = self._told_at.get(disposition)
            if told_at is None or now - told_at >= TELL_SECONDS:
                self._told_at[disposition] = now
                log.warning(
                    "frame refused",
                    database=self._database,
                    number=disposition.number,
                    kind=str(disposition),
                    reason=why,
                )
