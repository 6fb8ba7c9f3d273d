"""Metrics of an instance as a scraper sees them."""

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from broker.observe.metrics import METRICS, SECTIONS, Exposition
from broker.observe.snapshot import read_snapshot_in_steps

Samples = dict[tuple[str, ...], float]


class Scraped:
    """An instance that is scraped, more than once."""

    def __init__(self, instance: Any) -> None:
        self.exposition = Exposition()
        self._instance = instance

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """Body and content type."""
        return await asyncio.to_thread(
            self.exposition.render, await read_snapshot_in_steps(self._instance, SECTIONS), accept
        )


async def text_of(metrics: Scraped) -> str:
    """The text of one scrape."""
    body, _ = await metrics.scrape("")
    return body.decode()


async def samples_of(instance: Any, metrics: Scraped | None = None) -> dict[str, Samples]:
    """A scrape: by metric, the values by label values in the order of the contract; of a histogram its parts."""
    order = {name: metric.labels for metric in METRICS for name in metric.sample_names}
    text = await text_of(metrics or Scraped(instance))
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[label] for label in order[sample.name])
            labels += (sample.labels["le"],) if "le" in sample.labels else ()
            found.setdefault(sample.name, {})[labels] = sample.value
    return found
