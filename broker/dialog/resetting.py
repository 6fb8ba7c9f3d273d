"""Other settings for the dialogs of a database that is at work. Loop-only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.dialog.setting import DialogSettings
    from broker.dialog.transmitter import Transmitter


def reset(transmitter: Transmitter, settings: DialogSettings) -> None:
    """
    Dialogs behave so from now on, those under way as well: what is in flight stays, what is sent next obeys.

    How messages are cut stays as it is: those that wait are cut already.
    """
    transmitter.settings = replace(settings, fragment_size=transmitter.settings.fragment_size)
    transmitter.framing.travel = settings.travel
    for sender in transmitter.senders.values():
        outbound = sender.outbound
        outbound.round_trip.backoff = settings.backoff
        outbound.window.bound(settings.window, settings.window_bytes)
    transmitter.on_room()  # a wider window may have room for more
