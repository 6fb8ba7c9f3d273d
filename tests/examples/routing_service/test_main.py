"""The command of the routing service: what it answers from, and how wrong usage is refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.store.sqlite.database import open_store
from broker.store.sqlite.metadata import put_queue
from broker.store.sqlite.transaction import writing
from examples.routing_service.__main__ import main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "give.sql"
    path.write_text("CREATE ROUTE a WITH SERVICE_NAME = 'a', ADDRESS = 'tcp://a:4022';")
    return path


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    with closing(open_store(path)) as db, writing(db):
        put_queue(db, "OrdersQueue", is_receive_enabled=True)
    return path


def answer(shop: Path, *more: object, queue: str = "OrdersQueue") -> Any:
    arguments = ["-d", shop, "--queue", queue, "--requester", "none.sock", "--once", *more]
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:5353", "[::1]:5353", "::1"])
def test_an_empty_queue_is_answered(shop: Path, file: Path, address: str) -> None:
    assert 0 == answer(shop, "--from", file).exit_code
    assert 0 == answer(shop, "--srv", "--nameserver", address).exit_code


def test_what_is_not_there_or_is_bad_is_told(shop: Path, file: Path) -> None:
    nothing, absent = answer(shop), answer(shop, "--from", file, queue="None")
    file.write_text("CREATE ROUTE a WITH ADDRESS = 'LOCAL';")
    bad = answer(shop, "--from", file)

    assert [2, 3, 1] == [result.exit_code for result in (nothing, absent, bad)]
    assert "--from FILE or --srv" in nothing.stderr
    assert f"{file}:1:" in bad.stderr
