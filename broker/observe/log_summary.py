"""Now and then, how many repeated errors were left out of the log since they were told last."""

from __future__ import annotations

import asyncio

from broker.observe.logs import tell_suppressed

LOOK_SECONDS = 10.0  # between two looks for errors that were left out for a minute


async def tell_summaries() -> None:
    """Tell them, for ever; `close_logging` tells the rest."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        tell_suppressed()
