"""Part of `broker.control.draining`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.control.finding import SettingFinding
from broker.control.quantity import render_duration

if TYPE_CHECKING:
    from broker.control.config import Settings


def drain_oddities(settings: Settings) -> Iterator[SettingFinding]:
    """What is allowed and probably not meant."""
    drain = settings.drain
    if 0 < drain.timeout <= drain.announce:
        yield SettingFinding(
            ("drain", "announce"),
            f"leaves nothing of drain.timeout ({render_duration(drain.timeout)}) for what is held",
            "make it shorter",
            (("drain", "timeout"),),
        )
