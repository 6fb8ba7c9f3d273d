"""Who asks, by what proves it, and what they may."""

import asyncio
import inspect
import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.admin.auth import Caller, TokenStore, role_for
from broker.admin.problems import ForbiddenError
from broker.config.admin_access import AdminRole, new_token, revoke_token
from broker.config.values import ListenAddress
from broker.daemon.instance import Instance, serve
from broker.ddl import statements
from broker.ddl.parser import parse_script
from broker.ddl.statements import AlterDatabase, EndConversation, Statement
from tests.support.admin import SECONDS, Answer, ask, bearer, request, speak
from tests.support.certificates import Pair, authority, make


def test_statements_come_through_up_to_the_first_that_takes_more() -> None:
    script = parse_script("DROP ROUTE r; DROP QUEUE q; DROP ROUTE s")
    permitted = Caller("token:ci", "there", AdminRole.OPERATOR).permitted(script)

    first = next(permitted)

    assert script[0] == first
    with pytest.raises(ForbiddenError, match=r"^DROP QUEUE takes the role admin"):
        next(permitted)


SELECT = {"statement": "SELECT name FROM msdb.sys.routes"}
CREATE = {"statement": "CREATE ROUTE far WITH ADDRESS = 'tcp://far:4022'", "database": "msdb"}
STRANGER = 4711


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that other users of the machine may pass through."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o711)
        yield Path(made)


@asynccontextmanager
async def running(base: Path, admin: str) -> AsyncIterator[Instance]:
    """An instance with these lines in its section [admin]."""
    file = base / "broker.toml"
    head = '[instance]\nname = "one"\nstate_dir = "."\n[endpoint]\nlisten = []\nmessage_forwarding = true\n'
    file.write_text(f'{head}[observe]\nlisten = ""\n[admin]\n{admin}\n')
    async with serve(file) as instance:
        yield instance


def token(base: Path, role: AdminRole, name: str = "ci", *, days: int | None = None) -> str:
    now = datetime.now(UTC)
    return new_token(base / "tokens", name, role, now=now, expires_at=None if days is None else now + timedelta(days))


def port(instance: Instance) -> ListenAddress:
    address = instance.admin.admin_address
    assert address is not None
    return address


def routes(instance: Instance) -> set[str]:
    return {route.name for route in instance.catalog.msdb.table}


async def post(where: Path | ListenAddress, body: object, **more: Any) -> Answer:
    return await ask(where, "POST", "/v1/sql", body=body, **more)


# --- the socket ---


async def test_a_token_decides_alone_wherever_it_is_shown(base: Path) -> None:
    """Who runs the instance may do everything on the socket, and can do with less."""
    viewer, admin = token(base, AdminRole.VIEWER), token(base, AdminRole.ADMIN, "lowered")
    async with running(base, '[admin.roles]\n"token:lowered" = "viewer"') as instance:
        socket = instance.settings.admin.socket
        asked = await post(socket, SELECT, headers=bearer(viewer))
        changed = await post(socket, CREATE, headers=bearer(viewer))
        lowered = await post(socket, CREATE, headers=bearer(admin))
        before = routes(instance)
        without = await post(socket, CREATE)

        assert [200, 403, 403, 200] == [one.status for one in (asked, changed, lowered, without)]
        assert {"far"} == routes(instance) - before
    assert "operator" == changed.told["role"]
    assert 'token:ci has the role viewer here; [admin.roles] "token:ci" = "operator"' in changed.told["detail"]


def as_user(socket: Path, data: bytes, *, user: int, groups: tuple[int, ...]) -> Any:
    """The JSON that a process of another user is answered; None where it cannot open the socket."""
    script = (
        "import os, socket, sys\n"
        "path, user, *groups = sys.argv[1], *map(int, sys.argv[2:])\n"
        "os.setgroups(groups[1:]); os.setgid(groups[0]); os.setuid(user)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try: s.connect(path)\n"
        "except PermissionError: sys.exit(13)\n"
        "s.sendall(sys.stdin.buffer.read())\n"
        "sys.stdout.buffer.write(b''.join(iter(lambda: s.recv(65536), b'')))\n"
    )
    command = [sys.executable, "-I", "-c", script, str(socket), str(user), *map(str, groups)]
    ran = subprocess.run(command, input=data, capture_output=True, check=False, timeout=SECONDS)
    if ran.returncode == 13:
        return None
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.partition(b"\r\n\r\n")[2])


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@needs_root
@pytest.mark.parametrize(
    ("roles", "groups", "role"),
    [
        (f'"user:{STRANGER}" = "operator"', (4712, 4713), "operator"),
        ('"group:4713" = "viewer"', (4712, 4713), "viewer"),
        (f'"user:{STRANGER}" = "viewer"\n"group:4713" = "operator"', (4712, 4713), "operator"),
        ('"user:1" = "admin"', (4712, 4713), "none"),
        ('"group:1" = "admin"', (4712, 4713), "none"),
    ],
)
async def test_another_user_has_the_highest_role_of_user_and_groups(
    base: Path, roles: str, groups: tuple[int, ...], role: str
) -> None:
    async with running(base, f'socket_group = "4713"\n[admin.roles]\n{roles}') as instance:
        socket = instance.settings.admin.socket
        tries = [request("POST", "/v1/sql", body=SELECT), request("POST", "/v1/sql", body=CREATE)]
        asked, changed = [
            await asyncio.to_thread(as_user, socket, data, user=STRANGER, groups=groups) for data in tries
        ]

        assert (role != "none") == ("rows" in asked)
        assert (role == "operator") == ("far" in routes(instance)) == ("messages" in changed)
    if role == "none":
        assert 403 == asked["status"]
        assert asked["detail"].startswith("POST /v1/sql takes the role viewer, and user:4711 has no role here; ")
        assert '[admin.roles] "user:4711" = "viewer" in the configuration' in asked["detail"]


@needs_root
async def test_without_a_group_nobody_else_opens_the_socket(base: Path) -> None:
    async with running(base, f'[admin.roles]\n"user:{STRANGER}" = "admin"') as instance:
        data = request("GET", "/v1/status")
        socket = instance.settings.admin.socket
        answer = await asyncio.to_thread(as_user, socket, data, user=STRANGER, groups=(4712,))

    assert answer is None


# --- a port of loopback ---


@pytest.mark.parametrize(
    ("role", "asked", "changed"),
    [("admin", 200, 200), ("operator", 200, 200), ("viewer", 200, 403), ("none", 401, 401)],
)
async def test_who_shows_nothing_on_loopback_has_the_role_of_everybody(
    base: Path, role: str, asked: int, changed: int
) -> None:
    token(base, AdminRole.VIEWER)
    async with running(base, f'listen = "127.0.0.1:0"\nloopback_role = "{role}"') as instance:
        answers = [await post(port(instance), body) for body in (SELECT, CREATE)]

        assert [asked, changed] == [answer.status for answer in answers]
        assert (changed == 200) == ("far" in routes(instance))


async def test_who_comes_through_a_proxy_is_not_everybody_on_loopback(base: Path) -> None:
    operator = token(base, AdminRole.OPERATOR)
    async with running(base, 'listen = "127.0.0.1:0"') as instance:
        for name in ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"):
            without = await post(port(instance), SELECT, headers={name: "192.0.2.1"})
            shown = await post(port(instance), SELECT, headers={name: "192.0.2.1"} | bearer(operator))
            assert (401, 200) == (without.status, shown.status)


async def test_what_is_no_token_is_refused_not_repeated_and_locks_nobody_out(base: Path) -> None:
    old = token(base, AdminRole.ADMIN, "old", days=-1)
    wrong = ["Bearer  ", "Basic YWRtaW46YWRtaW4=", "broker_x", "Bearer broker_" + "A" * 43]
    wrong += [f"Bearer guess{number}" for number in range(30)]
    async with running(base, 'listen = "127.0.0.1:0"') as instance:
        late = token(base, AdminRole.VIEWER)  # made while the instance runs
        with capture_logs() as logs:
            shown = [{"Authorization": one} for one in wrong]
            answers = [await ask(port(instance), "GET", "/v1/status", headers=one) for one in (*shown, bearer(old))]
        right = await ask(port(instance), "GET", "/v1/status", headers=bearer(late))
        revoke_token(base / "tokens", "ci")
        revoked = await ask(port(instance), "GET", "/v1/status", headers=bearer(late))

    assert {(401, 'Bearer realm="broker"')} == {(one.status, one.headers["www-authenticate"]) for one in answers}
    assert all("made by broker token create" in one.told["detail"] for one in answers)
    assert [("admin token refused", "127.0.0.1")] * 35 == [(line["event"], line["origin"]) for line in logs]
    said = json.dumps(logs) + "".join(one.body.decode() for one in answers)
    assert [] == [one for one in wrong if (secret := one.rpartition(" ")[2]) and secret in said]
    assert (200, 401) == (right.status, revoked.status)


# --- TLS ---


@pytest.fixture
def ca(base: Path) -> Pair:
    made = authority()
    make("gateway", "127.0.0.1", "gateway.example", by=made).store(base, "gateway")
    (base / "ca.pem").write_bytes(made.pem)
    return made


TLS = 'listen = "127.0.0.1:0"\nloopback_role = "none"\ncertificate = "gateway.pem"\nprivate_key = "gateway.key"\n'
TRUST = TLS + 'trust = ["ca.pem"]\n'


def context(base: Path, pair: Pair | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=base / "ca.pem")
    if pair is not None:
        made.load_cert_chain(*pair.store(base, "client"))
    return made


async def test_a_certificate_has_the_role_that_is_given_to_it_and_no_other(base: Path, ca: Pair) -> None:
    roles = '[admin.roles]\n"certificate:CN=ops" = "operator"\n"certificate:ops" = "viewer"'
    async with running(base, f"{TRUST}{roles}") as instance:
        given = await post(port(instance), CREATE, tls=context(base, make("ops", by=ca)))
        other = await post(port(instance), SELECT, tls=context(base, make("other", by=ca)))

        assert 200 == given.status
        assert "far" in routes(instance)
    assert (403, "viewer") == (other.status, other.told["role"])
    assert '[admin.roles] "certificate:CN=other" = "viewer"' in other.told["detail"]


@pytest.mark.parametrize("name", ["stranger", "expired"])
async def test_a_certificate_that_is_not_trusted_is_refused_by_tls(base: Path, ca: Pair, name: str) -> None:
    pair = make("ops") if name == "stranger" else make("ops", by=ca, begins=timedelta(-2), ends=timedelta(-1))
    async with running(base, f'{TRUST}[admin.roles]\n"certificate:CN=ops" = "admin"') as instance:
        try:
            answer = await speak(port(instance), request("GET", "/v1/status"), tls=context(base, pair))
        except ssl.SSLError as error:
            answer = str(error).encode()

    assert b"HTTP/1.1 200" not in answer


async def test_plain_text_and_old_tls_get_no_answer(base: Path, ca: Pair) -> None:
    token(base, AdminRole.VIEWER)
    old = context(base)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with running(base, TLS) as instance:
        plain = await speak(port(instance), request("GET", "/v1/status"))
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await speak(port(instance), request("GET", "/v1/status"), tls=old)

    assert b"HTTP" not in plain


async def test_over_tls_the_names_of_the_certificate_are_answered(base: Path, ca: Pair) -> None:
    shown = bearer(token(base, AdminRole.VIEWER))
    hosts = {"gateway.example:9422": 200, "127.0.0.1": 200, "evil.example": 403, "example": 403}
    async with running(base, TLS) as instance:
        answers = {
            host: await ask(port(instance), "GET", "/v1/status", headers=shown | {"Host": host}, tls=context(base))
            for host in hosts
        }

    assert hosts == {host: answer.status for host, answer in answers.items()}


async def test_what_the_certificate_of_a_client_has_issued_is_nobodys(base: Path, ca: Pair) -> None:
    clerk = make("clerk", is_authority=True)  # as openssl req -x509 makes it
    clerk.store(base, "clerk")
    roles = '[admin.roles]\n"certificate:CN=clerk" = "viewer"\n"certificate:CN=admin" = "admin"'
    async with running(base, f'{TRUST}peers = ["clerk.pem"]\n{roles}') as instance:
        own = await post(port(instance), SELECT, tls=context(base, clerk))
        issued = await post(port(instance), SELECT, tls=context(base, make("admin", by=clerk)))

    assert (200, 401) == (own.status, issued.status)
    assert "(CN=admin) was issued by CN=clerk" in issued.told["detail"]


_ADMIN = {
    *("GrantPermission", "DenyPermission", "RevokePermission"),
    *("CreateRemoteServiceBinding", "AlterRemoteServiceBinding", "DropRemoteServiceBinding"),
    *("DropQueue", "DropService", "DropContract"),
}

HANDLE = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("ALTER QUEUE q WITH STATUS = OFF", AdminRole.OPERATOR),
        ("DROP QUEUE q", AdminRole.ADMIN),
        ("GRANT SEND ON SERVICE::s TO [CN=orders]", AdminRole.ADMIN),
        ("ALTER DATABASE d SET PARTNER FAILOVER", AdminRole.OPERATOR),
        ("ALTER DATABASE d SET ERROR_BROKER_CONVERSATIONS", AdminRole.ADMIN),
        ("ALTER DATABASE d SET NEW_BROKER", AdminRole.ADMIN),
        (f"END CONVERSATION '{HANDLE}'", AdminRole.OPERATOR),
        (f"END CONVERSATION '{HANDLE}' WITH CLEANUP", AdminRole.ADMIN),
    ],
)
def test_what_can_be_changed_back_takes_operator_and_what_destroys_takes_admin(text: str, role: AdminRole) -> None:
    [statement] = parse_script(text)

    assert role is role_for(statement)


def test_every_kind_of_statement_has_been_thought_of() -> None:
    """A new statement takes admin until somebody says otherwise, here as well."""
    kinds = {
        name: kind
        for name, kind in inspect.getmembers(statements, inspect.isclass)
        if issubclass(kind, Statement) and not kind.__subclasses__() and kind not in {EndConversation, AlterDatabase}
    }
    blank = {name: kind(**dict.fromkeys(kind.__struct_fields__)) for name, kind in kinds.items()}

    assert _ADMIN == {name for name, statement in blank.items() if role_for(statement) is AdminRole.ADMIN}


def test_a_file_that_cannot_be_used_counts_as_empty_and_is_logged_once(base: Path) -> None:
    secret, path, now = token(base, AdminRole.OPERATOR), base / "tokens", datetime.now(UTC)
    store = TokenStore(path, {})
    path.chmod(0o644)

    with capture_logs() as logs:
        found = [store.find(secret, now=now) for _ in range(3)]
        path.chmod(0o600)
        again = store.find(secret, now=now)

    assert [None, None, None, None] == [*found, TokenStore(path.with_name("none"), {}).find(secret, now=now)]
    assert again is not None
    assert ["tokens unusable"] == [line["event"] for line in logs]
