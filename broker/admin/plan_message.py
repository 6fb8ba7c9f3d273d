"""Part of `broker.admin.message`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from broker.admin.database_name import DatabaseName
from broker.admin.explain_message import ExplainAnswer


class PlanRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A script whose consequences are asked for; nothing is changed."""

    script: Annotated[str, Meta(description="T-SQL, as for /v1/sql.")]
    database: DatabaseName = None
    source: Annotated[str, Meta(description="What the places of errors call the script.")] = "-"
    arrivals: Annotated[bool, Meta(description="Whether to tell where messages would go, service by service.")] = False


class PlannedRoute(msgspec.Struct, frozen=True):
    """A route as it is or would be."""

    remote_service_name: str | None
    broker_instance: str | None
    address: str
    mirror_address: str | None
    weight: int
    lifetime: Annotated[datetime | None, Meta(description="UTC instant of expiry; null is never.")]


class RouteEdit(msgspec.Struct, frozen=True):
    """A route that the script makes (no `before`), drops (no `after`) or alters."""

    database: str
    name: str
    before: PlannedRoute | None
    after: PlannedRoute | None


class Consequence(msgspec.Struct, frozen=True):
    """What becomes of one conversation under way, or of all that pass through alike."""

    database: Annotated[str | None, Meta(description="Where it lives; null when it passes through or arrives.")]
    conversation: Annotated[
        str | None,
        Meta(description="Its handle; of one that passes through, its id; null for all that go the same way."),
    ]
    to_service: str
    fate: Annotated[str, Meta(description="As in `fates`.")]
    is_harm: Annotated[bool, Meta(description="It has sent, and would move, or lose its route or its service here.")]
    before: str
    after: str


class WhenExpired(msgspec.Struct, frozen=True):
    """What becomes of conversations when the last LIFETIME that the script sets has ended."""

    at: datetime
    fates: Annotated[dict[str, int], Meta(description="Compared with the routes of now at that instant.")]
    harmed: int


class PlanAnswer(msgspec.Struct, frozen=True):
    """What a script would do to routes and to conversations under way."""

    edits: list[RouteEdit]
    more_edits: Annotated[
        int | None, Meta(description="Routes that change and are not listed; null when they are too many to count.")
    ]
    fates: Annotated[dict[str, int], Meta(description="Conversations by what becomes of them.")]
    passing: Annotated[
        int, Meta(description="How many of them pass through or arrive; those that go the same way count as one.")
    ]
    harmed: Annotated[
        int, Meta(description="How many of them have sent, and would move, or lose their route or their service here.")
    ]
    consequences: Annotated[list[Consequence], Meta(description="Those that change, harm first; not all of many.")]
    expired: Annotated[WhenExpired | None, Meta(description="Null when the script sets no LIFETIME.")] = None
    arrivals: Annotated[
        list[ExplainAnswer],
        Meta(description="Where messages would go, for each service of a changed route and of a conversation listed."),
    ] = []
    more_arrivals: Annotated[bool, Meta(description="There are more services than are listed.")] = False
