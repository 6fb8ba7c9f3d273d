"""The admin API over HTTP: bodies, refusals, who may come, and the files of the status page."""

import asyncio
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from structlog.testing import capture_logs

from broker.admin import app
from broker.admin.app import LARGE_BODIES, STATIC
from broker.admin.auth import origin_of
from broker.admin.operations import BODY_MAX_BYTES, OPERATIONS
from broker.admin.problems import answer_problems
from broker.daemon.instance import Instance
from tests.support.admin import Answer, ask, read_answer, request, speak
from tests.unit.admin.conftest import Ask

# Requests that are answered, and those that are refused.
ANSWERS: list[tuple[str, str, object, int]] = [
    ("POST", "/v1/sql", {"statement": "CREATE QUEUE Q", "database": None}, 200),
    ("POST", "/v1/sql", {"statement": "SELECT name FROM sys.service_queues"}, 200),
    ("GET", "/v1/views/msdb.sys.routes?limit=1&after=0", None, 200),
    ("GET", "/v1/openapi.json", None, 200),
    ("POST", "/v1/sql", {"statement": "CREATE QEUE Q"}, 400),
    ("POST", "/v1/sql", {"statement": "CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'"}, 409),
    ("POST", "/v1/sql", {"statement": "DELETE FROM sys.routes"}, 400),
    ("POST", "/v1/sql", {"statment": "x"}, 400),
    ("POST", "/v1/sql", b"{", 400),
    ("POST", "/v1/sql", b"[" * 100_000, 400),
    ("GET", "/v1/views/sys.nothing", None, 404),
    ("GET", "/v1/views/sys.routes?limit=0", None, 400),
    ("GET", "/v1/views/sys.routes?after=-1", None, 400),
    ("GET", "/v1/views/sys.routes?limit=1&limit=2", None, 400),
    ("GET", "/v1/status?unknown=1", None, 400),
    ("GET", "/page", None, 403),
    ("POST", "/", None, 405),
    ("GET", "/v1/drain?since=-2", None, 400),
]


async def test_request_is_answered_or_refused_as_a_problem_with_its_status(ask: Ask) -> None:
    answers = [await ask(method, target, body) for method, target, body, _ in ANSWERS]

    assert ANSWERS == [(*one[:3], status) for one, (status, _) in zip(ANSWERS, answers, strict=True)]
    problems = [(status, answer) for status, answer in answers if status != 200]
    assert [status for status, _ in problems] == [answer["status"] for _, answer in problems]
    assert all({"type", "title", "detail"} <= answer.keys() for _, answer in problems)
    assert {"columns": ["name"], "rows": [["Q"]], "messages": [], "truncated": False} == answers[1][1]
    assert ("AutoCreatedLocal", None) == (answers[2][1]["rows"][0][0], answers[2][1]["after"])
    assert {operation.path for operation in OPERATIONS} == answers[3][1]["paths"].keys()


async def test_body_above_the_bound_or_cut_wrongly_is_refused(instance: Instance) -> None:
    chunked = {"Transfer-Encoding": "chunked"}
    parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*[b"x" * 1000] * 1100, b""))
    by_length = await speak_to_socket(instance, request("POST", "/v1/sql", {"Content-Length": str(10**15)}))
    without = await speak_to_socket(instance, request("POST", "/v1/check", chunked) + parts)
    cut = await speak_to_socket(instance, request("POST", "/v1/sql", chunked) + b"zz\r\nab\r\n")

    assert [413, 413, 400] == [answer.status for answer in (by_length, without, cut)]
    sentence = "a request has at most 160 MiB; name a larger script in the configuration"
    assert by_length.told["detail"].startswith(sentence)


async def test_a_body_that_does_not_come_is_given_up(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)

    answer = await speak_to_socket(instance, request("POST", "/v1/sql", {"Content-Length": "10"}) + b"ab")

    assert (408, 408) == (answer.status, answer.told["status"])


async def test_large_bodies_wait_for_each_other_and_small_ones_do_not(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many of 160 MiB are in memory at one time, whatever the number of connections."""
    monkeypatch.setattr(app, "BODY_SECONDS", 0.5)
    head = request("POST", "/v1/sql", {"Content-Length": str(2 * BODY_MAX_BYTES)}) + b"["
    small = request("POST", "/v1/sql", {}, {"statement": "SELECT 1 AS one"})

    crowd = [asyncio.create_task(speak_to_socket(instance, head)) for _ in range(LARGE_BODIES + 1)]
    await asyncio.sleep(0)
    answered = await speak_to_socket(instance, small)
    done = [task.done() for task in crowd]
    answers = [await task for task in crowd]

    assert (200, [False] * len(crowd)) == (answered.status, done)
    assert [408] * len(crowd) == [answer.status for answer in answers]


async def speak_to_socket(instance: Instance, data: bytes) -> Answer:
    return read_answer(await speak(instance.settings.admin.socket, data))


async def test_bug_is_logged_and_told_as_one(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("inside")

    monkeypatch.setattr("broker.admin.api.read_snapshot", broken)

    with capture_logs() as logs:
        status, problem = await ask("GET", "/v1/status")

    assert (status, problem["detail"]) == (500, "see the log of the instance")
    assert [(line["event"], line["path"]) for line in logs] == [("request failed", "/v1/status")]


async def test_a_client_that_has_gone_before_it_is_asked_after_is_no_failure() -> None:
    gone = make_mocked_request("GET", "/readyz", protocol=Mock(), writer=Mock(), transport=None)

    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=origin_of(request)[1])

    with capture_logs() as logs, pytest.raises(ConnectionResetError, match="gone"):
        await answer_problems(gone, handle)

    assert [] == logs


# As in the report of the pipeline: what would be fetched from elsewhere, or run though nobody wrote it here.
ELSEWHERE = re.compile(r"""(?:src|href|url|import|from|fetch)\s*[=(]?\s*["'(]\s*(?:https?:)?//""")
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|style=|javascript:", re.IGNORECASE)
MARKUP = re.compile(r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|eval\(|new Function|\.cssText")


def own_files() -> list[Path]:
    return [
        path
        for path in STATIC.iterdir()
        if path.suffix in {".html", ".css", ".js", ".svg"} and "uplot" not in path.name
    ]


def test_every_file_that_the_page_loads_is_served() -> None:
    wanted = set(re.findall(r'(?:src|href)="(/[^"]*)"', (STATIC / "index.html").read_text()))
    for path in own_files():
        if path.suffix == ".js":
            wanted |= {f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', path.read_text())}

    assert wanted | {"/page/index.html", "/page/uplot.LICENSE"} == {f"/page/{path.name}" for path in STATIC.iterdir()}


@pytest.mark.parametrize("path", own_files(), ids=lambda path: path.name)
def test_a_file_of_the_page_asks_nobody_else_and_makes_no_markup(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")

    assert [] == ELSEWHERE.findall(text)
    assert [] == INLINE.findall(text)
    assert [] == MARKUP.findall(text)


async def test_a_file_has_its_type_and_its_policy_and_is_not_sent_twice(instance: Instance) -> None:
    address = instance.admin.admin_address
    assert address is not None
    kinds = {"/": "/html", "/page/main.js": "/javascript", "/page/page.css": "/css", "/page/icon.svg": "/svg+xml"}

    for path, kind in kinds.items():
        answer = await ask(address, "GET", path)
        assert (200, True) == (answer.status, answer.headers["content-type"].endswith(kind))
        policy = answer.headers["content-security-policy"]
        assert ("default-src 'none'" in policy, "unsafe" in policy) == (True, False)
        names = ("x-content-type-options", "x-frame-options", "cache-control")
        assert ["nosniff", "DENY", "no-cache"] == [answer.headers[name] for name in names]
        again = await ask(address, "GET", path, headers={"If-None-Match": answer.headers["etag"]})
        assert (304, b"") == (again.status, again.body)


SITE = {"Sec-Fetch-Site": "cross-site"}
LINK = SITE | {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
PAGE: list[tuple[str, str, dict[str, str], int]] = [
    ("HEAD", "/", {}, 200),
    ("POST", "/", {}, 405),
    ("GET", "/page/", {}, 400),
    ("GET", "/page/absent.js", {}, 404),
    ("GET", "/page/%2e%2e/server.py", {}, 400),
    ("GET", "/", {"Host": "evil.example"}, 403),
    ("GET", "/", {"Origin": "http://evil.example"}, 403),
    ("GET", "/", LINK | {"Sec-Fetch-Dest": "iframe"}, 403),
    ("GET", "/", LINK, 200),
    ("GET", "/v1/status", LINK, 403),
]


async def test_who_may_come_to_the_page(instance: Instance) -> None:
    """A link of another site may lead to it; a script, a frame or another name of this machine may not."""
    address = instance.admin.admin_address
    assert address is not None

    answers = [await ask(address, method, path, headers=headers) for method, path, headers, _ in PAGE]

    assert PAGE == [(*one[:3], answer.status) for one, answer in zip(PAGE, answers, strict=True)]
