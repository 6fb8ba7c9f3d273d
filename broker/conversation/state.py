"""
The states of one side of a conversation, and what changes them.

Source: Service Broker documentation, "Service Broker Communication Protocols", "Dialog Conversations".
"""

from __future__ import annotations

from enum import StrEnum

ON_ITS_WAY = "on its way: "
"""Begins what the daemon says of messages that nothing keeps: their `transmission_status` is blank."""


class ConversationState(StrEnum):
    """The documented states of a conversation endpoint."""

    STARTED_OUTBOUND = "SO"
    STARTED_INBOUND = "SI"
    CONVERSING = "CO"
    DISCONNECTED_INBOUND = "DI"
    DISCONNECTED_OUTBOUND = "DO"
    ERROR = "ER"
    CLOSED = "CD"


class Happening(StrEnum):
    """An event that changes the state of an endpoint."""

    FIRST_SENT = "first message sent"
    FIRST_RECEIVED = "first message received whole"
    END_RECEIVED = "END DIALOG received"
    ERROR_RECEIVED = "error received"
    ENDED_HERE = "END CONVERSATION here"
    END_ACKNOWLEDGED = "END DIALOG acknowledged"


S, H = ConversationState, Happening
# A missing key is a step that changes nothing: the arrival is acknowledged and discarded, the call refused.
TRANSITIONS: dict[tuple[ConversationState, Happening], ConversationState] = {
    (S.STARTED_OUTBOUND, H.FIRST_SENT): S.CONVERSING,
    (S.STARTED_OUTBOUND, H.ENDED_HERE): S.CLOSED,  # the far side does not know of it
    (S.STARTED_OUTBOUND, H.END_RECEIVED): S.DISCONNECTED_INBOUND,
    (S.STARTED_OUTBOUND, H.ERROR_RECEIVED): S.ERROR,
    (S.STARTED_INBOUND, H.FIRST_RECEIVED): S.CONVERSING,
    (S.STARTED_INBOUND, H.END_RECEIVED): S.DISCONNECTED_INBOUND,  # begun and ended, with nothing in between
    (S.STARTED_INBOUND, H.ERROR_RECEIVED): S.ERROR,
    (S.STARTED_INBOUND, H.ENDED_HERE): S.DISCONNECTED_OUTBOUND,
    (S.CONVERSING, H.END_RECEIVED): S.DISCONNECTED_INBOUND,
    (S.CONVERSING, H.ERROR_RECEIVED): S.ERROR,
    (S.CONVERSING, H.ENDED_HERE): S.DISCONNECTED_OUTBOUND,
    (S.DISCONNECTED_INBOUND, H.ENDED_HERE): S.CLOSED,
    (S.DISCONNECTED_INBOUND, H.ERROR_RECEIVED): S.ERROR,
    (S.DISCONNECTED_OUTBOUND, H.END_ACKNOWLEDGED): S.CLOSED,
    (S.DISCONNECTED_OUTBOUND, H.END_RECEIVED): S.CLOSED,
    (S.DISCONNECTED_OUTBOUND, H.ERROR_RECEIVED): S.CLOSED,
    (S.ERROR, H.ENDED_HERE): S.CLOSED,
}
CAN_SEND = frozenset({S.STARTED_OUTBOUND, S.CONVERSING})
TAKES_MESSAGES = frozenset({S.STARTED_OUTBOUND, S.STARTED_INBOUND, S.CONVERSING})
