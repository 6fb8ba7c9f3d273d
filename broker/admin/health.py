"""
The port of observation: `/metrics`, and the three questions an orchestrator asks.

`/livez`: does the loop run; an answer is the proof, and nothing else is checked, because an orchestrator ends the
process on a failure. `/startupz`: has the start ended. `/readyz`, and `/healthz` for older probes: should traffic be
sent here. The answer is one word, with `?verbose` one line for each check; `?exclude=NAME` leaves one out, and
`/readyz/NAME` asks one alone. A store that fails is reported there. It makes the instance unready where no other one
works, as on a full disk, and the instance does not forward messages. A database made in place of a lost one is reported
until it is accepted. An instance whose own certificate has expired is not ready: no peer can connect to it. Peers do
not count: a gateway whose next hop is dead is as ready as one whose next hop is well.

No client is authenticated here. So why a check is bad, which may name files, is sent to this machine alone: not through
a proxy on it, and not to a page in a browser on it whose name is pointed here (DNS rebinding).

Source: Kubernetes documentation, "Kubernetes API health endpoints".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote

from aiohttp import hdrs, web
from prometheus_client.exposition import choose_encoder

from broker.admin.client import INSTANCE_HEADER
from broker.admin.guard import FORWARDED, host_name, is_loopback
from broker.admin.problems import answer_problems, http_problem
from broker.catalog.reload import reload_part
from broker.net.tls import is_ip
from broker.observe.instance import Running
from broker.observe.metrics import SECTIONS, Exposition
from broker.observe.snapshot import read_snapshot_in_steps, replaced_in, store_problem, vital_problems
from broker.observe.status_rendering import certificate_part
from broker.store.sqlite.write_lock import LockWait

CLIENT_MAX_BYTES = 1024  # nothing here takes a body
WRONG_PORT = "this is the port of observe.listen; ask on the admin socket, or on the port of admin.listen"
WITHHELD = "ask on this machine for the reason: broker status"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of an answer; where it is vital and bad, the answer as a whole is no."""

    name: str
    is_good: bool
    detail: str = ""
    is_vital: bool = True

    @property
    def key(self) -> str:
        """The name as a part of a path."""
        return self.name.replace(" ", "-")

    def __str__(self) -> str:
        mark = "+" if self.is_good else "-" if self.is_vital else "!"
        return f"[{mark}] {self.name}" + (f": {self.detail}" if self.detail else "")


Checks = Callable[[], list[Check]]


def observe_app(instance: Running, executor: Executor) -> web.Application:
    """The application; metrics are rendered by `executor`, which has one thread."""
    scrapes = Scrapes(instance, executor)
    app = web.Application(middlewares=[answer_problems], client_max_size=CLIENT_MAX_BYTES)

    async def name_instance(_: web.Request, response: web.StreamResponse) -> None:
        response.headers[INSTANCE_HEADER] = quote(instance.settings.instance.name)

    app.on_response_prepare.append(name_instance)

    async def scrape(request: web.Request) -> web.Response:
        body, content_type = await scrapes.text(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    app.router.add_get("/metrics", scrape)
    for path, checks in checks_of(instance).items():
        app.router.add_get(path, partial(_answer, checks))
        app.router.add_get(path + "/{name:.+}", partial(_answer_one, checks))
    app.router.add_route(hdrs.METH_ANY, "/v1/{what:.*}", _elsewhere)
    app.router.add_get("/", partial(_page_elsewhere, instance))
    return app


async def _page_elsewhere(instance: Running, _request: web.Request) -> web.Response:
    """To a person who looks for the status page here."""
    listen = instance.settings.admin.listen
    where = f"it is on port {listen.port}" if listen else "set admin.listen, and it is there"
    return http_problem(web.HTTPNotFound(), f"/: this is the port of observe.listen, with no status page: {where}")


async def _elsewhere(request: web.Request) -> web.Response:
    """To a client of the admin interface that was given the wrong port."""
    return http_problem(web.HTTPNotFound(), f"{request.path}: {WRONG_PORT}")


def checks_of(instance: Running) -> dict[str, Checks]:
    """The checks of each path."""

    def live() -> list[Check]:
        return [
            Check("loop", is_good=True, detail=f"at most {instance.lag.seconds * 1000:.1f} ms late in the last 15 s")
        ]

    def started() -> list[Check]:
        return [Check("started", is_good=instance.is_ready or instance.stopping.is_set())]

    def ready() -> list[Check]:
        drain = instance.drain
        drain.probed()
        left = drain.sentence if drain.has_begun else ""
        return [
            Check("ready", is_good=instance.is_ready),
            Check("not stopping", is_good=not instance.stopping.is_set(), detail=left),
            *(Check(name, is_good=False, detail=problem) for name, problem in vital_problems(instance).items()),
            *(Check(name, is_good=not one, detail=one, is_vital=False) for name, one in _parts(instance).items()),
        ]

    return {"/livez": live, "/startupz": started, "/readyz": ready, "/healthz": ready}


def _parts(instance: Running) -> dict[str, str]:
    """
    The parts that may fail while the instance works on, by name, each with its problem; "" for none.

    Stores, the roles of databases with a partner, the journal, files that are watched, and tasks that have died lately.
    """
    stores = {
        f"store of {name}": store_problem(endpoint) or _lock_problem(endpoint.write_waits.present)
        for name, endpoint in instance.endpoints.items()
    }
    state_dir = instance.settings.instance.state_dir
    lost = {f"file of {name}": replaced_in(endpoint.path, state_dir) for name, endpoint in instance.endpoints.items()}
    lost = {name: problem for name, problem in lost.items() if problem}
    standings = instance.standings().items()
    roles = {f"role of {name}": one.problem for name, one in standings if one.source != "off"}
    journal = {} if instance.journal is None else {"journal": str(instance.journal.status()["problem"])}
    files = {**certificate_part(instance.certificates), **reload_part(instance.reloads)}
    tasks = {f"task {name}": problem for name, problem in instance.supervision.problems.items() if problem}
    return stores | lost | roles | files | journal | tasks


def _lock_problem(wait: LockWait | None) -> str:
    """The process that keeps the store from storing for more than two seconds, and for how long; "" without one."""
    if wait is None:
        return ""
    return f"{wait.holder or 'another process'} has kept a write transaction open for {wait.seconds:,.0f} s"


async def _answer(checks: Checks, request: web.Request) -> web.Response:
    excluded = request.query.getall("exclude", [])
    all_of_them = checks()
    found = [check for check in all_of_them if not {check.name, check.key} & {*excluded}]
    is_good = all(check.is_good for check in found if check.is_vital)
    known = {name for check in all_of_them for name in (check.name, check.key)}
    unknown = [name for name in dict.fromkeys(excluded) if name not in known]
    return _text(found, request, is_good=is_good, unknown=unknown)


async def _answer_one(checks: Checks, request: web.Request) -> web.Response:
    """One check alone: no when it is bad, whether or not the answer as a whole would be."""
    name = request.match_info["name"]
    found = [check for check in checks() if name in (check.name, check.key)]
    if not found:
        raise web.HTTPNotFound
    return _text(found, request, is_good=all(check.is_good for check in found))


def _text(found: Iterable[Check], request: web.Request, *, is_good: bool, unknown: Iterable[str] = ()) -> web.Response:
    word = "ok" if is_good else "failed"
    lines = [word]
    if "verbose" in request.query:
        told = found if _is_here(request) else map(_withheld, found)
        warnings = [f"[!] exclude: no check here has the name {name!a}" for name in unknown]
        lines = [*map(str, told), *warnings, word]
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(text="\n".join(lines) + "\n", status=200 if is_good else 503, headers=headers)


def _withheld(check: Check) -> Check:
    return replace(check, detail=WITHHELD) if check.detail and not check.is_good else check


def _is_here(request: web.Request) -> bool:
    """Whether the client is on this machine, and not a proxy for another."""
    name = host_name(request.headers.get("Host"))
    is_behind = any(field in request.headers for field in FORWARDED)
    return not is_behind and is_loopback(request.remote or "") and (name in {"", "localhost"} or is_ip(name))


class Scrapes:
    """
    The texts of `/metrics`, shared by concurrent scrapes. Loop-only.

    A text of many series takes a while to render, in a thread, after the data of the loop were copied on the loop. So
    one is made at a time. A scrape that arrives during that waits for the next one, which is newer than it, and all
    that wait get the same text. However many arrive at once, the work is that of two.

    Args:
        instance: The source of the metrics.
        executor: Makes them; has one thread, because what is remembered from text to text is touched by it alone.
    """

    def __init__(self, instance: Running, executor: Executor) -> None:
        self._instance = instance
        self._executor = executor
        self._exposition = Exposition()
        self._making = asyncio.Lock()
        self._waiting: dict[str, asyncio.Task[tuple[bytes, str]]] = {}

    async def text(self, accept: str) -> tuple[bytes, str]:
        """
        A text that is as of now or later, and its content type.

        Args:
            accept: The header field of the request; decides between Prometheus text and OpenMetrics.
        """
        _, form = choose_encoder(accept)
        making = self._waiting.get(form)
        if making is None:
            making = asyncio.get_running_loop().create_task(self._make(form, accept), name="scrape")
            self._waiting[form] = making
        return await asyncio.shield(making)  # a client that goes away leaves the others their text

    async def _make(self, form: str, accept: str) -> tuple[bytes, str]:
        async with self._making:
            del self._waiting[form]  # requests from now on get the next one
            snapshot = await read_snapshot_in_steps(self._instance, SECTIONS)
            render = partial(self._exposition.render, snapshot, accept)
            return await asyncio.get_running_loop().run_in_executor(self._executor, render)
