"""The operations on a running instance: what they answer, what they change, what they refuse."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from broker import begin_dialog
from broker.admin.api import (
    Api,
    DrainQuestion,
    LeftOut,
    Nothing,
    QuestionThreads,
    ReloadRequest,
    SqlRequest,
    ViewRequest,
)
from broker.admin.audit import Audit
from broker.admin.auth import Caller
from broker.config.admin_access import AdminRole
from broker.config.settings import DrainSettings
from broker.daemon.instance import Instance
from broker.errors import BrokerError, DuplicateNameError, RequestError, StatementError, UnknownNameError
from broker.flow import Disposition
from broker.net.drain import Drain, DrainRemainder
from broker.observe.database_stats import CensusRequest
from broker.observe.explain import ExplainRequest
from broker.observe.why import WhyRequest
from broker.protocol.layout import show_guid
from broker.routing.lint import Lint
from tests.support import admin
from tests.support.loopback import until
from tests.unit.admin.conftest import CONFIGURATION, Ask

PLAIN_TEXT = "endpoint.encryption"  # of which every instance of these tests is warned
OWNER = Caller("user:root", "socket", AdminRole.ADMIN)


@pytest.fixture
async def api(instance: Instance) -> AsyncIterator[Api]:
    with ThreadPoolExecutor(1) as executor:
        yield Api(instance, QuestionThreads(executor, 1), executor, Audit(instance.settings.admin.audit, executor))


async def test_script_of_several_databases_is_in_force_at_once_or_changes_nothing(api: Api, instance: Instance) -> None:
    """Without a name it is for the only database."""
    script = "CREATE QUEUE Q; CREATE SERVICE [//a] ON QUEUE Q\nGO\nUSE msdb\nCREATE ROUTE far WITH ADDRESS = 'tcp://far:4022'"

    answer = await api.sql(SqlRequest(script), OWNER)
    with pytest.raises(DuplicateNameError):
        await api.sql(SqlRequest("CREATE QUEUE R; CREATE QUEUE R", "ORDERS"), OWNER)

    routes = instance.forwarder.routing_context.table.routes(None)
    assert ["queue Q created", "service //a created", "route far created"] == answer.messages
    assert ["AutoCreatedLocal", "far"] == [route.name for route in routes]
    assert {"Q"} == set(instance.catalog.databases["orders"].rows.queues) & {"Q", "R"}
    for statement in ("CREATE QUEUE Q", "SELECT name FROM sys.routes"):
        with pytest.raises(UnknownNameError, match="database 'nope'"):
            await api.sql(SqlRequest(statement, "nope"), OWNER)


async def test_the_first_rule_of_a_permission_says_that_all_others_are_shut_out(api: Api) -> None:
    """And the last one that goes, that all are let in."""
    rule = "SEND ON SERVICE::[//a] TO [public]"

    told = [(await api.sql(SqlRequest(f"{word} {rule}", "msdb"), OWNER)).messages[1:] for word in ("DENY", "REVOKE")]

    shut_out = "warning: msdb: all had SEND; from now on what no GRANT SEND TO [public] permits is refused"
    assert [
        [f"{shut_out}, acknowledgements and answers too"],
        ["warning: msdb: there is no GRANT SEND, and from now on all have it"],
    ] == told


# --- views ---


async def test_pages_of_a_view_follow_each_other(api: Api) -> None:
    script = ";".join(f"CREATE ROUTE r{number} WITH ADDRESS = 'tcp://h{number}:1'" for number in range(4))
    await api.sql(SqlRequest(script), OWNER)  # and AutoCreatedLocal

    first = await api.view(ViewRequest("sys.routes", limit=2), OWNER)
    second = await api.view(ViewRequest("orders.sys.routes", limit=2, after=first.after or 0), OWNER)
    third = await api.view(ViewRequest("ORDERS.SYS.ROUTES", limit=2, after=second.after or 0), OWNER)

    names = [row[0] for page in (first, second, third) for row in page.rows]
    assert ["AutoCreatedLocal", "r0", "r1", "r2", "r3"] == names
    assert (2, 4, None) == (first.after, second.after, third.after)


async def test_unknown_view_is_told_without_a_text_that_nobody_wrote(api: Api) -> None:
    for name in ("sys.routez", "nope.sys.routes", "routes", "sys.routes; DROP", "", "a]b.sys.routes"):
        with pytest.raises(UnknownNameError) as caught:
            await api.view(ViewRequest(name), OWNER)
        assert (208, None) == (caught.value.number, caught.value.span)


# --- explain ---


async def test_a_conversation_that_lives_here_is_found_in_its_file(api: Api, instance: Instance) -> None:
    await api.sql(SqlRequest("CREATE QUEUE Q; CREATE SERVICE [//a] ON QUEUE Q"), OWNER)
    with closing(sqlite3.connect(instance.settings.databases["orders"].path)) as db, db:
        dialog = begin_dialog(db, from_service="//a", to_service="//b")

    answer = await api.explain(ExplainRequest(conversation=dialog.conversation_handle), OWNER)

    told = answer.explanation
    assert ("//b", show_guid(dialog.conversation_id)) == (told.to_service, told.conversation_id)
    with pytest.raises(UnknownNameError, match="no database here has the conversation"):
        await api.explain(ExplainRequest(conversation=uuid4()), OWNER)


# --- why, retry and census ---


async def test_what_waits_is_sent_again_now_and_that_is_written_down(instance: Instance, ask: Any) -> None:
    await ask("POST", "/v1/sql", {"statement": "CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q"})
    with closing(sqlite3.connect(instance.settings.databases["orders"].path)) as db, db:
        handles = [begin_dialog(db, from_service="S", to_service="//nowhere") for _ in range(2)]
        for dialog in handles:
            dialog.send(b"x")
    transmitter = instance.endpoints["orders"].transmitter
    await until(lambda: len(transmitter.senders) == 2)

    one = await ask("POST", "/v1/retry", {"id": str(handles[0].conversation_handle)})
    both = await ask("POST", "/v1/retry", {})
    unknown = await ask("POST", "/v1/retry", {"id": str(uuid4())})

    assert [(200, {"dialogs": 1}), (200, {"dialogs": 2})] == [one, both]
    assert (404, 8426) == (unknown[0], unknown[1]["number"])
    lines = admin.audit_lines(instance.settings.admin.audit)
    assert [show_guid(handles[0].conversation_handle), "instance"] == [
        line["target"] for line in lines if line["operation"] == "POST /v1/retry"
    ]


async def test_a_conversation_is_told_with_everything_that_is_known(api: Api, instance: Instance) -> None:
    await api.sql(SqlRequest("CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q"), OWNER)
    instance.forwarder.dropped[Disposition.NO_ROUTE] += 2
    instance.endpoints["orders"].dropped[Disposition.DUPLICATE] += 3
    with closing(sqlite3.connect(instance.endpoints["orders"].path)) as db, db:
        dialog = begin_dialog(db, from_service="S", to_service="//nowhere")
        dialog.send("x")
        dialog.end(error=9, description="card 4111")

    answer = await api.why(WhyRequest(dialog.conversation_handle), OWNER)
    viewed = [
        (await api.why(WhyRequest(dialog.conversation_handle), replace(OWNER, role=role))).sides[0]
        for role in (AdminRole.VIEWER, AdminRole.OPERATOR)
    ]

    assert (["orders"], True) == ([side.database for side in answer.sides], answer.is_running)
    assert answer.findings[0].symptom.startswith("2 messages from S to //nowhere wait in orders")
    assert {"no route": 2, "duplicate": 3} == answer.dropped
    assert (9, "card 4111") == (answer.sides[0].sent_error_code, answer.sides[0].sent_error_text)
    assert [(9, "")] * 2 == [(side.sent_error_code, side.sent_error_text) for side in viewed]
    assert ["orders"] == [one.database for one in (await api.census(CensusRequest("ORDERS"), OWNER)).databases]


# --- status and check ---


async def test_status_tells_of_files_disk_and_audit(
    api: Api, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await api.status(Nothing(), OWNER)
    disk = os.statvfs_result((4096, 4096, 1 << 20, 4, 4, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    instance.settings.admin.audit.unlink(missing_ok=True)
    instance.settings.admin.audit.mkdir()

    status = await api.status(Nothing(), OWNER)

    orders = before.databases["orders"]
    assert orders.ledger is not None
    assert (0, 0, [], []) == (orders.waiting_messages, orders.ledger.unaccounted, orders.queues, before.drops)
    assert status.verdict is not None
    [finding] = [one for one in status.verdict.findings if one.about == "audit"]
    assert ("", "", "bad") == (before.room_problem, before.audit_problem, finding.level)
    assert "has 16 KiB left" in status.room_problem
    assert "Is a directory; nothing is changed as long as no change can be written down" in finding.what


async def test_of_one_kind_of_finding_1000_are_told_and_the_others_counted(api: Api, instance: Instance) -> None:
    good = await api.check(Nothing(), OWNER)  # although its ports are taken
    path = instance.settings.databases["orders"].path.with_suffix(".sql")
    orders = instance.settings.databases["orders"].replace(scripts=(str(path),))
    instance.settings = instance.settings.replace(databases={"orders": orders})
    path.write_text("".join(f"CREATE ROUTE r{n} WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://x';\n" for n in range(1003)))

    answer = await api.check(Nothing(), OWNER)

    found = [one for one in answer.warnings if one.key not in {PLAIN_TEXT, Lint.NOT_IN_FORCE}]
    assert (True, [], [PLAIN_TEXT]) == (good.ok, good.problems, [one.key for one in good.warnings])
    assert (True, [], 1000) == (answer.ok, answer.problems, len(found))
    assert ("duplicate-route", str(path), 2, 14) == (found[0].key, found[0].file, found[0].line, found[0].column)
    assert [LeftOut("duplicate-route", str(path), 2)] == answer.left_out


# --- mirrors ---


@pytest.fixture
async def mirror(instance: Instance) -> Instance:
    """The only database is a mirror here."""
    instance.databases.refuse("orders", None)
    await instance.databases.close("orders")
    return instance


@pytest.mark.usefixtures("mirror")
async def test_a_mirror_is_asked_nothing_and_told_nothing(api: Api) -> None:
    for statement, name in (
        ("SELECT name FROM sys.services", "orders"),
        ("CREATE QUEUE [Q]", "ORDERS"),
        ("SELECT * FROM orders.sys.routes", "msdb"),
        ("SELECT * FROM Orders.dbo.Inbox", "msdb"),
    ):
        with pytest.raises(StatementError, match="is a mirror here") as caught:
            await api.sql(SqlRequest(statement, name), OWNER)
        assert 954 == caught.value.number
    looked_in = (await api.why(WhyRequest(uuid4()), OWNER)).looked_in
    assert "not in database orders: this database is a mirror here; ask its partner" in looked_in


# --- draining ---


OPERATOR = Caller("user:anna", "process 1", AdminRole.OPERATOR)


class Leaver:
    """Has one message left until it is told to leave."""

    def __init__(self) -> None:
        self.has_left = False

    def on_drain(self) -> None:
        pass

    async def leave(self, seconds: float) -> None:
        self.has_left = True

    async def remainder(self) -> DrainRemainder:
        return DrainRemainder() if self.has_left else DrainRemainder(held=1, unserved=1, by_hop={"tcp://north:4022": 1})


@pytest.fixture
async def drained(tmp_path: Path) -> AsyncIterator[Api]:
    """The API of something that only drains."""
    drain = Drain(Leaver(), lambda: DrainSettings(announce=0.0, timeout=1.0))
    with ThreadPoolExecutor(1) as executor:
        instance: Any = SimpleNamespace(drain=drain)
        yield Api(instance, QuestionThreads(executor, 1), executor, Audit(tmp_path / "audit", executor))


async def test_drain_that_cannot_be_written_down_does_not_begin_and_is_written_down_once(
    drained: Api, tmp_path: Path
) -> None:
    (tmp_path / "audit").mkdir()
    with pytest.raises(BrokerError):
        await drained.drain(Nothing(), OPERATOR)
    assert "serving" == (await drained.draining(DrainQuestion(), OPERATOR)).stage

    (tmp_path / "audit").rmdir()
    await drained.drain(Nothing(), OPERATOR)
    answer = await drained.drain(Nothing(), OPERATOR)
    await drained._instance.drain.end("over")

    assert "asked for by user:anna" == answer.reason
    assert 1 == len((tmp_path / "audit").read_text().splitlines())


async def test_follower_is_answered_at_the_next_change_with_what_would_have_to_leave(drained: Api) -> None:
    before = await drained.draining(DrainQuestion(), OPERATOR)
    following = asyncio.ensure_future(drained.draining(DrainQuestion(since=0), OPERATOR))
    await asyncio.sleep(0)
    assert not following.done()

    await drained._instance.drain.end("SIGTERM")

    assert ("serving", 1, 1, {"tcp://north:4022": 1}) == (before.stage, before.held, before.unserved, before.by_hop)
    assert 0 < (await following).changes


# --- reloading ---


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_the_answer_tells_each_setting_and_what_became_of_it(
    ask: Ask, configuration: Path, instance: Instance
) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 3\nfragment_size = '32KiB'\n")

    status, answer = await ask("POST", "/v1/reload", {})

    told = {(one["key"], one["effect"], one["before"], one["after"]) for one in answer["settings"]}
    assert (200, True, ["dialog.fragment_size"]) == (status, answer["changed"], answer["waiting"])
    restart = ("dialog.fragment_size", "restart", '"64KiB"', '"32KiB"')
    assert {("dialog.window", "live", "1024", "3"), restart} == told
    assert 3 == instance.settings.dialog.window
    [line] = admin.audit_lines(instance.settings.admin.audit)
    assert ("configuration: dialog.window", "done") == (line["target"], line["outcome"])


async def test_a_wrong_configuration_is_a_problem_with_every_place(ask: Ask, configuration: Path) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 0\nhop_limit = 0\n")

    status, problem = await ask("POST", "/v1/reload", {})

    lines = CONFIGURATION.count("\n")
    assert (422, "urn:broker:problem:configuration", 0) == (status, problem["type"], problem["more_errors"])
    assert [("dialog.window", lines + 2, 10), ("dialog.hop_limit", lines + 3, 13)] == [
        (one["key"], one["line"], one["column"]) for one in problem["errors"][:-1]
    ]
    assert all(str(configuration) in one["text"] and one["hint"] for one in problem["errors"][:-1])
    assert "scripts: were not checked; correct the settings first" == problem["errors"][-1]["text"]


async def test_a_reload_that_failed_is_shown_until_one_succeeds(
    ask: Ask, configuration: Path, instance: Instance
) -> None:
    write(configuration, "[endpoint\n")
    await ask("POST", "/v1/reload", {})
    _, failed = await ask("GET", "/v1/status")
    assert instance.admin.observe_address is not None
    metrics, health = [
        await admin.ask(instance.admin.observe_address, "GET", path) for path in ("/metrics", "/readyz?verbose")
    ]
    write(configuration, CONFIGURATION)
    await ask("POST", "/v1/reload", {})
    _, good = await ask("GET", "/v1/status")

    told = [
        (one["reload"]["successful"], bool(one["reload"]["problem"]), one["reload"]["failed"]) for one in (failed, good)
    ]
    assert [(False, True, 1), (True, False, 1)] == told
    assert b"broker_config_last_reload_successful 0.0" in metrics.body
    assert b'broker_config_reloads_total{result="failed"} 1.0' in metrics.body
    assert (200, True) == (health.status, b"[!] configuration: not reloaded" in health.body)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[admin.roles]\n'user:1' = 'admin'\n", r"a reload that changes admin\.roles"),
        ("[routes]\nfiles = ['grant.sql']\n", "GRANT CONNECT"),
    ],
)
async def test_trust_and_permissions_take_an_admin(
    api: Api, configuration: Path, instance: Instance, text: str, what: str
) -> None:
    write(configuration.parent / "grant.sql", "GRANT CONNECT ON ENDPOINT::[*] TO [CN=a];")
    write(configuration, CONFIGURATION + text)

    with pytest.raises(RequestError, match=f"^{what} takes the role admin"):
        await api.reload(ReloadRequest(), OPERATOR)

    assert (True, {}) == (instance.reloads.is_successful, dict(instance.settings.admin.roles))
    assert () == tuple(instance.catalog.msdb.rows.permissions)


async def test_a_reload_by_signal_is_written_down_as_one(configuration: Path, instance: Instance) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 3\n")

    await instance.reloads.reload(instance.admin.signalled())

    [line] = admin.audit_lines(instance.settings.admin.audit)
    assert ("signal SIGHUP", "SIGHUP") == (line["who"], line["operation"])


# --- threads for questions ---


@pytest.mark.parametrize(
    ("role", "threads", "taken", "other"),
    [
        (AdminRole.VIEWER, 3, 1, AdminRole.OPERATOR),
        (AdminRole.VIEWER, 3, 1, AdminRole.ADMIN),
        (AdminRole.OPERATOR, 3, 2, AdminRole.ADMIN),
    ],
)
async def test_each_role_leaves_a_thread_to_those_above_it(
    role: AdminRole, threads: int, taken: int, other: AdminRole
) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def long() -> str:
        begun.release()
        assert gate.wait(20)
        return "long"

    with ThreadPoolExecutor(threads) as executor:
        questions = QuestionThreads(executor, threads)
        crowd = [asyncio.create_task(questions.run(replace(OWNER, role=role), long)) for _ in range(10)]
        for _ in range(taken):
            assert await asyncio.to_thread(begun.acquire, timeout=20)
        crowd.pop().cancel()  # one that has gone gives its place in the queue back
        answered = await questions.run(replace(OWNER, role=other), lambda: "short")
        has_more_begun = begun.acquire(blocking=False)
        gate.set()

        assert ("short", False) == (answered, has_more_begun)
        assert ["long"] * 9 == await asyncio.gather(*crowd)
