"""
What goes in and out of the admin API, as values; their JSON schemas are the ones of `/v1/openapi.json`.

A request with a field that is not written here is refused: a misspelt option must not be an option left out.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from broker.routing.explain import Explanation

PAGE_ROWS = 1000  # rows of a view in one answer when the request does not say
PAGE_ROWS_MAX = 10_000  # what one SELECT gives at most
AFTER_MAX = 2**53  # what every JSON reader takes for a whole number

DatabaseName = Annotated[
    str | None, Meta(description="The database; left out: the only one the instance hosts, else msdb.")
]


class SqlRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A SELECT over the system views, or a script of statements."""

    statement: Annotated[str, Meta(description="T-SQL.")]
    database: DatabaseName = None


class SqlAnswer(msgspec.Struct, frozen=True):
    """Rows of a SELECT, or messages about the statements carried out."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    messages: Annotated[
        list[str],
        Meta(description="One for each of the first 100 statements; then one that says how many more of which kind."),
    ] = []
    truncated: Annotated[bool, Meta(description="There are more rows than one answer holds.")] = False


class ViewRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A page of a view."""

    name: Annotated[str, Meta(description="As in a SELECT: sys.routes, msdb.sys.routes, sys.dm_broker_connections ...")]
    limit: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX, description="Rows in the answer.")] = PAGE_ROWS
    after: Annotated[
        int, Meta(ge=0, le=AFTER_MAX, description="What the answer before this one gave; 0 for the first.")
    ] = 0
    database: DatabaseName = None


class ViewAnswer(msgspec.Struct, frozen=True):
    """Some rows of a view."""

    columns: list[str]
    rows: list[list[Any]]
    after: Annotated[int | None, Meta(description="For the request of the next page; null when this is the last.")]


class ExplainRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A message whose way is asked for; nothing is sent."""

    to: Annotated[str | None, Meta(description="The service; left out: that of the conversation.")] = None
    broker_instance: Annotated[
        UUID | None, Meta(description="The one database that shall get it; left out: any, or the conversation's.")
    ] = None
    conversation: Annotated[
        UUID | None,
        Meta(description="Its id, or without `to` the handle or id of one that lives here; left out: one is drawn."),
    ] = None
    database: DatabaseName = None
    incoming: Annotated[bool, Meta(description="It comes from outside; the same as database msdb.")] = False
    from_target: Annotated[bool, Meta(description="It is an answer of the target; counts with `to` only.")] = False
    peer: Annotated[
        str | None,
        Meta(description="Who brings it: a principal as in GRANT, without *. Then it comes from outside."),
    ] = None


class ExplainAnswer(msgspec.Struct, frozen=True):
    """What one instance would do with a message, and why."""

    instance: Annotated[str, Meta(description="The name of the instance that decides.")]
    broker_instance: Annotated[str | None, Meta(description="Its identity; null when it has never run.")]
    addresses: Annotated[list[str], Meta(description="Those that are known to lead to it.")]
    is_conversation_drawn: Annotated[bool, Meta(description="Whether the question named none.")]
    explanation: Explanation
    principal: Annotated[
        str | None, Meta(description="As whom its peers know it; null where it shows no certificate.")
    ] = None


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


class Nothing(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A request without parameters."""


class Finding(msgspec.Struct, frozen=True):
    """One thing about the configuration."""

    key: Annotated[str, Meta(description="The setting; of what the scripts say, the code of the lint.")]
    problem: str
    hint: str
    file: str | None
    line: int | None
    column: int | None


class LeftOut(msgspec.Struct, frozen=True):
    """Findings that are only counted: of one key in one file the first 1000 are told."""

    key: Annotated[str, Meta(description="The code of the lint.")]
    file: str | None
    count: int


class CheckAnswer(msgspec.Struct, frozen=True):
    """Whether the instance could start again, and what is legal but unwise."""

    ok: bool
    problems: list[Finding]
    warnings: list[Finding]
    left_out: list[LeftOut]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """RFC 9457. What begins with `number` is there when a statement was refused, the place only when it is known."""

    type: str
    title: str
    status: int
    detail: Annotated[str, Meta(description="The whole sentence, caret included.")]
    number: Annotated[int | None, Meta(description="The original's message number.")] = None
    problem: Annotated[str | None, Meta(description="The sentence without number and place.")] = None
    line: int | None = None
    column: int | None = None
    caret: Annotated[str | None, Meta(description="The line of the text, and under it a caret at the place.")] = None
    role: Annotated[str | None, Meta(description="The role that it takes, where one was missing.")] = None
