"""
What `broker why` is asked and answers, as values; JSON and the terminal show the same ones.

One instance answers with facts and with findings; a finding is a cause chain in plain words. Those of all instances on
the way make the trace (`broker.admin.why_through`).
"""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from broker.admin.explain_message import ExplainAnswer

Guid = Annotated[str, Meta(description="Upper case, as the views show it.")]


class Severity(IntEnum):
    """How a finding weighs in the trace: of the weightiest the one that is farthest on the way is the cause."""

    FINE = 0
    WAITING = 1  # it goes on by itself
    TROUBLE = 2  # it does not, or not before something else changes


class WhyRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is asked about."""

    id: Annotated[
        UUID, Meta(description="A conversation_handle, a conversation_id, or the message_id of a held frame.")
    ]


class WhyFinding(msgspec.Struct, frozen=True):
    """One cause chain: what is seen, why, what happens next, what to do."""

    instance: str
    database: Annotated[str | None, Meta(description="Null when it is about what passes through.")]
    cause: Annotated[str, Meta(description="A stable word: see docs/why.md.")]
    severity: Severity
    symptom: str
    why: str
    next: str
    remedy: Annotated[str, Meta(description="Empty when there is nothing to do.")]


class PoisonShown(msgspec.Struct, frozen=True):
    """Why a reader fails on the next message."""

    message_sequence_number: int
    failures: int
    last_failure_time: datetime
    quarantine_time: Annotated[datetime | None, Meta(description="Null while it is tried again.")]
    error: str


class SideShown(msgspec.Struct, frozen=True):
    """One side of the conversation that lives in a database here."""

    database: str
    conversation_handle: Guid
    is_initiator: bool
    state: str
    service_name: str
    far_service: str
    far_broker_instance: Guid | None
    lifetime: Annotated[datetime | None, Meta(description="UTC instant; null beyond the year 9999.")]
    create_date: datetime | None
    dialog_timer: datetime | None
    send_sequence: int
    acknowledged_sequence: int
    receive_sequence: int
    held: Annotated[int, Meta(description="Messages sent and not acknowledged.")]
    held_from: Annotated[int | None, Meta(description="Number of the first of them.")]
    held_since: datetime | None
    transmission_status: Annotated[str, Meta(description="Never empty.")]
    queue_name: Annotated[str | None, Meta(description="Null when the service was dropped.")]
    is_receive_enabled: bool
    ready: Annotated[int, Meta(description="Messages that wait for RECEIVE.")]
    ready_since: datetime | None
    quarantined: int
    early_fragments: int
    is_taken: Annotated[bool, Meta(description="A reader has its conversation group now, or the group rests.")]
    readers: Annotated[int, Meta(description="Reader processes that live on its queue.")]
    error_code: Annotated[int | None, Meta(description="Of an Error message that nobody has received yet.")]
    error_text: str
    poison: PoisonShown | None
    security: Annotated[str, Meta(description="Sealed to whom, or why not, in one sentence.")] = ""
    sent_error_code: Annotated[int | None, Meta(description="Of its own Error message, not acknowledged yet.")] = None
    sent_error_text: str = ""


class ClosedShown(msgspec.Struct, frozen=True):
    """A side that is over."""

    database: str
    is_initiator: bool
    receive_sequence: int
    close_time: datetime | None
    expire_time: Annotated[datetime | None, Meta(description="When even this is forgotten.")]
    conversation_handle: Annotated[Guid | None, Meta(description="Null when an older release closed it.")] = None


class HeldShown(msgspec.Struct, frozen=True):
    """Frames that wait here for one next hop."""

    is_initiator: bool
    to_service_name: str
    to_broker_instance: Guid | None
    from_service_name: str
    from_broker_instance: Guid | None
    adjacent_broker_address: str
    why_held: str
    frames: int
    longest_ms: int
    message_sequence_number: Annotated[int, Meta(description="The lowest of them.")]


class WhyAnswer(msgspec.Struct, frozen=True):
    """What one instance knows of a conversation or message. An id that it does not know is no error."""

    instance: str
    broker_instance: Annotated[str | None, Meta(description="Null when it has never run.")]
    addresses: list[str]
    is_running: Annotated[bool, Meta(description="False: read from the files of a configuration.")]
    id: str
    conversation_id: Annotated[Guid | None, Meta(description="Null when the id is not known here.")]
    sides: list[SideShown]
    closed: list[ClosedShown]
    held: list[HeldShown]
    dropped: Annotated[dict[str, int], Meta(description="All frames dropped here since the start, by reason.")]
    ways: Annotated[list[ExplainAnswer], Meta(description="Where its messages go from here, and why.")]
    findings: list[WhyFinding]
    looked_in: Annotated[list[str], Meta(description="What was searched, and what could not be.")]

    @property
    def is_known(self) -> bool:
        """Whether anything here tells of it."""
        return bool(self.sides or self.closed or self.held)
