"""What tests of status, metrics and views share: instances that really run, and a condition to wait for."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.daemon.instance import Instance, serve
from broker.protocol.frame import Header, encode_dialog
from tests.support.shop import Shop
from tests.unit.admin.conftest import ask, configuration, instance  # noqa: F401 - fixtures

DEAD = "tcp://127.0.0.1:1"  # nobody listens there


class Nowhere:
    """An origin of frames that nobody advises."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    def reject(self, *_: object) -> None:
        """Nobody hears it."""


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts an instance with one database of its own name, queue Q and service //NAME, and further statements."""
    async with AsyncExitStack() as stack:

        async def starting(name: str, script: str = "", *, msdb: str = "", forwarding: bool = True) -> Instance:
            directory = tmp_path / name
            directory.mkdir()
            (directory / "own.sql").write_text(f"CREATE QUEUE Q; CREATE SERVICE [//{name}] ON QUEUE Q; {script}")
            (directory / "msdb.sql").write_text(f"DROP ROUTE AutoCreatedLocal; {msdb}")
            path = directory / "broker.toml"
            path.write_text(
                f'instance = {{ name = "{name}", state_dir = "." }}\n'
                f'endpoint = {{ listen = ["127.0.0.1:0"], message_forwarding = {str(forwarding).lower()} }}\n'
                f'databases.{name} = {{ path = "{name}.db", scripts = ["own.sql"] }}\n'
                'routes = { files = ["msdb.sql"] }\n'
                'observe = { listen = "" }\n'
                'drain = { timeout = "0s" }\n'
            )
            return await stack.enter_async_context(serve(path))

        yield starting


@pytest.fixture
def send() -> Callable[..., bytes]:
    """Begins a dialog and sends messages as an application does; its conversation handle."""

    def sending(instance: Instance, to_service: str, *, messages: int = 1) -> bytes:  # noqa: F811
        name = instance.name
        with closing(sqlite3.connect(instance.endpoints[name].path)) as db, db:
            dialog = broker.begin_dialog(db, from_service=f"//{name}", to_service=to_service)
            for _ in range(messages):
                dialog.send(b"x")
            return dialog.conversation_handle.bytes

    return sending


@pytest.fixture
def take() -> Callable[..., None]:
    """Gives dialog frames to the pass of an instance as if they had come from a peer."""

    def taking(instance: Instance, **fields: Any) -> None:  # noqa: F811
        header: dict[str, Any] = {
            "kind": 0x10,
            "flags": 0,
            "message_id": bytes(15) + b"\1",
            "conversation_id": bytes(15) + b"\2",
            "to_service": "//far",
            "from_service": "//near",
            "from_broker_instance": bytes(15) + b"\3",
        }
        frame = encode_dialog(Header(**header | fields), b"body")
        forwarder = instance.forwarder
        forwarder.slab[: len(frame)] = frame
        forwarder.forward(forwarder.slab, len(frame), asyncio.get_running_loop().time(), Nowhere())

    return taking


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A database with services, and hands that write into it."""
    with closing(Shop(tmp_path / "shop.db")) as shop:
        yield shop
