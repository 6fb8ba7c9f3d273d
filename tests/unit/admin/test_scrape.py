"""However many scrape at once, the work is that of two."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.admin.health import Scrapes
from broker.daemon.instance import Instance

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as one:
        yield one


@pytest.fixture
async def scrapes(instance: Instance, executor: ThreadPoolExecutor) -> Scrapes:
    return Scrapes(instance, executor)


async def test_storm_of_scrapes_makes_two_texts(scrapes: Scrapes, executor: ThreadPoolExecutor) -> None:
    """The first is under way when the others come, and they share the second."""
    gate = threading.Event()
    executor.submit(gate.wait)
    first = asyncio.create_task(scrapes.text(""))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    others = [asyncio.create_task(scrapes.text("")) for _ in range(100)]
    await asyncio.sleep(0)
    gate.set()
    texts = await asyncio.gather(first, *others)

    assert scrapes.made == 2
    assert len({id(body) for body, _ in texts}) == 2


async def test_text_is_as_of_after_the_request(scrapes: Scrapes, instance: Instance) -> None:
    await scrapes.text("")
    instance.is_ready = False

    body, _ = await scrapes.text("")

    assert b"\nbroker_ready 0.0\n" in body


async def test_each_form_has_a_text_of_its_own(scrapes: Scrapes) -> None:
    answers = await asyncio.gather(scrapes.text(""), scrapes.text(OPENMETRICS))

    assert [False, True] == [body.endswith(b"# EOF\n") for body, _ in answers]


async def test_who_goes_away_takes_nobody_s_text(scrapes: Scrapes, executor: ThreadPoolExecutor) -> None:
    gate = threading.Event()
    executor.submit(gate.wait)
    one, other = (asyncio.create_task(scrapes.text("")) for _ in range(2))
    await asyncio.sleep(0)

    one.cancel()
    gate.set()
    body, _ = await other

    assert b"broker_ready" in body
    assert scrapes.made == 1


async def test_failure_is_told_to_who_asked_and_not_kept(scrapes: Scrapes, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(scrapes._exposition, "render", fail)
        with pytest.raises(ZeroDivisionError):
            await scrapes.text("")

    body, _ = await scrapes.text("")

    assert b"broker_ready" in body
