import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import aiohttp
import pytest

from broker.admin import events
from broker.admin.events import STREAMS_MAX, Events, Latency, Stream, quantile
from broker.daemon.instance import Instance, serve
from broker.forwarding.latency import BOUNDS
from broker.observe.stream import Counters, StatsStream
from tests.support.admin import request, speak
from tests.support.loopback import until

SECONDS = 30.0


class Event(NamedTuple):
    name: str
    number: str
    told: Any


class Listener:
    """A client that hears events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self, name: str = "") -> Event:
        """The next event, of this name where one is given."""
        while True:
            async with asyncio.timeout(SECONDS):
                text = (await self.response.content.readuntil(b"\n\n")).decode()
            fields = dict(line.split(": ", 1) for line in text.strip().split("\n"))
            if fields.get("event", "") and name in {"", fields["event"]}:
                return Event(fields["event"], fields.get("id", ""), json.loads(fields["data"]))


@asynccontextmanager
async def listening(
    instance: Instance, query: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[Listener]:
    connector = aiohttp.UnixConnector(str(instance.settings.admin.socket))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"http://localhost/v1/events{query}", headers=headers or {}) as response,
    ):
        yield Listener(response)


def events_of(instance: Instance) -> Events:
    return instance.admin.events


async def test_the_past_comes_first_and_then_what_is_now(instance: Instance) -> None:
    async with listening(instance) as listener:
        first, second, third = [await listener.next() for _ in range(3)]

    assert ["history", "pulse", "pulse"] == [first.name, second.name, third.name]
    assert "text/event-stream" == listener.response.headers["Content-Type"]
    assert len(first.told["columns"]) == len(first.told["rows"][0])
    assert ("one", second.number) == (second.told["instance"]["name"], second.told["id"])
    assert third.told["rates"]["received"] == 0.0


async def test_who_comes_again_is_told_only_what_it_missed(instance: Instance) -> None:
    async with listening(instance) as listener:
        heard = await listener.next("history")
        await until(lambda: events_of(instance).history.number >= len(heard.told["rows"]) + 2)
    async with (
        listening(instance, headers={"Last-Event-ID": heard.number}) as by_header,
        listening(instance, f"?since={heard.number}") as by_query,
        listening(instance, "?since=another-1") as of_another_run,
    ):
        missed = [await one.next("history") for one in (by_header, by_query, of_another_run)]

    whole = len(missed[2].told["rows"])
    assert [whole - len(heard.told["rows"])] * 2 == [len(one.told["rows"]) for one in missed[:2]]


async def test_an_id_that_is_none_of_ours_is_no_error_and_the_past_may_be_left_out(instance: Instance) -> None:
    for since in ("", "-", "x", "-1", "1-", "1-²", "1-99999999999999999999", "%F0%9F%98%80"):
        async with listening(instance, f"?since={since}") as listener:
            assert (await listener.next("history")).told["rows"]
    async with listening(instance, "?history=false") as listener:
        assert "pulse" == (await listener.next()).name


async def test_a_snapshot_is_made_once_for_all_and_none_while_nobody_listens(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = Mock(wraps=StatsStream().next)
    monkeypatch.setattr(StatsStream, "next", lambda _, *parts, **problems: snapshots(*parts, **problems))
    async with AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(listening(instance, "?history=false")) for _ in range(10)]
        for listener in listeners:
            await listener.next("pulse")
        before = snapshots.call_count
        for listener in listeners:
            await listener.next("pulse")
        assert snapshots.call_count - before <= 2
    await until(lambda: not events_of(instance).streams)
    noted = events_of(instance).history.number
    snapshots.reset_mock()

    await until(lambda: events_of(instance).history.number >= noted + 2)

    snapshots.assert_not_called()


async def test_what_was_read_of_a_file_for_a_client_that_has_gone_is_not_shown_to_the_next(instance: Instance) -> None:
    first = []
    for _ in range(2):
        async with listening(instance) as listener:
            pulse = await listener.next("pulse")
            first.append([one["what"] for one in pulse.told["verdict"]["findings"]])
            while pulse.told["databases"]["rows"][0]["waiting_messages"] is None:
                pulse = await listener.next("pulse")
        await until(lambda: not events_of(instance).streams)

    assert all("the file of orders is not read yet: its messages are not known" in whats for whats in first)


async def test_one_caller_has_so_many_streams_and_others_theirs(instance: Instance) -> None:
    events = events_of(instance)
    others = {Stream("somebody else") for _ in range(STREAMS_MAX)}
    events.streams |= others
    async with AsyncExitStack() as stack:
        for _ in range(STREAMS_MAX):
            listener = await stack.enter_async_context(listening(instance))
            await listener.next("history")
        async with listening(instance) as one_more:
            assert (503, "5") == (one_more.response.status, one_more.response.headers["Retry-After"])
    await until(lambda: events.streams == others)
    async with listening(instance) as listener:
        assert "history" == (await listener.next()).name
    events.streams -= others


async def test_who_reads_nothing_is_cut_off_and_holds_little(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is full; the others go on hearing."""
    monkeypatch.setattr(events, "STUCK_SECONDS", 0.5)
    monkeypatch.setattr(events, "SNAPSHOT_SECONDS", 0.02)
    for number in range(3000):
        events_of(instance).history.record(Counters(), {"loop_lag_s": 0.1}, at=float(number), now=float(number))
    reader, writer = await asyncio.open_unix_connection(str(instance.settings.admin.socket), limit=1024)
    writer.write(request("GET", "/v1/events", {"Connection": "keep-alive"}))
    async with listening(instance) as other:
        await until(lambda: len(events_of(instance).streams) == 2)
        await until(lambda: len(events_of(instance).streams) == 1, seconds=60)
        assert "pulse" == (await other.next("pulse")).name
    writer.transport.abort()
    assert reader is not None


async def test_a_stream_that_is_old_ends_and_may_be_asked_for_again(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "STREAM_SECONDS", 0.2)
    head = await speak(instance.settings.admin.socket, request("HEAD", "/v1/events"))
    assert b" 405 " in head.split(b"\r\n")[0]

    async with listening(instance) as listener:
        end = await listener.next("end")

    assert "this stream is old: listen again" == end.told["reason"]


async def test_those_who_listen_are_told_that_the_instance_stops(configuration: Path) -> None:
    async with AsyncExitStack() as stack:
        instance = await stack.enter_async_context(serve(configuration))
        listener = await stack.enter_async_context(listening(instance))
        await listener.next("pulse")
        events_of(instance).close()

        end = await listener.next("end")

        async with listening(instance) as late:
            assert 503 == late.response.status
    assert "the instance stops" == end.told["reason"]


async def test_a_costly_snapshot_makes_the_next_one_wait(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes 3 ms of the processor is made every 0.3 seconds: a hundredth of one core."""
    ticks = count()
    monkeypatch.setattr(events, "SNAPSHOT_SECONDS", 0.01)
    monkeypatch.setattr(time, "thread_time", lambda: 0.003 * next(ticks))
    async with listening(instance, "?history=false") as listener:
        await listener.next("pulse")
        before = time.monotonic()
        for _ in range(2):
            await listener.next("pulse")

    assert 0.45 < time.monotonic() - before


NONE = [0.0] * (len(BOUNDS) + 1)


def histogram(**counts: int) -> list[float]:
    """Counts by place: `at4=10` are ten in the fifth bucket."""
    return [counts.get(f"at{place}", 0) for place in range(len(NONE))]


@pytest.mark.parametrize(
    ("counts", "part", "seconds"),
    [
        (histogram(at0=10), 0.5, BOUNDS[0] / 2),
        (histogram(at4=10), 1.0, BOUNDS[4]),
        (histogram(at4=10), 0.5, (BOUNDS[3] + BOUNDS[4]) / 2),
        (histogram(at0=99, at9=1), 0.99, BOUNDS[0]),
        (histogram(at0=98, at9=2), 0.99, (BOUNDS[8] + BOUNDS[9]) / 2),
        (histogram(at20=3), 0.5, BOUNDS[-1]),
    ],
)
def test_a_quantile_lies_in_the_bucket_where_its_rank_falls(counts: list[float], part: float, seconds: float) -> None:
    assert pytest.approx(seconds) == quantile(counts, part)


def test_only_what_is_new_counts() -> None:
    latency = Latency()
    first = latency.update(histogram(at10=1000))

    second = latency.update(histogram(at0=4, at10=1000))
    third = latency.update(histogram(at0=4, at10=1000))

    assert ((None, None), (None, None)) == (first, third)
    assert all(seconds is not None and seconds <= BOUNDS[0] for seconds in second)
