"""Who asks for routes, on virtual time: once per name, again after a rest, never more than the bound."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from unittest import mock

import pytest
from structlog.testing import capture_logs

from broker.dialog import route_requests as module
from broker.dialog.route_requests import (
    FAILURE_PAUSE,
    LOOK_SECONDS,
    RETRY_SECONDS,
    Ending,
    Inquirer,
    Inquiry,
    Progress,
    Request,
    group_of,
)
from broker.errors import DemotedError
from broker.wire.layout import NO_GUID
from tests.support.virtual_time import WALL_CLOCK, virtual_time

T = TypeVar("T")
NAME = "//shop/Billing"


class Store:
    """
    What the writer thread would do.

    Shape: `begun` what was asked for so far; `kept` requests from before; `endings` told at the next look; `fails` as
    many times, with this `error`; `looks` so far.
    """

    def __init__(self) -> None:
        self.begun: list[Inquiry] = []
        self.kept: list[Request] = []
        self.endings: list[Ending] = []
        self.fails = 0
        self.error: Exception = sqlite3.OperationalError("disk full")
        self.looks = 0
        self.handles: dict[str, uuid.UUID] = {}

    async def in_writer(self, work: Callable[[Any], T]) -> T:
        await asyncio.sleep(0.01)
        if self.fails:
            self.fails -= 1
            raise self.error
        return work(self)

    def ask(self, inquiries: Any, _known: Any) -> Progress:
        self.looks += 1
        progress = Progress(endings=self.endings)
        self.endings = []
        for inquiry in inquiries:
            self.begun.append(inquiry)
            handle = self.handles[inquiry.service_name] = uuid.uuid4()
            progress.begun.append(Request(handle, group_of(inquiry.service_name), WALL_CLOCK))
        return progress

    def end(self, name: str, code: int = 0, description: str = "") -> None:
        self.endings.append(Ending(self.handles[name], code, description))


@asynccontextmanager
async def running(store: Store, inquirer: Inquirer | None = None) -> AsyncIterator[Inquirer]:
    inquirer = inquirer or Inquirer("shop", store.in_writer)
    with (
        mock.patch.object(module, "ask_in_writer", lambda store, inquiries, known: store.ask(inquiries, known)),
        mock.patch.object(module, "open_requests_in_writer", lambda store: store.kept),
    ):
        task = asyncio.create_task(inquirer.run())
        try:
            await asyncio.sleep(0.1)
            yield inquirer
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def ask(inquirer: Inquirer, *names: str) -> None:
    for name in names:
        inquirer.ask(name, NO_GUID)
    await asyncio.sleep(0.1)


async def answer(inquirer: Inquirer, store: Store, *, code: int = 0, description: str = "") -> None:
    store.end(NAME, code, description)
    inquirer.look()
    await asyncio.sleep(0.1)


@virtual_time
async def test_however_many_wait_one_request_is_made_for_a_name() -> None:
    store = Store()
    async with running(store) as inquirer:
        await ask(inquirer, NAME, NAME, "//other", NAME)
        await ask(inquirer, NAME)

        assert [Inquiry(NAME), Inquiry("//other")] == store.begun
        assert "asked 2025-06-15 15:06:40 UTC, not answered yet" == inquirer.status(NAME)


@virtual_time
async def test_the_broker_instance_is_told_when_the_dialog_names_one() -> None:
    store, instance = Store(), uuid.uuid4()
    async with running(store) as inquirer:
        inquirer.ask(NAME, instance.bytes)
        await asyncio.sleep(0.1)

        assert [Inquiry(NAME, instance)] == store.begun


@virtual_time
async def test_without_an_answer_there_is_never_another_request() -> None:
    store = Store()
    async with running(store) as inquirer:
        for _ in range(100):
            await ask(inquirer, NAME)
            await asyncio.sleep(3600)

        assert [Inquiry(NAME)] == store.begun
        assert 1 == inquirer.requests


@pytest.mark.parametrize("code", [0, 7])
def test_after_an_answer_the_same_is_asked_again_only_after_a_rest(code: int) -> None:
    @virtual_time
    async def test() -> None:
        store = Store()
        async with running(store) as inquirer:
            await ask(inquirer, NAME)
            await answer(inquirer, store, code=code, description="why")
            await asyncio.sleep(RETRY_SECONDS - 1)
            await ask(inquirer, NAME)
            early = len(store.begun)
            await asyncio.sleep(1)
            await ask(inquirer, NAME)

            assert (1, 2) == (early, len(store.begun))
            assert (1, bool(code)) == (inquirer.answers, inquirer.failures)

    test()


@virtual_time
async def test_what_nobody_wants_any_more_is_not_asked_again() -> None:
    store = Store()
    async with running(store) as inquirer:
        await ask(inquirer, NAME)
        await answer(inquirer, store, code=7)
        await asyncio.sleep(100 * RETRY_SECONDS)

        assert 1 == len(store.begun)
        assert "about to be asked" == inquirer.status(NAME)


@virtual_time
async def test_a_failure_is_logged_with_number_name_code_and_reason() -> None:
    store = Store()
    async with running(store) as inquirer:
        await ask(inquirer, NAME)
        with capture_logs() as logs:
            await answer(inquirer, store, code=7, description="unheard of")

        (told,) = [line for line in logs if line["log_level"] == "warning"]
        assert (9761, NAME, 7, "unheard of") == (told["number"], told["service"], told["code"], told["reason"])
        assert "the request failed: unheard of (7); asked again in 10 s" == inquirer.status(NAME)


@virtual_time
async def test_an_answer_that_did_not_help_is_told() -> None:
    store = Store()
    async with running(store) as inquirer:
        await ask(inquirer, NAME)
        await answer(inquirer, store)

        assert inquirer.status(NAME).startswith("answered, and there is still no route")


@virtual_time
async def test_requests_of_an_earlier_life_are_not_made_again() -> None:
    store = Store()
    store.handles[NAME] = uuid.uuid4()
    store.kept = [Request(store.handles[NAME], group_of(NAME), WALL_CLOCK)]
    async with running(store) as inquirer:
        await ask(inquirer, NAME)
        assert [] == store.begun
        assert "not answered yet" in inquirer.status(NAME)

        await answer(inquirer, store)
        await asyncio.sleep(RETRY_SECONDS)
        await ask(inquirer, NAME)
        assert [Inquiry(NAME)] == store.begun


@virtual_time
async def test_what_is_asked_before_the_file_was_read_is_not_asked_twice() -> None:
    store = Store()
    store.kept = [Request(uuid.uuid4(), group_of(NAME), WALL_CLOCK)]
    inquirer = Inquirer("shop", store.in_writer)
    inquirer.ask(NAME, NO_GUID)
    async with running(store, inquirer):
        assert [] == store.begun
        assert "not answered yet" in inquirer.status(NAME)


@virtual_time
async def test_open_requests_are_looked_at_even_when_nothing_arrives() -> None:
    """An administrator may have ended one."""
    store = Store()
    async with running(store) as inquirer:
        await ask(inquirer, NAME)
        store.end(NAME)
        await asyncio.sleep(LOOK_SECONDS + 1)

        assert 1 == inquirer.answers


@virtual_time
async def test_nothing_is_looked_at_while_nothing_is_open() -> None:
    store = Store()
    async with running(store):
        await asyncio.sleep(100 * LOOK_SECONDS)

        assert 0 == store.looks


@virtual_time
async def test_what_the_store_could_not_take_is_asked_when_it_can() -> None:
    store = Store()
    async with running(store) as inquirer:
        store.fails = 3
        await ask(inquirer, NAME)
        await asyncio.sleep(4 * FAILURE_PAUSE)

        assert [Inquiry(NAME)] == store.begun


@virtual_time
@pytest.mark.parametrize(
    ("error", "told"),
    [(sqlite3.OperationalError("disk full"), ["disk full"]), (DemotedError("shop.db", "told by the turns"), [])],
)
async def test_arrivals_are_read_although_the_store_failed_first(error: Exception, told: list[str]) -> None:
    store = Store()
    async with running(store) as inquirer:
        store.fails, store.error = 1, error
        with capture_logs() as logs:
            inquirer.look()
            await asyncio.sleep(2 * FAILURE_PAUSE)

        assert 1 == store.looks
        assert told == [line["reason"] for line in logs if line["event"] == "store failed"]


@virtual_time
async def test_a_flood_of_invented_names_is_bounded_and_told_once() -> None:
    store = Store()
    with mock.patch.object(module, "REQUESTS_MAX", 10), capture_logs() as logs:
        async with running(store) as inquirer:
            await ask(inquirer, NAME, *(f"//invented/{number}" for number in range(1000)))
            assert 10 == len(store.begun)
            assert inquirer.is_full
            assert "not asked yet, because 10 other requests are open" == inquirer.status("//invented/999")

            await answer(inquirer, store)
            await ask(inquirer, "//late")
            assert 10 == len(store.begun)  # what was answered a moment ago counts as well
            await asyncio.sleep(RETRY_SECONDS)
            await ask(inquirer, "//late")
            assert Inquiry("//late") == store.begun[-1]

    assert 1 == sum("too many" in line["event"] for line in logs)


@virtual_time
async def test_a_name_that_xml_cannot_hold_is_not_asked_for() -> None:
    store = Store()
    async with running(store) as inquirer:
        await ask(inquirer, "\x00")

        assert [] == store.begun
        assert "cannot be written in XML" in inquirer.status("\x00")


@virtual_time
async def test_endings_of_what_nobody_asked_are_passed_over() -> None:
    store = Store()
    async with running(store) as inquirer:
        store.endings = [Ending(uuid.uuid4())]
        inquirer.look()
        await asyncio.sleep(0.1)

        assert 0 == inquirer.answers
