"""What tests of the commands share: a database, a configuration, and something that answers like a daemon."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.errors import SettingsError
from tests.support.shop import Shop

Load: TypeAlias = Callable[..., Settings]
Report: TypeAlias = Callable[..., list[str]]


class FakeAdmin:
    """
    An admin socket, or an admin port, with prepared answers.

    Shape: `answers` (status, body) by path, the body as JSON unless it is bytes, or made of
    that of the question; `headers` of each; `asked` (method, path, body) so far;
    `path` of the socket; `port` on 127.0.0.1, 0 for a socket.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = 0
        self.answers: dict[str, tuple[int, Any]] = {}
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, str, Any]] = []


@pytest.fixture
def fake_admin(tmp_path: Path) -> Iterator[FakeAdmin]:
    """The fake, listening on its socket."""
    fake = FakeAdmin(tmp_path / "admin.sock")
    with socketserver.UnixStreamServer(str(fake.path), _handler(fake)) as server, serving(server):
        yield fake


@pytest.fixture
def fake_port(tmp_path: Path) -> Iterator[FakeAdmin]:
    """The fake, listening on a port."""
    fake = FakeAdmin(tmp_path / "none.sock")
    with socketserver.TCPServer(("127.0.0.1", 0), _handler(fake)) as server, serving(server):
        fake.port = server.server_address[1]
        yield fake


def _handler(fake: FakeAdmin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            question = json.loads(text) if text else None
            fake.asked.append((self.command, self.path, question))
            status, body = fake.answers[self.path]
            body = body(question) if callable(body) else body
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**fake.headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer  # noqa: N815 - names the library asks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

    return Handler


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A database with the services Orders and Billing."""
    shop = Shop(tmp_path / "orders.db")
    yield shop
    shop.close()


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """A configuration of an instance with that database."""
    path = tmp_path / "broker.toml"
    path.write_text(
        '[instance]\nstate_dir = "."\n[endpoint]\nlisten = ["127.0.0.1:0"]\n[databases.orders]\npath = "orders.db"\n'
    )
    return path


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Writes a text to a file, loads it with the environment and the flags given."""

    def loading(text: str, environ: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> Settings:
        path = tmp_path / "broker.toml"
        path.write_bytes(text.encode())
        return load_settings(path, environ=environ or {}, overrides=flags or {})

    return loading


@pytest.fixture
def report(load: Load, tmp_path: Path) -> Report:
    """The lines about a text that does not load, without the directory of the file."""

    def reporting(
        text: str, environ: dict[str, str] | None = None, flags: dict[str, object] | None = None
    ) -> list[str]:
        with pytest.raises(SettingsError) as caught:
            load(text, environ, flags)
        return "\n".join(map(str, caught.value.errors)).replace(f"{tmp_path}/", "").splitlines()

    return reporting
