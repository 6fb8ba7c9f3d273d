"""
Secrets are planted everywhere, everything is done that the system can do, and whatever it tells is searched.

Planted: in bodies, small, large, refused and undeliverable; in private keys; in the environment; in the exception of an
application; in tokens, frames and requests of strangers; in settings that are wrong. Searched: logs,
standard output and error, HTTP answers, views, metrics, the journal, the audit, what a crash writes, every file that is
no message store. What may hold a body is named in one place: `MAY_SHOW`.
"""

import base64
import contextlib
import html
import json
import os
import secrets
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pyarrow.parquet as pq
import pytest

import broker
from broker.journal.files import files_of
from broker.observe.views import MEMORY_VIEWS
from broker.protocol.frame import Hello, Ping, encode_dialog, encode_link
from broker.store.sqlite.quarantine import failures
from broker.store.sqlite.views import FILE_VIEWS
from examples.demo.topology import Daemon, Topology, free_port, wait_for
from tests.fuzz.peer import link_frame
from tests.support.certificates import Pair, authority, endpoint_settings, make, stranger
from tests.support.command import run
from tests.support.forwarding import PLAIN
from tests.support.identities import identity_files, issued
from tests.support.loopback import BILLING, ORDERS, get, route, service


def forms(secret: bytes) -> Iterator[tuple[str, bytes]]:
    """
    Each form of a secret, and what it is called.

    Shape: hexadecimal digits and percent escapes in lower case, as `find` looks for them in lower case; base64 in the
    three ways that it can stand in a longer text, both alphabets, without the characters that its neighbours have a
    say in.
    """
    yield "raw", secret
    yield "hex", secret.hex().encode()
    yield "hex with blanks", secret.hex(" ").encode()
    for alphabet, encode in (("base64", base64.b64encode), ("base64url", base64.urlsafe_b64encode)):
        for at in range(3):
            # The first characters hold bits of what stands before, the last ones bits of what comes behind.
            whole = encode(b"\0" * at + secret)
            yield f"{alphabet} at {at}", whole[(0, 2, 3)[at] : len(whole) - 4]
    text = secret.decode("latin-1")
    yield "percent", quote(secret, safe="").lower().encode()
    yield "percent, plus", quote_plus(secret).lower().encode()
    yield "every byte percent", "".join(f"%{byte:02x}" for byte in secret).encode()
    words = secret.decode(errors="replace")
    yield "json", json.dumps(words)[1:-1].encode()
    yield "json of bytes", json.dumps(text)[1:-1].encode()
    yield "xml", html.escape(words, quote=False).encode()
    yield "html", html.escape(words).encode()
    yield "repr", repr(secret)[2:-1].encode()
    yield "utf-16", words.encode("utf-16-le")


def find(secrets: Mapping[str, bytes], places: Mapping[str, bytes]) -> list[str]:
    """Where which secret stands, and in which form; sentences for people, without the secret."""
    wanted = [
        (f"{name} ({form})", needle, form.startswith(("hex", "percent", "every")))
        for name, secret in secrets.items()
        for form, needle in forms(secret)
    ]
    found = []
    for place, data in places.items():
        lower = data.lower()
        found += [f"{name} in {place}" for name, needle, folded in wanted if needle in (lower if folded else data)]
    return found


# The system lives once, for all of them; whichever is first waits for its whole life.
pytestmark = pytest.mark.timeout(400)

SECONDS = 60.0
CHECKED = "//shop/Checked"
# The columns with bodies, which the original's views have under these names; whoever asks for them wants the body.
MAY_SHOW = frozenset({"message_body"})
# The command that shows why a reader failed shows the text of its exception, to whoever may read the database's file.
MAY_TELL = {"quarantine of billing": "exception"}
STORES = (".db", ".db-wal", ".db-shm", ".db-journal")
APPLICATION = """
import broker

@broker.reader("Inbox", single=True, attempts=2, retry_delay=0.01)
def bill(db, message):
    if message.type == "//shop/Poison":
        local = message.body
        raise RuntimeError("no connection with " + {reason!r})
    if message.type == "//shop/Refuse":
        message.dialog.end(error=5, description={description!r})
"""


def plant(name: str) -> bytes:
    """A secret with its name in it, and with characters that every encoding writes in a way of its own."""
    return f"<{name}+{secrets.token_hex(8)}/ä&%>".encode()


@dataclass
class Planted:
    """Shape: `secrets` by name; `told` by place, everything that anybody was told; `kept` what is kept on purpose."""

    secrets: dict[str, bytes] = field(default_factory=dict)
    told: dict[str, bytes] = field(default_factory=dict)
    kept: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str) -> bytes:
        """A new secret."""
        self.secrets[name] = plant(name)
        return self.secrets[name]

    def add_key(self, name: str, pair: Pair) -> None:
        """A private key: its number, and a line from the middle of its PEM file."""
        number = pair.key.private_numbers().private_value
        self.secrets[f"{name} number"] = number.to_bytes(32, "big")
        self.secrets[f"{name} PEM"] = pair.key_pem().splitlines()[2]

    def hear(self, place: str, data: object) -> None:
        """Somebody is told."""
        said = data if isinstance(data, bytes) else json.dumps(data, default=str, ensure_ascii=False).encode()
        self.told[place] = self.told.get(place, b"") + said


# --- the system ---------------------------------------------------------------------------------------------


class System:
    """Orders, a gateway and billing, over TLS, sealed, with a journal of everything and a log of everything."""

    def __init__(self, directory: Path, planted: Planted) -> None:
        self.directory, self.planted = directory, planted
        self.net = Topology(directory / "net")
        self.ca = authority()
        self.pairs = {name: make(name, "127.0.0.1", by=self.ca) for name in ("orders", "gateway", "billing")}
        self.admin_port = free_port()
        gateway = self._add("gateway", is_forwarding=True)
        orders, billing = self._add("orders"), self._add("billing")
        self.gateway, self.orders, self.billing = gateway, orders, billing
        for name in self.net.daemons:
            more = _route(BILLING, billing) + _route(ORDERS, orders) if name == "gateway" else ""
            self.net.script(name, "msdb", _welcome(name, BILLING, ORDERS) + more)
        types = "CREATE MESSAGE TYPE [//shop/Json] VALIDATION = JSON;\n"
        types += f"CREATE CONTRACT [{CHECKED}] ([//shop/Json] SENT BY ANY);\n"
        binding = f"CREATE REMOTE SERVICE BINDING Sealed TO SERVICE '{BILLING}' WITH USER = [leak-billing];\n"
        self.net.script("orders", "orders", _service(ORDERS) + _route(BILLING, gateway) + binding)
        checked = _service(BILLING, f" ([DEFAULT], [{CHECKED}])")
        self.net.script("billing", "billing", types + checked + _route(ORDERS, gateway))

    def _add(self, name: str, *, is_forwarding: bool = False) -> Daemon:
        self.planted.add_key(f"key of {name}", self.pairs[name])
        settings: dict[str, dict[str, Any]] = {
            "endpoint": endpoint_settings(self.directory, name, self.pairs[name], self.ca),
            "journal": {"directory": "flows", "sample": 1.0},
            "observe": {"log_level": "debug"},
            "dialog": {"resend_first": "200ms"},
        }
        if is_forwarding:
            settings["admin"] = {"listen": f"127.0.0.1:{self.admin_port}"}
        databases = [] if is_forwarding else [name]
        if not is_forwarding:
            settings[f"databases.{name}"] = self._identity(name, {"orders": "billing", "billing": "orders"}[name])
        daemon = self.net.add(name, forwarding=is_forwarding, databases=databases, settings=settings)
        password = self.planted.add(f"environment of {name}").decode()
        daemon.environ = {
            "DATABASE_URL": f"postgresql://app:{password}@db/shop",
            "APPLICATION_PASSWORD": password,
            "PYTHONFAULTHANDLER": "1",
        }
        return daemon

    def _identity(self, name: str, peer: str) -> dict[str, Any]:
        """What a database seals with, and whom it knows."""
        lines = [line for line in issued(f"leak-{name}").key_pem.splitlines() if len(line) > 40]
        self.planted.secrets.update({f"sealing key of {name} {number}": line for number, line in enumerate(lines)})
        return identity_files(self.directory, f"leak-{name}", f"leak-{peer}")

    def command(self, place: str, *words: str) -> subprocess.Popen[bytes]:
        """The command `broker`, as a process whose words are heard."""
        command = [sys.executable, "-m", "broker", *words]
        with (self.directory / f"{place}.out").open("wb") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def hear(self, place: str, *words: str) -> None:
        """A command to its end."""
        self.command(place, *words).wait(SECONDS)
        self.planted.hear(place, (self.directory / f"{place}.out").read_bytes())


def _welcome(name: str, *services: str) -> str:
    sends = "".join(f"GRANT SEND ON SERVICE::[{service}] TO public;\n" for service in services)
    return f"GRANT CONNECT ON ENDPOINT::[{name}] TO public;\n{sends}"


def _service(name: str, contracts: str = "") -> str:
    return f"{service(name, contracts)}GRANT SEND ON SERVICE::[{name}] TO public;\n"


def _route(to: str, daemon: Daemon) -> str:
    return route(f"r{to}", to, daemon.address)


# --- what is done -------------------------------------------------------------------------------------------


def converse(system: System) -> None:
    """Messages of every kind, an application that fails over some, and one that ends a dialog with an error."""
    planted = system.planted
    body, large = planted.add("body"), planted.add("large body")
    poison, reason = planted.add("poison"), planted.add("exception")
    refused, description = planted.add("refused body"), planted.add("error description")
    application = APPLICATION.format(reason=reason.decode(), description=description.decode())
    (system.directory / "app.py").write_text(application)
    files = ["-d", str(system.billing.directory / "billing.db"), "--directory", str(system.directory)]
    readers = system.command("readers", "run", *files, "app")
    try:
        with contextlib.closing(system.orders.connect("orders")) as db:
            for type_name, message in (
                ("//shop/Plain", body),
                ("//shop/Plain", large * 9000),
                ("//shop/Poison", poison),
                ("//shop/Refuse", b"x"),
                ("//shop/Json", b'{"a": ' + refused),
            ):
                with db:
                    contract = CHECKED if type_name == "//shop/Json" else "DEFAULT"
                    dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING, contract=contract)
                    dialog.send(message, type=type_name)
                asked = f"/v1/why/{dialog.conversation_handle}"
                planted.hear("why", [one.admin.get(asked) for one in system.net.daemons.values()])
            wait_for(lambda: _failed(system), seconds=SECONDS, what="the poison message in quarantine")
            errors: list[bytes] = []
            wait_for(lambda: _errors(db, errors) >= 2, seconds=SECONDS, what="the errors of the far side")
    finally:
        readers.send_signal(signal.SIGTERM)
        readers.wait(SECONDS)
    planted.kept["errors"] = b"".join(errors)
    planted.hear("fault", next(error for error in errors if b"<Code>5</Code>" not in error))
    planted.hear("readers", (system.directory / "readers.out").read_bytes())


def _failed(system: System) -> bool:
    with contextlib.closing(system.billing.connect("billing")) as db:
        found = [one for one in failures(db) if one.quarantine_time is not None]
        if found:
            system.planted.kept["quarantine"] = "".join(map(str, found)).encode()
    return bool(found)


def _errors(db: sqlite3.Connection, errors: list[bytes]) -> int:
    """How many dialogs have ended with an error; what each error says is added."""
    with db:
        errors += [message.body for message in broker.receive(db, queue="Inbox", top=100) if message.is_error]
    return len(errors)


def annoy(system: System) -> None:
    """Strangers and neighbours who break the rules, with secrets in what they say."""
    planted = system.planted
    framed, hello, token = planted.add("malformed frame"), planted.add("stranger"), planted.add("token")
    address = ("127.0.0.1", system.gateway.port)
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=5) as plain:
        plain.sendall(hello * 3)
        plain.recv(4096)
    greeting = encode_link(Hello(name="neighbour", arbitration=secrets.token_bytes(16)))
    lying = bytearray(encode_dialog(PLAIN, framed * 5))
    lying[-1] ^= 1
    for words in (
        [greeting, bytes(lying), encode_link(Ping(b"12345678")), link_frame(0x0E, framed)],
        [link_frame(1, b"\x81\xa4name\xd9" + bytes([len(framed) + 9]) + framed)],
        [greeting, framed * 20],
        [greeting, link_frame(4, b"\x81\xa2id\xa3abc" + framed)],
    ):
        with contextlib.suppress(OSError), _neighbour(system, address) as link:
            link.sendall(b"".join(words))
            while link.recv(4096):
                pass
    bearer = base64.urlsafe_b64encode(token).decode()
    planted.secrets["bearer token"] = bearer.encode()
    for head in (
        f"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {bearer}\r\n",
        f"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization Bearer {bearer}\r\n",
        f"GET /{bearer} HTTP/9.9\r\nHost: localhost\r\nCookie: session={bearer}\r\n",
    ):
        with socket.create_connection(("127.0.0.1", system.admin_port), timeout=5) as web:
            web.sendall(f"{head}Connection: close\r\n\r\n".encode())
            with contextlib.suppress(OSError):
                web.recv(65536)


def administer(system: System) -> None:
    """Changes by somebody with a token, good and misspelt, which are written down."""
    config = str(system.gateway.config)
    [token] = run("token", "create", "ci", "--role", "operator", "-c", config).stdout_bytes.split()[-1:]
    system.planted.secrets["admin token"] = token
    statement = "CREATE ROUTE audited WITH SERVICE_NAME = '//a', ADDRESS = 'tcp://127.0.0.1:9';"
    for shown in (token, token[:-1], token):
        request = urllib.request.Request(
            f"http://127.0.0.1:{system.admin_port}/v1/sql",
            data=json.dumps({"statement": statement, "database": "msdb"}).encode(),
            headers={"Authorization": f"Bearer {shown.decode()}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                system.planted.hear("answers to a token", answer.read())
        except urllib.error.HTTPError as error:
            with error:
                system.planted.hear("answers to a token", str(error.code).encode() + error.read())
    system.hear("tokens", "token", "list", "-c", config)


@contextlib.contextmanager
def _neighbour(system: System, address: tuple[str, int]) -> Iterator[ssl.SSLSocket]:
    context = stranger((system.directory / "orders.pem", system.directory / "orders.key"))
    with socket.create_connection(address, timeout=5) as plain, context.wrap_socket(plain) as link:
        yield link


def look(system: System) -> None:
    """Everything that can be asked of a running instance."""
    for name, daemon in system.net.daemons.items():
        for database in ("msdb", *([] if name == "gateway" else [name])):
            for view in (*FILE_VIEWS, *MEMORY_VIEWS):
                if view.startswith("sys."):
                    system.planted.hear(f"{name}: {view} of {database}", _rows(daemon, view, database))
        system.planted.hear(f"{name}: msdb.sys.routes", _rows(daemon, "msdb.sys.routes", None))
        if name != "gateway":
            system.planted.hear(f"{name}: queue", _rows(daemon, "Inbox", name))
        for path in ("/v1/status", "/v1/census", "/v1/openapi.json"):
            system.planted.hear(f"{name}: {path}", daemon.admin.get(path))
        system.planted.hear(f"{name}: /v1/check", daemon.admin.request("POST", "/v1/check", {}))
        for path in ("/metrics", "/livez", "/readyz?verbose", "/startupz"):
            system.planted.hear(f"{name}: {path}", get(daemon, path).encode())
        system.hear(f"status of {name}", "status", "-c", str(daemon.config))
        system.hear(f"check of {name}", "check", "--offline", "-c", str(daemon.config))
    files = system.billing.directory / "billing.db"
    for command in ("dialogs", "quarantine"):
        system.hear(f"{command} of billing", command, "list", "-d", str(files))
    for process in system.net.daemons.values():
        system.planted.hear("command lines", Path(f"/proc/{process.pid}/cmdline").read_bytes())


def _rows(daemon: Daemon, view: str, database: str | None) -> list[dict[str, Any]]:
    rows = daemon.query(f"SELECT * FROM {view}", database)
    return [{name: value for name, value in row.items() if name not in MAY_SHOW} for row in rows]


def misconfigure(system: System) -> None:
    """Settings that are wrong because a secret stands where something else belongs."""
    planted, path = system.planted, system.directory / "wrong.toml"
    pair = make("wrong")
    planted.add_key("key in the wrong place", pair)
    pasted = pair.key_pem().decode()
    (system.directory / "key.pem").write_bytes(pair.key_pem())
    password = planted.add("password in a file")
    (system.directory / "junk.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\n" + password + b"\n-----END-----\n")
    files = {name: json.dumps(str(system.directory / name)) for name in ("key.pem", "junk.pem", "orders.pem")}
    for number, (certificate, key) in enumerate(
        (
            (files["key.pem"], files["junk.pem"]),
            (files["junk.pem"], files["key.pem"]),
            (files["orders.pem"], f'"""{pasted}"""'),
            (f'["""{pasted}"""]', files["key.pem"]),
        )
    ):
        endpoint = (
            f'listen = ["127.0.0.1:0"]\nencryption = "required"\ncertificate = {certificate}\nprivate_key = {key}'
        )
        path.write_text(f'[instance]\nstate_dir = "wrong"\n[endpoint]\n{endpoint}\n')
        system.hear(f"check {number}", "check", "-c", str(path))
        system.hear(f"serve {number}", "serve", "-c", str(path))


def crash(system: System) -> None:
    """With bodies on their way: an abort of two instances, a kill, a database that is no database any more."""
    planted = system.planted
    for daemon in system.net.daemons.values():
        daemon.stop()  # what the journal has is written
    system.net.start()
    body = planted.add("body on its way")
    system.billing.freeze()
    with contextlib.closing(system.orders.connect("orders")) as db, db:
        dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING, lifetime=timedelta(hours=1))
        for _ in range(50):
            dialog.send(body * 100)
    wait_for(lambda: system.gateway.status()["forwarding"]["received"], seconds=SECONDS, what="bodies at the gateway")
    for daemon in (system.gateway, system.orders):
        limits = Path(f"/proc/{daemon.pid}/limits").read_text()
        planted.kept[f"limits of {daemon.name}"] = limits.encode()
        os.kill(daemon.pid, signal.SIGABRT)
        wait_for(lambda: not daemon.is_running, seconds=SECONDS, what=f"the end of {daemon.name}")  # noqa: B023
    system.billing.thaw()
    system.billing.kill()
    file = system.billing.directory / "billing.db"
    planted.kept["billing.db"] = b"".join(one.read_bytes() for one in file.parent.glob("billing.db*"))
    with file.open("r+b") as store:
        store.write(planted.add("what destroyed a file") * 200)
    system.hear("serve a broken file", "serve", "-c", str(system.billing.config))


def gather(system: System) -> None:
    """Every file that is no message store, and every value of the journal."""
    own = {".key", ".pem", ".toml"}
    for path in sorted(system.net.directory.rglob("*")):
        if path.is_file() and not path.name.endswith(STORES) and path.suffix not in own:
            system.planted.hear(str(path.relative_to(system.net.directory)), path.read_bytes())
    for name, daemon in system.net.daemons.items():
        for path in files_of(daemon.directory / "flows", name):
            with pq.ParquetFile(path) as file:
                rows = file.read().to_pylist()
            values = [value for row in rows for value in row.values()]
            told = (value if isinstance(value, bytes) else str(value).encode() for value in values)
            system.planted.hear("journal", b"\n".join(told))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """What everybody was told in the life of a system."""
    directory, planted = tmp_path_factory.mktemp("leaks"), Planted()
    system = System(directory, planted)
    with system.net:
        system.net.start()
        converse(system)
        annoy(system)
        administer(system)
        look(system)
        misconfigure(system)
        crash(system)
    gather(system)
    return planted


# --- what must hold -----------------------------------------------------------------------------------------


@pytest.mark.promise("Only permitted peers connect, send and read")
def test_no_secret_is_in_anything_that_is_told(planted: Planted) -> None:
    assert len(planted.told) > 100

    found = find(planted.secrets, planted.told)

    assert [] == [one for one in found if one not in {f"{name} (raw) in {place}" for place, name in MAY_TELL.items()}]


def test_what_is_kept_on_purpose_is_there(planted: Planted) -> None:
    """The secrets have really been where they were planted: else the search would prove nothing."""
    assert planted.secrets["exception"] in planted.kept["quarantine"]
    assert planted.secrets["poison"] in planted.kept["billing.db"]
    assert planted.secrets["exception"] in planted.told["quarantine of billing"]
    assert html.escape(planted.secrets["error description"].decode()).encode() in planted.kept["errors"]


def test_everything_was_told_that_was_to_be_searched(planted: Planted) -> None:
    told = {name: data for name, data in planted.told.items() if data.strip()}

    assert b"Fatal Python error: Aborted" in told["gateway/log"]
    assert b"Fatal Python error: Aborted" in told["orders/log"]
    assert b"dialog quarantined" in told["readers"]
    assert b"endpoint.private_key" in told["check 3"] + told["check 2"]
    assert b"billing.db" in told["serve a broken file"]
    assert b"//shop/Billing" in told["journal"]
    assert b"broker_" in told["gateway: /metrics"]
    assert b"audited" in told["gateway/audit.jsonl"]
    assert b"401" in told["answers to a token"]
    assert b"leak-billing" in told["orders: sys.conversation_endpoints of orders"]


def test_a_crash_leaves_no_core(planted: Planted) -> None:
    """A core holds keys and bodies."""
    for name in ("gateway", "orders"):
        limits = planted.kept[f"limits of {name}"].decode()
        [core] = [line.split() for line in limits.splitlines() if line.startswith("Max core file size")]

        assert "0" == core[4]
    assert [] == [name for name in planted.told if Path(name).name.startswith("core")]
