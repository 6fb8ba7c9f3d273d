"""However many peers, routes and services there are, a scrape stays as large as the bound on labels makes it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker.observe.samples import OTHER, VALUES_MAX
from broker.routing.address import NetworkAddress
from tests.support.scraped import Scraped, samples_of, text_of

MANY = 10_000
BYTES_MAX = 4 * 1024 * 1024  # of the text, with every label full


async def test_ten_thousand_of_everything_are_five_hundred_and_the_rest(start: Any) -> None:
    routes = "".join(
        f"CREATE ROUTE r{n} WITH SERVICE_NAME = '//far/{n}', ADDRESS = 'tcp://10.{n // 250}.0.{n % 250 + 1}:4022';"
        for n in range(MANY)
    )
    instance = await start("near", msdb=routes)
    endpoint = instance.endpoints["near"]
    endpoint.delivered.update({f"//s{n}": 1 for n in range(MANY)})
    endpoint.transmitter.resent_to.update({f"tcp://p{n}:1": 1 for n in range(MANY)})
    for n in range(MANY):
        endpoint.transmitter.round_trips[NetworkAddress(f"p{n}", 1), 5] = 1
    instance.peers.frame_counts._closed.update({f"peer {n}": Counter({0x10: 1}) for n in range(MANY)})
    scraped = Scraped(instance)

    samples = await samples_of(instance, scraped)
    again = await text_of(scraped)

    for metric, parts in {
        "broker_messages_delivered_total": 1,
        "broker_retransmits_total": 1,
        "broker_ack_roundtrip_seconds_count": 1,
    }.items():
        assert len(samples[metric]) == (VALUES_MAX + 1) * parts
        assert samples[metric][OTHER,] == MANY - VALUES_MAX
    assert len(samples["broker_route_up"]) <= 2 * VALUES_MAX + 1
    assert sum(samples["broker_messages_received_total"].values()) >= MANY
    assert len({peer for peer, _ in samples["broker_messages_received_total"]}) <= VALUES_MAX + 2
    assert samples["broker_metrics_label_overflow_total"][()] > 3 * (MANY - VALUES_MAX)
    assert len(again) < BYTES_MAX
