"""
Following what a plan changes over the next instances: which messages would go round in a loop.

The instance that plans tells where messages would go; every other one is asked what it would do with them now. A
loop is an old one when the message goes round already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from broker.admin.explain_message import ExplainAnswer, ExplainRequest
from broker.admin.through import Asking, TraceEnd, follow

_GOES_ROUND = frozenset({TraceEnd.LOOP, TraceEnd.TOO_FAR})


class RoutingLoop(msgspec.Struct, frozen=True):
    """Messages to one service that would never arrive."""

    to_service: str
    path: Annotated[str, Meta(description="The whole way in one sentence.")]
    was_there: Annotated[bool, Meta(description="Whether they go round now as well.")]


class Followed(msgspec.Struct, frozen=True):
    """What was found. Shape: `unknown` one sentence for each way whose end nobody could tell."""

    loops: list[RoutingLoop]
    unknown: list[str]


def follow_plan(
    arrivals: Iterable[ExplainAnswer], ask_here: Callable[[ExplainRequest], ExplainAnswer], ask_next: Asking
) -> Followed:
    """
    Where messages would end up.

    Args:
        arrivals: What the instance that plans would do with them after the script.
        ask_here: Gets its answer of now.
        ask_next: Gets that of the instance at an address; raises NotAskedError when it cannot.
    """
    loops: list[RoutingLoop] = []
    unknown: dict[str, None] = {}
    for first in arrivals:
        way = follow(first, ask_next)
        if way.end in _GOES_ROUND:
            today = follow(ask_here(_question(first)), ask_next)
            loops.append(RoutingLoop(first.explanation.to_service, way.sentence, was_there=today.end in _GOES_ROUND))
        elif way.end is TraceEnd.UNKNOWN:
            unknown[way.sentence] = None
    return Followed(loops, list(unknown))


def _question(answer: ExplainAnswer) -> ExplainRequest:
    """What was answered."""
    told = answer.explanation
    first = told.passes[0]
    return ExplainRequest(
        told.to_service,
        None if told.to_broker_instance is None else UUID(told.to_broker_instance),
        UUID(told.conversation_id),
        database=None if first.is_incoming else first.table,
        incoming=first.is_incoming,
        from_target=told.is_from_target,
    )
