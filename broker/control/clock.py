"""
Whether the clock of the machine can be right: what an instance wrote down lately cannot lie ahead.

With a clock that is behind, routes live longer than they should, lifetimes of messages are counted wrongly and
certificates are "not valid before"; nothing is lost, so an instance starts all the same and tells.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from broker.store.fence import RECORD

SLACK_SECONDS = 300.0  # machines that share a directory differ by less


def clock_problem(state_dir: Path, *, now: float) -> str | None:
    """
    What tells that the clock is behind; None when nothing does.

    Args:
        state_dir: Of an instance, which writes its record there at every start and stop.
        now: UTC seconds.
    """
    try:
        used_at = (state_dir / RECORD).stat().st_mtime
    except OSError:
        return None
    if used_at <= now + SLACK_SECONDS:
        return None
    here, there = (datetime.fromtimestamp(one, UTC).strftime("%Y-%m-%d %H:%M UTC") for one in (now, used_at))
    return f"the clock says {here}, and this instance was last started or stopped at {there}, which is later"
