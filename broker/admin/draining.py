"""Draining on command: the same as SIGTERM, and what has yet to leave."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Annotated

import msgspec
from msgspec import Meta

from broker.admin.audit import Audit
from broker.admin.caller import Caller
from broker.net.drain import Drain, DrainStage

FOLLOW_SECONDS = 10.0  # at most, that an answer about the next change is waited for

StageName = Annotated[str, Meta(description="`serving`, `announced`, `leaving`, `left`.")]


class DrainQuestion(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How far a drain is."""

    since: Annotated[
        int,
        Meta(ge=-1, le=2**53, description="Wait for more changes than these, for ten seconds at most; -1: answer now."),
    ] = -1


class DrainAnswer(msgspec.Struct, frozen=True):
    """How far a drain is, and what has yet to leave, or would have to."""

    stage: StageName
    sentence: str
    reason: Annotated[str, Meta(description='Why it drains; "" while it serves.')]
    held: Annotated[int, Meta(description="Messages held for next hops.")]
    unserved: Annotated[int, Meta(description="How many of them no connection takes now.")]
    peers: Annotated[int, Meta(description="Connections whose peers may still send.")]
    by_hop: Annotated[dict[str, int], Meta(description="Messages held, of the twenty next hops with most.")]
    busy: Annotated[list[str], Meta(description="Databases that have yet to store or acknowledge what came.")]
    remaining_s: Annotated[float | None, Meta(description="Seconds until the time is up; null while it serves.")]
    clean: Annotated[bool | None, Meta(description="Whether nothing was left behind; null until it has left.")]
    changes: Annotated[int, Meta(description="What `since` takes.")]
    process: Annotated[
        int | None, Meta(description="Id of the process that ends behind it; null where an application embeds it.")
    ]


async def drain_now(drain: Drain, audit: Audit, executor: Executor, caller: Caller) -> DrainAnswer:
    """
    Begin to drain, unless it has begun.

    Raises:
        AuditUnavailableError: it could not be written down; nothing has begun.
    """
    if not drain.has_begun:
        entry = audit.begin(caller, "POST /v1/drain")
        await asyncio.get_running_loop().run_in_executor(executor, entry.seal_done, "instance")
        drain.begin(f"asked for by {caller.who}")
        await asyncio.sleep(0)
    return await _drain_answer(drain)


async def drain_state(drain: Drain, question: DrainQuestion) -> DrainAnswer:
    """How far it is; when `since` is given, as soon as that has changed."""
    if question.since >= 0:
        await drain.changed(question.since, FOLLOW_SECONDS)
    return await _drain_answer(drain)


async def _drain_answer(drain: Drain) -> DrainAnswer:
    left = await drain.look()
    is_serving = drain.stage is DrainStage.SERVING
    return DrainAnswer(
        stage=drain.stage.value,
        sentence=drain.sentence,
        reason=drain.reason,
        held=left.held,
        unserved=left.unserved,
        peers=left.peers,
        by_hop=left.by_hop,
        busy=list(left.busy),
        remaining_s=None if is_serving else round(drain.remaining_s, 3),
        clean=drain.is_clean if drain.stage is DrainStage.LEFT else None,
        changes=drain.changes,
        process=drain.process,
    )
