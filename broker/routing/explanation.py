"""
What an explanation of a routing decision looks like, as values; JSON and the terminal show the same ones.

GUIDs and addresses are text here, as people read them; a database goes by its name.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta


class Outcome(StrEnum):
    """What happens to the message, in one word."""

    FORWARDED = "forwarded"
    DELIVERED = "delivered"
    HELD = "held"
    DELAYED = "delayed"
    DROPPED = "dropped"


class Progress(StrEnum):
    """How far a step came."""

    SKIPPED = "skipped"
    NOTHING = "nothing"
    MATCHED = "matched"
    NOT_REACHED = "not reached"


class RouteFate(msgspec.Struct, frozen=True):
    """One route and what became of it at this place."""

    name: str
    remote_service_name: str | None
    broker_instance: str | None
    address: str
    mirror_address: str | None
    weight: int
    lifetime: Annotated[datetime | None, Meta(description="UTC instant of expiry; null is never.")]
    is_taken: Annotated[bool, Meta(description="Whether it goes on from here.")]
    why: str


class Score(msgspec.Struct, frozen=True):
    """One broker instance in the draw of step 3; the highest score wins."""

    broker_instance: str
    weight: int
    score: float
    is_picked: bool


class Step(msgspec.Struct, frozen=True):
    """One step of matching."""

    step: Annotated[int, Meta(description="0 for a reply, 1 to 7 as documented.")]
    title: str
    progress: Progress
    why: str
    routes: tuple[RouteFate, ...] = ()
    scores: tuple[Score, ...] = ()
    more_routes: Annotated[int, Meta(description="Routes that were looked at and are not listed.")] = 0


class ClassTried(msgspec.Struct, frozen=True):
    """One class of choosing, and its members."""

    route_class: str
    progress: Progress
    why: str
    routes: tuple[RouteFate, ...] = ()
    more_routes: Annotated[int, Meta(description="Members that are not listed.")] = 0


class CandidateShown(msgspec.Struct, frozen=True):
    """One address that leads on, best first."""

    address: str
    route: str
    health: str
    problem: Annotated[str, Meta(description="What is known against it; empty when nothing is.")]
    score: Annotated[float, Meta(description="Among equally healthy ones the highest wins.")]


class PassShown(msgspec.Struct, frozen=True):
    """One time through matching and choosing; a route that leads to this very instance makes a second one."""

    table: Annotated[str, Meta(description="Whose routes were searched.")]
    is_incoming: bool
    steps: tuple[Step, ...]
    classes: tuple[ClassTried, ...]
    candidates: tuple[CandidateShown, ...]
    more_candidates: Annotated[int, Meta(description="Candidates that are not listed.")] = 0


class PermissionShown(msgspec.Struct, frozen=True):
    """Whether the peer may, and by which statement, or for want of which."""

    permission: str
    is_permitted: bool
    why: str


class Explanation(msgspec.Struct, frozen=True):
    """The decision and every reason for it."""

    to_service: str
    to_broker_instance: Annotated[str | None, Meta(description="Null when any instance of the service will do.")]
    conversation_id: str
    is_from_target: bool
    outcome: Outcome
    disposition: str
    number: Annotated[int, Meta(description="The original's message number; 0 where it has none.")]
    step: int
    route: Annotated[str | None, Meta(description="The route taken; null when none was, empty when none is stored.")]
    next_hop: str | None
    database: str | None
    is_service_there: Annotated[bool, Meta(description="False when that database does not have the service.")]
    sentence: str
    is_by_conversation: Annotated[bool, Meta(description="Whether another conversation may go elsewhere.")]
    passes: tuple[PassShown, ...]
    hints: tuple[str, ...] = ()
    peer: Annotated[str | None, Meta(description="Who brings the message; null when that was not asked.")] = None
    permissions: Annotated[
        tuple[PermissionShown, ...], Meta(description="What the peer needs; asked before any route.")
    ] = ()

    @property
    def has_way(self) -> bool:
        """Whether a message leaves, waits for a principal, or comes to a service that is there."""
        return self.outcome not in {Outcome.DROPPED, Outcome.DELAYED} and self.is_service_there
