"""The admin API as a whole against those who may not: every operation and role, pages of others, tricks, the audit."""

import hashlib
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.admin.operations import OPERATIONS, Operation
from broker.config.admin_access import AdminRole, new_token
from broker.config.values import ListenAddress
from broker.daemon.instance import Instance, serve
from tests.support.admin import CONFIGURATION, ask, bearer

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
BODIES: Mapping[str, Any] = {
    "/v1/sql": {"statement": "SELECT name FROM msdb.sys.routes"},
    "/v1/explain": {"to": "//far"},
    "/v1/plan": {"script": "DROP ROUTE AutoCreatedLocal", "database": "msdb"},
    "/v1/check": {},
}
GIVEN = list(AdminRole)[1:]
DRAIN = ("POST", "/v1/drain")


def target(operation: Operation) -> str:
    return operation.path.replace("{name}", "sys.routes").replace("{id}", GUID)


def token(instance: Instance, role: AdminRole) -> str:
    return new_token(instance.settings.admin.tokens, role.word, role, now=datetime.now(UTC), expires_at=None)


def port(instance: Instance) -> ListenAddress:
    assert instance.admin.admin_address is not None
    return instance.admin.admin_address


def digest(instance: Instance) -> str:
    """Of everything that an instance keeps: its files' rows, its tables, what it remembers of ways."""
    parts: list[object] = [instance.catalog.msdb.rows, list(instance.catalog.msdb.table), instance.forwarder.generation]
    for path in sorted(instance.settings.instance.state_dir.glob("*.db")):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            parts.append(list(db.iterdump()))
    names = {"audit.jsonl", "tokens"}
    parts += [path.read_text() for path in sorted(instance.settings.instance.state_dir.iterdir()) if path.name in names]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """An instance with one database, whose admin API has a port of loopback."""
    path = tmp_path / "broker.toml"
    path.write_text(CONFIGURATION)
    return path


@pytest.fixture
async def instance(configuration: Path) -> AsyncIterator[Instance]:
    async with serve(configuration) as running:
        yield running


def digest_of_tables(instance: Instance) -> object:
    """What the statements of a script would change."""
    rows = {name: database.rows for name, database in instance.catalog.databases.items()}
    return rows, sorted(route.name for route in instance.catalog.msdb.table)


# --- roles ---------------------------------------------------------------------------------------------------


async def test_every_operation_takes_the_role_that_it_declares(instance: Instance) -> None:
    headers = {role: bearer(token(instance, role)) for role in GIVEN}
    cases = [(role, one) for one in OPERATIONS for role in GIVEN]
    cases.sort(key=lambda case: (case[1].method, case[1].path) == DRAIN)  # last: what drains takes no other settings

    expected, answered = {}, {}
    for role, one in cases:
        answer = await ask(port(instance), one.method, target(one), headers=headers[role], body=BODIES.get(one.path))
        expected[role, one.method, one.path] = 200 if role >= one.role else 403
        answered[role, one.method, one.path] = answer.status

    assert expected == answered


async def test_who_is_nobody_gets_nothing_from_any_operation(configuration: Path) -> None:
    new_token(configuration.parent / "tokens", "x", AdminRole.VIEWER, now=datetime.now(UTC), expires_at=None)
    with configuration.open("a") as file:
        file.write('loopback_role = "none"\n')
    paths = [(one.method, target(one)) for one in OPERATIONS] + [("GET", "/v1/openapi.json"), ("GET", "/v1/nope")]
    async with serve(configuration) as instance:
        answers = {path: await ask(port(instance), method, path, body=BODIES.get(path)) for method, path in paths}

    assert dict.fromkeys(answers, 401) == {path: answer.status for path, answer in answers.items()}


async def test_what_applications_say_to_each_other_is_for_admins(instance: Instance, configuration: Path) -> None:
    script = {"statement": "CREATE QUEUE q; CREATE SERVICE [//here] ON QUEUE q", "database": "orders"}
    await ask(port(instance), "POST", "/v1/sql", body=script)
    with closing(sqlite3.connect(configuration.with_name("orders.db"))) as db, db:
        broker.begin_dialog(db, from_service="//here", to_service="//far").send(b"body")
    question = {"statement": "SELECT message_body, body_bytes FROM sys.transmission_queue", "database": "orders"}

    shown = {}
    for role in (AdminRole.VIEWER, AdminRole.OPERATOR, AdminRole.ADMIN):
        answer = await ask(port(instance), "POST", "/v1/sql", headers=bearer(token(instance, role)), body=question)
        shown[role] = answer.told["rows"]
    page = await ask(port(instance), "GET", "/v1/views/sys.transmission_queue?database=orders")

    hidden = [[None, 4]]
    assert {AdminRole.VIEWER: hidden, AdminRole.OPERATOR: hidden, AdminRole.ADMIN: [["0x626F6479", 4]]} == shown
    assert [None] == [row[page.told["columns"].index("message_body")] for row in page.told["rows"]]


# --- asking changes nothing ----------------------------------------------------------------------------------


@pytest.mark.promise("The admin API refuses a request")
async def test_asking_changes_nothing_by_any_path(instance: Instance) -> None:
    asked = [("GET", one) for one in OPERATIONS if one.method == "GET"]
    asked += [("HEAD", one) for _, one in asked if not one.is_stream]
    before = digest(instance)

    answers = [await ask(port(instance), method, target(one)) for method, one in asked]

    assert [200] * len(asked) == [answer.status for answer in answers]
    assert [method == "HEAD" for method, _ in asked] == [answer.body == b"" for answer in answers]
    assert before == digest(instance)


# --- pages of others -----------------------------------------------------------------------------------------

EVIL = {"Origin": "https://evil.example"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PAGES: list[tuple[dict[str, str], int]] = [
    (EVIL, 403),
    ({"Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Host": "evil.example:9422"}, 403),
    ({"Host": "127.0.0.1.evil.example"}, 403),
    ({"Host": ""}, 400),
    (EVIL | FORM, 403),
    (FORM | {"Sec-Fetch-Site": "same-origin"}, 415),
    (FORM | {"Referer": "https://evil.example/"}, 415),
    ({"Content-Type": "text/plain"}, 415),
    ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
    ({"Content-Encoding": "gzip"}, 415),
    ({"X-Forwarded-For": "192.0.2.7"}, 401),
]


@pytest.mark.promise("The admin API refuses a request")
async def test_what_a_page_of_another_site_posts_is_refused_and_changes_nothing(instance: Instance) -> None:
    """It needs no cookie: the port of loopback lets everybody in, and yet it does nothing for a page."""
    before = digest_of_tables(instance)
    body = {"statement": "CREATE QUEUE q"}

    answers = [await ask(port(instance), "POST", "/v1/sql", headers=headers, body=body) for headers, _ in PAGES]

    assert [status for _, status in PAGES] == [answer.status for answer in answers]
    assert [answer.status for answer in answers] == [answer.told["status"] for answer in answers]
    assert before == digest_of_tables(instance)


# --- audit ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("The admin API refuses a request")
async def test_a_change_that_cannot_be_written_down_is_not_made(instance: Instance) -> None:
    instance.settings.admin.audit.mkdir()
    before = digest_of_tables(instance)

    answer = await ask(
        port(instance), "POST", "/v1/sql", body={"statement": "CREATE QUEUE q; USE msdb; DROP ROUTE AutoCreatedLocal"}
    )
    asked = await ask(port(instance), "POST", "/v1/sql", body=BODIES["/v1/sql"])

    assert (503, 200) == (answer.status, asked.status)
    assert answer.told["detail"].endswith("nothing is changed as long as no change can be written down")
    assert before == digest_of_tables(instance)
