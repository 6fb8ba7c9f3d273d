"""Part of `broker.admin.message`."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from broker.admin.database_name import DatabaseName
from broker.routing.explain import Explanation


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
