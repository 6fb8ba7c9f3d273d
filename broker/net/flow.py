"""
What a link does, by what has really moved: not by what it was told to do, nor by the state its protocol is in.

A peer that is stopped, or behind a cable that was pulled, keeps its connection: the system takes what is written until
its buffers are full, and says nothing. So only what was heard from the peer proves anything. A side that sends asks
with PING now and then (`broker.protocol.link_state`), and what it asked has to be answered in time. Looked at once a
second or more often, and whenever somebody wants to know. Loop-only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from broker.net.link_state import LinkState

if TYPE_CHECKING:
    from broker.net.link import Link

FLOW_SECONDS = 2.0  # within which a dialog frame has to have moved for a link to be flowing: two looks
BLOCKED_SECONDS = 1.0  # in which the socket takes nothing: for less, that is how a full one works
ANSWER_SHARE = 0.5  # of our heartbeat: how long a PING may be under way


class FlowState(StrEnum):
    """What a link does; the value is the word in views, status and metrics."""

    OPENING = "opening"
    FLOWING = "flowing"
    IDLE = "idle"
    BLOCKED = "blocked"
    STALLED = "stalled"
    LEAVING = "leaving"
    DOWN = "down"


_OF_LINK = {
    LinkState.CONNECTED: (FlowState.OPENING, "HELLO of the peer has not come"),
    LinkState.DRAINING: (FlowState.LEAVING, "nothing new is sent: one side drains"),
    LinkState.LINGERING: (FlowState.DOWN, ""),
    LinkState.CLOSED: (FlowState.DOWN, ""),
}


class LinkActivity:
    """
    What one link does.

    Shape: `state` and `why` as of the last look, `since` the loop time at which the state began; `progress_at` loop
    time at which something was heard from the peer for the last time, so that all it had been sent before the question
    is known to have arrived.
    """

    __slots__ = ("_frames", "_moved_at", "_sent", "_took_at", "progress_at", "since", "state", "why")

    def __init__(self, now: float) -> None:
        self.state = FlowState.OPENING
        self.why = ""
        self.since = self.progress_at = now
        self._moved_at = float("-inf")  # a dialog frame, in either direction
        self._took_at = now  # the socket, anything at all
        self._sent = self._frames = 0  # bytes; dialog frames and bytes of them

    def look(self, link: Link, now: float) -> LinkActivity:
        """See what has moved since the last look."""
        moved = link.received.total() + link.bytes_sent - link.control_sent
        if moved != self._frames:
            self._frames, self._moved_at = moved, now
        if link.bytes_sent != self._sent or not link.is_blocked:
            self._sent, self._took_at = link.bytes_sent, now
        self.progress_at = link.connection.last_heard
        state, self.why = self._judge(link, now)
        if state is not self.state:
            self.state, self.since = state, now
        return self

    def _judge(self, link: Link, now: float) -> tuple[FlowState, str]:
        if link.state is not LinkState.LOGGED_IN:
            state, why = _OF_LINK[link.state]
            return state, why or link.reason
        if link.is_paused:  # before what was not heard: it was not listened to
            return FlowState.BLOCKED, "it is not read: " + (
                ", ".join(sorted(link.slowed_by)) or "endpoint.backpressure"
            )
        connection = link.connection
        if connection.unanswered_since is not None:
            waited = now - max(connection.unanswered_since, connection.last_heard)
            if waited >= ANSWER_SHARE * connection.heartbeat:
                return FlowState.STALLED, "the peer does not answer"
        if now - self._took_at >= BLOCKED_SECONDS:
            return FlowState.BLOCKED, "the peer takes nothing more"
        return (FlowState.FLOWING if now - self._moved_at < FLOW_SECONDS else FlowState.IDLE), ""
