"""How far a link is."""

from __future__ import annotations

from enum import StrEnum


class LinkState(StrEnum):
    """CONNECTED until HELLO is complete; DRAINING sends nothing new; LINGERING only waits for its last words to go."""

    CONNECTED = "CONNECTED"
    LOGGED_IN = "LOGGED_IN"
    DRAINING = "DRAINING"
    LINGERING = "LINGERING"
    CLOSED = "CLOSED"
