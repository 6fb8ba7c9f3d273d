"""
The one table of what the admin API can do. The server's routes and `/v1/openapi.json` are both made from it.

GET never changes anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from broker.admin.api import Api
from broker.admin.census import CensusAnswer, CensusRequest
from broker.admin.configuration import ConfigAnswer
from broker.admin.draining import DrainAnswer, DrainQuestion
from broker.admin.events import Events, EventsRequest
from broker.admin.explain_message import ExplainAnswer, ExplainRequest
from broker.admin.message import CheckAnswer, Nothing, SqlAnswer, SqlRequest, ViewAnswer, ViewRequest
from broker.admin.plan_message import PlanAnswer, PlanRequest
from broker.admin.reloading import ReloadAnswer, ReloadRequest
from broker.admin.why import WhyAnswer, WhyRequest
from broker.control.admin_role import AdminRole

SCRIPT_MAX_BYTES = 160 * 1024 * 1024  # a script of a million routes, with room for how JSON writes it
BODY_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Operation:
    """
    One method of one path.

    Shape: `call` is a method of `Api`; `request` its argument, made of the path and the query for GET, of the body
    for POST; `answer` what it returns, None for an object told elsewhere; `refusals` the statuses special to it; `role`
    the least that may ask; `is_change` when it may change something: `call` is then given the caller as well, judges
    what is asked and has it written down; `body_max` bytes; `is_stream` when it answers with events, and `call` is a
    method of `Events`.
    """

    method: Literal["GET", "POST"]
    path: str
    summary: str
    call: Callable[..., Awaitable[Any]]
    request: type[msgspec.Struct] = Nothing
    answer: type[msgspec.Struct] | None = None
    refusals: tuple[HTTPStatus, ...] = ()
    role: AdminRole = AdminRole.VIEWER
    is_change: bool = False
    body_max: int = BODY_MAX_BYTES
    is_stream: bool = False


OPERATIONS = (
    Operation(
        "POST",
        "/v1/sql",
        "Carry out a SELECT over the system views, or a script of statements, which takes the role operator or admin",
        Api.sql,
        request=SqlRequest,
        answer=SqlAnswer,
        refusals=(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE),
        is_change=True,
        body_max=SCRIPT_MAX_BYTES,
    ),
    Operation(
        "GET",
        "/v1/views/{name}",
        "Read a system view, page by page",
        Api.view,
        request=ViewRequest,
        answer=ViewAnswer,
        refusals=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
    Operation(
        "POST",
        "/v1/explain",
        "Where a message would go, and why; nothing is sent",
        Api.explain,
        request=ExplainRequest,
        answer=ExplainAnswer,
        refusals=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        "POST",
        "/v1/plan",
        "What a script would do to routes and to conversations under way; nothing is changed",
        Api.plan,
        request=PlanRequest,
        answer=PlanAnswer,
        refusals=(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE),
        body_max=SCRIPT_MAX_BYTES,
    ),
    Operation(
        "GET",
        "/v1/why/{id}",
        "Where a conversation or a message is, why, and what to do, as far as this instance knows",
        Api.why,
        request=WhyRequest,
        answer=WhyAnswer,
    ),
    Operation(
        "GET",
        "/v1/census",
        "What lives in the databases, and how old it is",
        Api.census,
        request=CensusRequest,
        answer=CensusAnswer,
        refusals=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
    Operation(
        "POST",
        "/v1/drain",
        "Have the instance leave in good order, as SIGTERM does",
        Api.drain,
        answer=DrainAnswer,
        refusals=(HTTPStatus.SERVICE_UNAVAILABLE,),
        role=AdminRole.OPERATOR,
        is_change=True,
    ),
    Operation(
        "GET",
        "/v1/drain",
        "What would have to leave, or has yet to while the instance drains",
        Api.draining,
        request=DrainQuestion,
        answer=DrainAnswer,
    ),
    Operation(
        "POST",
        "/v1/reload",
        "Read the configuration again and have it hold, or with dry_run only tell what would change",
        Api.reload,
        request=ReloadRequest,
        answer=ReloadAnswer,
        refusals=(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE),
        role=AdminRole.OPERATOR,
        is_change=True,
    ),
    Operation("GET", "/v1/status", "The state of the instance at a glance", Api.status),
    Operation(
        "GET",
        "/v1/config",
        "Every setting in force, with its value and where that came from",
        Api.config,
        answer=ConfigAnswer,
    ),
    Operation(
        "GET",
        "/v1/events",
        "What the instance does, as server-sent events: the last ten minutes, then a snapshot every second",
        Events.serve,
        request=EventsRequest,
        refusals=(HTTPStatus.SERVICE_UNAVAILABLE,),
        is_stream=True,
    ),
    Operation(
        "POST",
        "/v1/check",
        "Whether the instance could start again with its configuration",
        Api.check,
        answer=CheckAnswer,
    ),
)
