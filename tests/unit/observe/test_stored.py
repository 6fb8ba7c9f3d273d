"""What waits in the files of databases, as far as they can be read."""

from __future__ import annotations

from typing import Any

from tests.support.scraped import samples_of


async def test_file_that_cannot_be_read_is_left_out(start: Any) -> None:
    instance = await start("near")
    endpoint = instance.endpoints["near"]
    endpoint.path = endpoint.path.with_name("absent.db")

    samples = await samples_of(instance)

    assert not {"broker_transmission_queue_messages", "broker_ledger_messages"} & samples.keys()


async def test_transactions_are_timed(start: Any, send: Any, until: Any) -> None:
    target = await start("target", msdb="CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'")
    route = f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = 'tcp://127.0.0.1:{target.listeners[0].port}'"
    near = await start("near", route)
    send(near, "//target")
    await until(lambda: target.endpoints["target"].delivered["//target"])

    samples = await samples_of(target)

    assert samples["broker_store_commit_seconds_count"]["target",] >= 1
    assert 0 < samples["broker_store_commit_seconds_sum"]["target",] < 20
