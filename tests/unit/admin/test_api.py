"""The operations on a running instance: what they answer, what they change, what they refuse."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import aiohttp
import msgspec
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
    config_answer,
)
from broker.admin.audit import Audit
from broker.admin.auth import Caller
from broker.config.admin_access import AdminRole
from broker.config.load import in_force, load_settings
from broker.daemon.instance import Instance
from broker.errors import (
    BrokerError,
    DuplicateNameError,
    RequestError,
    StatementError,
    StoreUnavailableError,
    UnknownNameError,
)
from broker.flow import Disposition
from broker.net.drain import Drain, DrainBounds, DrainRemainder
from broker.observe.database_stats import CensusRequest
from broker.observe.explain import ExplainRequest
from broker.observe.health import judge
from broker.observe.why import WhyRequest
from broker.store.sqlite import metadata
from tests.unit.admin.conftest import CONFIGURATION, Ask

PLAIN_TEXT = "endpoint.encryption"  # of which every instance of these tests is warned
OWNER = Caller("user:root", "socket", AdminRole.ADMIN)


@pytest.fixture
async def api(instance: Instance) -> AsyncIterator[Api]:
    executor = ThreadPoolExecutor(1)
    admin = instance.settings.admin
    yield Api(
        instance,
        QuestionThreads(executor, 1),
        executor,
        Audit(admin.audit, executor),
    )
    executor.shutdown()


async def test_statement_is_carried_out_in_the_only_database(api: Api, instance: Instance) -> None:
    answer = await api.sql(SqlRequest("CREATE QUEUE [Q]"), OWNER)

    assert answer.messages == ["queue Q created"]
    assert "Q" in instance.catalog.databases["orders"].rows.queues


async def test_script_of_several_statements_and_databases(api: Api, instance: Instance) -> None:
    script = """
        CREATE QUEUE Q; CREATE SERVICE [//a] ON QUEUE Q
        GO
        USE msdb
        CREATE ROUTE far WITH ADDRESS = 'tcp://far:4022';
    """

    answer = await api.sql(SqlRequest(script), OWNER)

    assert answer.messages == ["queue Q created", "service //a created", "route far created"]
    assert "far" in {route.name for route in instance.catalog.msdb.table}


async def test_new_route_holds_from_the_next_frame_on(api: Api, instance: Instance) -> None:
    before = instance.forwarder.generation

    await api.sql(SqlRequest("CREATE ROUTE far WITH ADDRESS = 'tcp://far:4022'", "msdb"), OWNER)

    assert instance.forwarder.generation > before
    assert [route.name for route in instance.forwarder.routing_context.table.routes(None)] == [
        "AutoCreatedLocal",
        "far",
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT name FROM sys.routes",
        "  select name from sys.routes;",
        "-- which?\n/* all\nof them */ SELECT name FROM sys.routes",
        "WITH r AS (SELECT name FROM sys.routes) SELECT name FROM r",
    ],
)
async def test_question_is_answered_with_rows(api: Api, statement: str) -> None:
    answer = await api.sql(SqlRequest(statement), OWNER)

    assert (answer.columns, answer.rows, answer.messages) == (["name"], [["AutoCreatedLocal"]], [])


async def test_database_may_be_spelt_in_any_case(api: Api) -> None:
    answer = await api.sql(SqlRequest("CREATE QUEUE Q", "ORDERS"), OWNER)

    assert answer.messages == ["queue Q created"]


@pytest.mark.parametrize("statement", ["CREATE QUEUE Q", "SELECT name FROM sys.routes"])
async def test_unknown_database_is_told(api: Api, statement: str) -> None:
    with pytest.raises(UnknownNameError, match="database 'nope'"):
        await api.sql(SqlRequest(statement, "nope"), OWNER)


async def test_mistake_changes_nothing(api: Api, instance: Instance) -> None:
    with pytest.raises(DuplicateNameError):
        await api.sql(SqlRequest("CREATE QUEUE Q; CREATE QUEUE Q"), OWNER)

    assert "Q" not in instance.catalog.databases["orders"].rows.queues


@pytest.mark.parametrize(("databases", "expected"), [(["orders"], "orders"), (["a", "b"], "msdb"), ([], "msdb")])
async def test_default_database_is_the_only_one(
    api: Api, instance: Instance, monkeypatch: pytest.MonkeyPatch, databases: list[str], expected: str
) -> None:
    known = instance.catalog.databases
    monkeypatch.setattr(
        instance.catalog, "databases", {"msdb": known["msdb"]} | dict.fromkeys(databases, known["orders"])
    )

    assert api._database(None) == expected


# --- views ---


async def _routes(api: Api, count: int) -> None:
    script = ";".join(f"CREATE ROUTE r{number} WITH ADDRESS = 'tcp://h{number}:1'" for number in range(count))
    await api.sql(SqlRequest(script), OWNER)


async def test_pages_of_a_view_follow_each_other(api: Api) -> None:
    await _routes(api, 4)  # and AutoCreatedLocal

    first = await api.view(ViewRequest("sys.routes", limit=2), OWNER)
    second = await api.view(ViewRequest("sys.routes", limit=2, after=first.after or 0), OWNER)
    third = await api.view(ViewRequest("sys.routes", limit=2, after=second.after or 0), OWNER)

    names = [row[0] for page in (first, second, third) for row in page.rows]
    assert names == ["AutoCreatedLocal", "r0", "r1", "r2", "r3"]
    assert (first.after, second.after, third.after) == (2, 4, None)


@pytest.mark.parametrize("name", ["msdb.sys.routes", "MSDB.SYS.ROUTES", "orders.sys.routes", "sys.routes"])
async def test_view_may_name_its_database(api: Api, name: str) -> None:
    page = await api.view(ViewRequest(name), OWNER)

    assert page.columns[:2] == ["name", "route_id"]


@pytest.mark.parametrize(
    "name", ["sys.routez", "nope.sys.routes", "routes", "dbo.Q", "sys.routes; DROP", "", "a]b.sys.routes"]
)
async def test_unknown_view_is_told_without_a_text_that_nobody_wrote(api: Api, name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        await api.view(ViewRequest(name), OWNER)

    assert caught.value.number == 208
    assert caught.value.span is None


# --- explain ---


async def test_why_is_answered_by_the_routes_that_hold_now(api: Api) -> None:
    await api.sql(SqlRequest("CREATE ROUTE far WITH SERVICE_NAME = '//b', ADDRESS = 'tcp://far:4022'"), OWNER)

    answer = await api.explain(ExplainRequest("//b"), OWNER)

    assert ("one", "far", "tcp://far:4022") == (
        answer.instance,
        answer.explanation.route,
        answer.explanation.next_hop,
    )


async def test_a_conversation_that_lives_here_is_found_in_its_file(api: Api, instance: Instance) -> None:
    await api.sql(SqlRequest("CREATE QUEUE Q; CREATE SERVICE [//a] ON QUEUE Q"), OWNER)
    with closing(sqlite3.connect(instance.settings.databases["orders"].path)) as db, db:
        dialog = begin_dialog(db, from_service="//a", to_service="//b")

    answer = await api.explain(ExplainRequest(conversation=dialog.conversation_handle), OWNER)

    assert ("//b", str(dialog.conversation_id)) == (answer.explanation.to_service, answer.explanation.conversation_id)


async def test_a_conversation_that_does_not_live_here_is_told(api: Api) -> None:
    with pytest.raises(UnknownNameError, match="no database here has the conversation"):
        await api.explain(ExplainRequest(conversation=uuid4()), OWNER)


# --- why and census ---


async def test_a_conversation_is_told_with_everything_that_is_known(api: Api, instance: Instance) -> None:
    await api.sql(SqlRequest("CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q"), OWNER)
    with closing(sqlite3.connect(instance.endpoints["orders"].path)) as db, db:
        dialog = begin_dialog(db, from_service="S", to_service="//nowhere")
        dialog.send("x")

    answer = await api.why(WhyRequest(dialog.conversation_handle), OWNER)

    assert (["orders"], True) == ([side.database for side in answer.sides], answer.is_running)
    assert answer.findings[0].symptom.startswith("1 message from S to //nowhere waits in orders")


@pytest.mark.parametrize(
    ("role", "text"), [(AdminRole.VIEWER, ""), (AdminRole.OPERATOR, ""), (AdminRole.ADMIN, "card 4111")]
)
async def test_text_of_an_error_is_for_admins(api: Api, instance: Instance, role: AdminRole, text: str) -> None:
    await api.sql(SqlRequest("CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q"), OWNER)
    with closing(sqlite3.connect(instance.endpoints["orders"].path)) as db, db:
        dialog = begin_dialog(db, from_service="S", to_service="//nowhere")
        dialog.send("x")
        dialog.end(error=9, description="card 4111")
    (side,) = (await api.why(WhyRequest(dialog.conversation_handle), replace(OWNER, role=role))).sides

    assert (9, text) == (side.sent_error_code, side.sent_error_text)


async def test_drops_of_the_gateway_and_of_its_databases_are_told(api: Api, instance: Instance) -> None:
    instance.forwarder.dropped[Disposition.NO_ROUTE] += 2
    instance.endpoints["orders"].dropped[Disposition.DUPLICATE] += 3

    assert {"no route": 2, "duplicate": 3} == (await api.why(WhyRequest(uuid4()), OWNER)).dropped


@pytest.mark.parametrize("name", [None, "ORDERS"])
async def test_databases_are_counted(api: Api, name: str | None) -> None:
    answer = await api.census(CensusRequest(name), OWNER)

    assert ["orders"] == [one.database for one in answer.databases]


# --- status and check ---


async def test_status_tells_what_waits_in_the_files(api: Api, instance: Instance) -> None:
    status = await api.status(Nothing(), OWNER)

    orders = status.databases["orders"]
    assert orders.ledger is not None
    assert (orders.waiting_messages, orders.ledger.unaccounted) == (0, 0)
    assert (orders.quarantined, orders.queues, status.drops) == (0, [], [])


async def test_status_tells_of_a_full_disk_before_anything_fails(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs_result((4096, 4096, 1 << 20, 4, 4, 9, 9, 9, 0, 255))
    before = await api.status(Nothing(), OWNER)

    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    status = await api.status(Nothing(), OWNER)

    assert "" == before.room_problem
    assert "has 16 KiB left" in status.room_problem


async def test_status_tells_that_no_change_can_be_written_down(api: Api, instance: Instance) -> None:
    before = await api.status(Nothing(), OWNER)

    instance.settings.admin.audit.unlink(missing_ok=True)
    instance.settings.admin.audit.mkdir()
    status = await api.status(Nothing(), OWNER)

    [finding] = [one for one in judge(status).findings if one.about == "audit"]
    assert ("", "bad") == (before.audit_problem, finding.level)
    assert "Is a directory; nothing is changed as long as no change can be written down" in finding.what


async def test_good_configuration_is_good_while_its_ports_are_taken(api: Api) -> None:
    answer = await api.check(Nothing(), OWNER)

    assert (True, [], [PLAIN_TEXT]) == (answer.ok, answer.problems, [one.key for one in answer.warnings])


async def test_file_that_went_bad_is_found(api: Api, instance: Instance) -> None:
    path = instance.settings.databases["orders"].path.with_suffix(".sql")
    orders = instance.settings.databases["orders"].replace(scripts=(str(path),))
    instance.settings = instance.settings.replace(databases={"orders": orders})
    path.write_text("CREATE QUEUE Q;\nCREATE QEUE R;\n")

    answer = await api.check(Nothing(), OWNER)

    assert not answer.ok
    finding = answer.problems[0]
    assert ("databases.orders.scripts[0]", str(path), 2, 8) == (finding.key, finding.file, finding.line, finding.column)
    assert re.match("error 102: incorrect syntax near 'QEUE'", finding.problem)


async def test_what_scripts_mean_is_a_warning_with_its_code(api: Api, instance: Instance) -> None:
    path = instance.settings.databases["orders"].path.with_suffix(".sql")
    orders = instance.settings.databases["orders"].replace(scripts=(str(path),))
    instance.settings = instance.settings.replace(databases={"orders": orders})
    path.write_text("CREATE ROUTE r WITH ADDRESS = 'tcp://x', WEIGHT = 2;\n")

    answer = await api.check(Nothing(), OWNER)

    assert (True, []) == (answer.ok, answer.problems)
    (finding,) = (one for one in answer.warnings if one.key != PLAIN_TEXT)
    assert ("weight-unused", str(path), 1, 14) == (finding.key, finding.file, finding.line, finding.column)
    assert "leave WEIGHT out" in finding.hint


async def test_of_one_kind_of_finding_the_first_1000_are_told_and_the_others_counted(
    api: Api, instance: Instance
) -> None:
    path = instance.settings.databases["orders"].path.with_suffix(".sql")
    orders = instance.settings.databases["orders"].replace(scripts=(str(path),))
    instance.settings = instance.settings.replace(databases={"orders": orders})
    path.write_text("".join(f"CREATE ROUTE r{n} WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://x';\n" for n in range(1003)))

    answer = await api.check(Nothing(), OWNER)

    assert 1000 == len([one for one in answer.warnings if one.key != PLAIN_TEXT])
    assert [LeftOut("duplicate-route", str(path), 2)] == answer.left_out


async def test_store_that_cannot_be_written_is_no_bug_of_the_caller(
    api: Api, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(metadata, "put_queue", fails)

    with pytest.raises(StoreUnavailableError, match="disk I/O error"):
        await api.sql(SqlRequest("CREATE QUEUE Q"), OWNER)


# --- mirrors ---


@pytest.fixture
async def mirror(instance: Instance) -> Instance:
    """The only database is a mirror here."""
    instance.databases.refuse("orders", None)
    await instance.databases.close("orders")
    return instance


@pytest.mark.usefixtures("mirror")
@pytest.mark.parametrize("statement", ["SELECT name FROM sys.services", "CREATE QUEUE [Q]"])
@pytest.mark.parametrize("name", ["orders", "ORDERS"])
async def test_a_mirror_is_asked_nothing_and_told_nothing(api: Api, statement: str, name: str) -> None:
    with pytest.raises(StatementError, match="is a mirror here") as caught:
        await api.sql(SqlRequest(statement, name), OWNER)

    assert 954 == caught.value.number


@pytest.mark.usefixtures("mirror")
@pytest.mark.parametrize("name", ["orders.sys.routes", "Orders.dbo.Inbox"])
async def test_a_mirror_is_asked_nothing_by_a_name_of_three_parts_either(api: Api, name: str) -> None:
    with pytest.raises(StatementError, match=r"is a mirror here: ask its principal") as caught:
        await api.sql(SqlRequest(f"SELECT * FROM {name}", "msdb"), OWNER)

    assert str(caught.value).startswith("Msg 954, Level 16, -:1:15\n")


@pytest.mark.usefixtures("mirror")
async def test_a_mirror_is_not_looked_into(api: Api) -> None:
    answer = await api.why(WhyRequest(uuid4()), OWNER)

    assert "not in database orders: this database is a mirror here; ask its partner" in answer.looked_in


# --- configuration ---


def test_every_key_is_told_with_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[endpoint]\nmax_hops = 4\n[databases.a]\npath = 'a.db'\nrole_command = ['x', 'secret']\n")
    path.write_text(path.read_text() + "mirroring = 'command'\n")
    settings = load_settings(path, environ={"BROKER_LOG_LEVEL": "debug"})

    told = {one["key"]: one for one in msgspec.json.decode(msgspec.json.encode(config_answer(settings)))["settings"]}

    assert [one.key for one in in_force(settings)] == list(told)
    assert (4, f"{path}:2:12", "live") == tuple(told["endpoint.max_hops"][one] for one in ("value", "origin", "reload"))
    assert ("debug", "BROKER_LOG_LEVEL") == (told["observe.log_level"]["value"], told["observe.log_level"]["origin"])
    assert ["x", "***"] == told["databases.a.role_command"]["value"]


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


async def test_request_drains_the_instance_and_is_written_down(instance: Instance, ask: Any) -> None:
    status, before = await ask("GET", "/v1/drain")
    assert (200, "serving", None, None) == (status, before["stage"], before["remaining_s"], before["clean"])

    status, answer = await ask("POST", "/v1/drain", {})
    async with asyncio.timeout(30):
        while answer["stage"] != "left":
            _, answer = await ask("GET", f"/v1/drain?since={answer['changes']}")

    assert (200, True, "drained") == (status, answer["clean"], answer["sentence"])
    assert instance.stopping.is_set()
    lines = instance.settings.admin.audit.read_text().splitlines()
    (line,) = [one for one in map(json.loads, lines) if one["operation"] == "POST /v1/drain"]
    assert ("instance", "done") == (line["target"], line["outcome"])


@pytest.fixture
async def drained(tmp_path: Path) -> AsyncIterator[Api]:
    """The API of something that only drains."""
    drain = Drain(Leaver(), lambda: DrainBounds(0.0, 1.0))
    with ThreadPoolExecutor(1) as executor:
        instance: Any = SimpleNamespace(drain=drain)
        yield Api(instance, QuestionThreads(executor, 1), executor, Audit(tmp_path / "audit", executor))


async def test_drain_that_cannot_be_written_down_does_not_begin(drained: Api, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()

    with pytest.raises(BrokerError):
        await drained.drain(Nothing(), OPERATOR)

    assert "serving" == (await drained.draining(DrainQuestion(), OPERATOR)).stage


async def test_second_request_changes_nothing(drained: Api, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{}", "missing required field `statement`"),
        (b'{"statment": "x"}', "unknown field `statment`"),
        (b'{"statement": 1}', "Expected `str`, got `int`"),
        (b"[]", "Expected `object`, got `array`"),
    ],
)
def test_request_that_is_none_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.json.decode(body, type=SqlRequest)


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "10001"}, {"after": "-1"}, {"after": "x"}, {"lmit": "1"}])
def test_page_outside_its_range_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "sys.routes", **query}, ViewRequest, strict=False)


# --- reloading ---


def write(path: Path, text: str) -> None:
    path.write_text(text)


def audited(instance: Instance) -> list[Mapping[str, Any]]:
    path = instance.settings.admin.audit
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_the_answer_tells_each_setting_and_what_became_of_it(
    ask: Ask, configuration: Path, instance: Instance
) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 3\nfragment_size = '32KiB'\n")

    status, answer = await ask("POST", "/v1/reload", {})

    told = {one["key"]: (one["effect"], one["before"], one["after"]) for one in answer["settings"]}
    assert (200, True, ["dialog.fragment_size"]) == (status, answer["changed"], answer["waiting"])
    assert {
        "dialog.window": ("live", "1024", "3"),
        "dialog.fragment_size": ("restart", '"64KiB"', '"32KiB"'),
    } == told
    assert 3 == instance.settings.dialog.window


async def test_what_changes_is_written_down_and_what_waits_is_not(
    ask: Ask, configuration: Path, instance: Instance
) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 3\nfragment_size = '32KiB'\n")

    await ask("POST", "/v1/reload", {})

    [line] = audited(instance)
    assert ("configuration: dialog.window", "done") == (line["target"], line["outcome"])


async def test_a_wrong_configuration_is_a_problem_with_every_place(ask: Ask, configuration: Path) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 0\nhop_limit = 0\n")

    status, problem = await ask("POST", "/v1/reload", {})

    lines = CONFIGURATION.count("\n")
    assert (422, "urn:broker:problem:configuration", 0) == (status, problem["type"], problem["more_errors"])
    assert [("dialog.window", lines + 2, 10), ("dialog.hop_limit", lines + 3, 13)] == [
        (one["key"], one["line"], one["column"]) for one in problem["errors"]
    ]
    assert all(str(configuration) in one["text"] and one["hint"] for one in problem["errors"])


async def test_a_reload_that_failed_is_shown_until_one_succeeds(ask: Ask, configuration: Path) -> None:
    write(configuration, "[endpoint\n")
    await ask("POST", "/v1/reload", {})
    _, failed = await ask("GET", "/v1/status")

    write(configuration, CONFIGURATION)
    await ask("POST", "/v1/reload", {})
    _, good = await ask("GET", "/v1/status")

    assert (False, True, 1) == (
        failed["reload"]["successful"],
        bool(failed["reload"]["problem"]),
        failed["reload"]["failed"],
    )
    assert (True, "", 1) == (good["reload"]["successful"], good["reload"]["problem"], good["reload"]["succeeded"])


async def test_metrics_and_health_tell_it_too_and_the_instance_stays_ready(
    ask: Ask, configuration: Path, instance: Instance
) -> None:
    write(configuration, "[endpoint\n")
    await ask("POST", "/v1/reload", {})

    async with aiohttp.ClientSession(f"http://{instance.admin.observe_address}") as session:
        metrics = await (await session.get("/metrics")).text()
        response = await session.get("/readyz?verbose")
        health = await response.text()

    assert "broker_config_last_reload_successful 0.0" in metrics
    assert 'broker_config_reloads_total{result="failed"} 1.0' in metrics
    assert (200, True) == (response.status, "[!] configuration: not reloaded" in health)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[admin.roles]\n'user:1' = 'admin'\n", "admin.roles"),
        ("[databases.orders]\npath = 'orders.db'\npeers = []\ncertificate = ''\n", ""),
    ],
)
async def test_what_decides_who_is_believed_takes_an_admin(
    api: Api, configuration: Path, instance: Instance, text: str, named: str
) -> None:
    base = (
        CONFIGURATION.replace('[databases.orders]\npath = "orders.db"\n', "") if "databases" in text else CONFIGURATION
    )
    write(configuration, base + text)
    reloading = api.reload(ReloadRequest(), OPERATOR)

    if named:
        with pytest.raises(RequestError, match=r"admin\.roles takes the role admin"):
            await reloading
        assert (True, {}) == (instance.reloads.is_successful, dict(instance.settings.admin.roles))
    else:
        assert not (await reloading).changed


async def test_an_operator_has_no_permission_given_by_a_script(
    api: Api, configuration: Path, instance: Instance
) -> None:
    write(configuration.parent / "grant.sql", "GRANT CONNECT ON ENDPOINT::[*] TO [CN=a];")
    write(configuration, CONFIGURATION + "[routes]\nfiles = ['grant.sql']\n")

    with pytest.raises(RequestError, match="takes the role admin"):
        await api.reload(ReloadRequest(), OPERATOR)

    assert () == tuple(instance.catalog.msdb.rows.permissions)


async def test_a_reload_by_signal_is_written_down_as_one(configuration: Path, instance: Instance) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 3\n")

    await instance.reloads.reload()

    [line] = audited(instance)
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


async def test_a_viewer_alone_is_answered_where_there_is_one_thread() -> None:
    with ThreadPoolExecutor(1) as executor:
        assert 7 == await QuestionThreads(executor, 1).run(replace(OWNER, role=AdminRole.VIEWER), lambda: 7)
