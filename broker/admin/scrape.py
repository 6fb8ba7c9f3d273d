"""
Scrapes that come together share one text.

A text of many series takes a while to make, in a thread, and what belongs to the loop is copied on the loop before. So
one is made at a time; who comes while it is made waits for the next one, which is as of after the request, and all who
wait have the same. However many ask at once, the work is that of two.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial

from prometheus_client.exposition import choose_encoder

from broker.observe.instance import Running
from broker.observe.metrics import Exposition, read_metrics


class Scrapes:
    """
    The texts of one instance. Loop-only.

    Args:
        instance: Whose metrics they are.
        executor: Makes them; has one thread, because what is remembered from text to text is touched by it alone.

    Shape: `made` texts since the start.
    """

    def __init__(self, instance: Running, executor: Executor) -> None:
        self.made = 0
        self._instance = instance
        self._executor = executor
        self._exposition = Exposition()
        self._turn = asyncio.Lock()
        self._waiting: dict[str, asyncio.Task[tuple[bytes, str]]] = {}

    async def text(self, accept: str) -> tuple[bytes, str]:
        """
        A text that is as of now or later, and its content type.

        Args:
            accept: The header field of the request; decides between Prometheus text and OpenMetrics.
        """
        _, form = choose_encoder(accept)
        making = self._waiting.get(form)
        if making is None:
            making = asyncio.get_running_loop().create_task(self._make(form, accept), name="scrape")
            self._waiting[form] = making
        return await asyncio.shield(making)  # one who goes away leaves the others their text

    async def _make(self, form: str, accept: str) -> tuple[bytes, str]:
        async with self._turn:
            del self._waiting[form]  # who asks from now on wants the next one
            render = partial(self._exposition.render, await read_metrics(self._instance), accept)
            self.made += 1
            return await asyncio.get_running_loop().run_in_executor(self._executor, render)
