"""
The port of observation: `/metrics`, and the three questions an orchestrator asks.

`/livez`: does the loop turn; an answer is the proof. `/startupz`: has everything come up. `/readyz`: should traffic
come here. The answer is one word, with `?verbose` one line for each check. A store or a worker that fails is told there
and does not make the instance unready: its other databases, or its other workers, work on. An instance whose own
certificate has expired is not ready: nobody connects to it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from broker.admin.app import tell_problems
from broker.admin.subject import Subject
from broker.observe.metrics import Exposition

CLIENT_MAX_BYTES = 1024  # nothing here takes a body


@dataclass(frozen=True, slots=True)
class Check:
    """One line of an answer. Shape: `is_vital` when the answer as a whole is no without it."""

    name: str
    is_good: bool
    detail: str = ""
    is_vital: bool = True

    def __str__(self) -> str:
        mark = "+" if self.is_good else "-" if self.is_vital else "!"
        return f"[{mark}] {self.name}" + (f": {self.detail}" if self.detail else "")


Checks = Callable[[], list[Check]]


def observe_app(subject: Subject, executor: Executor) -> web.Application:
    """The application; metrics are rendered by `executor`, which has one thread."""
    exposition = Exposition()
    app = web.Application(middlewares=[tell_problems], client_max_size=CLIENT_MAX_BYTES)

    async def scrape(request: web.Request) -> web.Response:
        render = partial(exposition.render, await subject.reading(), request.headers.get("Accept", ""))
        body, content_type = await asyncio.get_running_loop().run_in_executor(executor, render)
        return web.Response(body=body, headers={"Content-Type": content_type})

    app.router.add_get("/metrics", scrape)
    for path, checks in checks_of(subject).items():
        app.router.add_get(path, partial(_answer, checks))
    return app


def checks_of(subject: Subject) -> dict[str, Checks]:
    """What is looked at behind each path."""

    def live() -> list[Check]:
        return [
            Check("loop", is_good=True, detail=f"at most {subject.lag.seconds * 1000:.1f} ms late in the last 15 s")
        ]

    def started() -> list[Check]:
        return [Check("started", is_good=subject.is_ready or subject.stopping.is_set())]

    def ready() -> list[Check]:
        parts = [
            Check(name, is_good=not problem, detail=problem, is_vital=False) for name, problem in subject.parts.items()
        ]
        problem = subject.certificate_problem
        expired = [Check("certificate", is_good=False, detail=problem)] if problem else []
        return [
            Check("ready", is_good=subject.is_ready),
            Check("not stopping", is_good=not subject.stopping.is_set()),
            *expired,
            *parts,
        ]

    return {"/livez": live, "/startupz": started, "/readyz": ready}


async def _answer(checks: Checks, request: web.Request) -> web.Response:
    found = checks()
    is_good = all(check.is_good for check in found if check.is_vital)
    word = "ok" if is_good else "failed"
    lines = [*map(str, found), word] if "verbose" in request.query else [word]
    return web.Response(text="\n".join(lines) + "\n", status=200 if is_good else 503)
