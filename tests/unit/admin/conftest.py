"""What tests of the admin API share: a small instance that really runs, and requests to it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.daemon.instance import Instance, serve
from tests.support import admin

CONFIGURATION = """
[instance]
name = "one"
state_dir = "."
[endpoint]
listen = ["127.0.0.1:0"]
message_forwarding = true
[databases.orders]
path = "orders.db"
[drain]
announce = "0s"
[admin]
listen = "127.0.0.1:0"
loopback_role = "admin"
[observe]
listen = "127.0.0.1:0"
"""

Ask = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """The file of an instance with one database and every listener on a free port."""
    path = tmp_path / "broker.toml"
    path.write_text(CONFIGURATION)
    return path


@pytest.fixture
async def instance(configuration: Path) -> AsyncIterator[Instance]:
    """The instance, running."""
    async with serve(configuration) as running:
        yield running


@pytest.fixture
def ask(instance: Instance) -> Ask:
    """Asks the admin API over its Unix socket: method, target, body -> status and what the JSON says."""

    async def asking(method: str, target: str, body: object = None) -> tuple[int, Any]:
        answer = await admin.ask(instance.settings.admin.socket, method, target, body=body)
        return answer.status, answer.told

    return asking
