"""What tests of workers share: the state directory of a gateway, and its settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.control.config import Settings
from broker.control.load import load_settings
from broker.net.listener import reserve
from broker.store.database import broker_instance, open_store
from broker.workers.message import Begin, pack_settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a gateway of two on a free port, which keeps its files in the test's directory."""
    environ = {
        "BROKER_INSTANCE__NAME": "g",
        "BROKER_INSTANCE__STATE_DIR": str(tmp_path),
        "BROKER_ENDPOINT__LISTEN": '["127.0.0.1:0"]',
        "BROKER_ENDPOINT__MESSAGE_FORWARDING": "true",
        "BROKER_ENDPOINT__WORKERS": "2",
        "BROKER_OBSERVE__LISTEN": "127.0.0.1:0",
        "BROKER_OBSERVE__LOG_FORMAT": "json",
    }
    return load_settings(None, environ=environ)


@pytest.fixture
def begin(settings: Settings, tmp_path: Path) -> Iterator[Begin]:
    """What a worker of it is told, its port kept and its msdb made."""
    db = open_store(tmp_path / "msdb.db")
    with reserve("127.0.0.1", 0) as sock:
        environ = {"BROKER_ENDPOINT__LISTEN": f'["127.0.0.1:{sock.getsockname()[1]}"]'}
        endpoint = load_settings(None, environ=environ).endpoint
        part = settings.endpoint.with_values({"listen": endpoint.listen})
        yield Begin(pack_settings(settings.with_values({"endpoint": part})), broker_instance(db))
    db.close()
