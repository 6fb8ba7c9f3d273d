"""A worker forwards by the routes that the supervisor has stored, and tells what it is asked."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from broker.errors import ListenFailedError
from broker.net.farewell import Left
from broker.routing.address import NetworkAddress
from broker.routing.facts import Facts
from broker.routing.route import SERVICE_BROKER, Route, row_of
from broker.store.database import open_store
from broker.store.metadata import put_queue, put_routes, put_service, queues
from broker.store.transaction import writing
from broker.wire.frame import GoAway, Hello
from broker.workers import worker
from broker.workers.message import (
    Begin,
    Leave,
    Load,
    Passed,
    Remains,
    Report,
    Rows,
    WorkerReport,
    pack_settings,
    unpack_settings,
)
from broker.workers.worker import Answers, serve
from tests.support.loopback import message, raw, until

decode = msgspec.msgpack.decode


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "configure_logging", lambda **_: None)


@pytest.fixture
async def answers(begin: Begin) -> AsyncIterator[Answers]:
    """A worker that serves in this process."""
    answers = Answers()
    assert decode(await answers(begin)) is None
    yield answers
    await answers.close()


def store_route(directory: Path, name: str) -> None:
    with closing(open_store(directory / "msdb.db")) as db, writing(db):
        put_routes(db, [row_of(Route(name, NetworkAddress("127.0.0.1", 1), remote_service_name=f"//{name}"))])


def port_of(begin: Begin) -> int:
    return unpack_settings(begin.settings).endpoint.listen[0].port


async def test_state_that_a_worker_tells_is_that_of_its_status(answers: Answers, begin: Begin) -> None:
    await answers(begin)

    with structlog.testing.capture_logs() as lines:
        answers.tell()

    [line] = lines
    assert ("instance state", True) == (line["event"], line["status"]["ready"])


async def test_worker_serves_on_the_port_under_the_identity_of_the_gateway(answers: Answers, begin: Begin) -> None:
    async with raw(NetworkAddress("127.0.0.1", port_of(begin)), name="peer") as peer:
        hello = await peer.hear(Hello)

    assert hello.instance == begin.broker_instance


async def test_two_share_the_port(answers: Answers, begin: Begin) -> None:
    other = Answers()

    assert decode(await other(begin)) is None

    await other.close()


async def test_new_routes_hold_once_they_are_loaded(answers: Answers, tmp_path: Path) -> None:
    store_route(tmp_path, "far")
    assert answers._begun is not None
    before = [route.name for route in answers._begun.forwarder.here.table]

    assert decode(await answers(Load())) is None

    assert (before, [route.name for route in answers._begun.forwarder.here.table]) == (
        ["AutoCreatedLocal"],
        ["AutoCreatedLocal", "far"],
    )


async def test_what_once_asked_for_routes_is_not_hosted_here(begin: Begin, tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "msdb.db")) as db, writing(db):
        put_queue(db, "Q", is_receive_enabled=True)
        put_service(db, SERVICE_BROKER, queues(db)["Q"].queue_id, frozenset())
    answers = Answers()
    await answers(begin)
    assert answers._begun is not None

    hosted = answers._begun.forwarder.here.hosted.services_of

    assert not hosted
    await answers.close()


async def test_report_rows_and_passage_tell_what_came(answers: Answers, begin: Begin, tmp_path: Path) -> None:
    store_route(tmp_path, "far")
    await answers(Load())
    assert answers._begun is not None
    forwarder = answers._begun.forwarder
    async with raw(NetworkAddress("127.0.0.1", port_of(begin)), name="peer") as peer:
        await peer.say(message("//far"))
        await until(lambda: forwarder.pool.frames)

        report = decode(await answers(Report()), type=WorkerReport)
        (connection,) = decode(await answers(Rows("sys.dm_broker_connections")))
        (held,) = decode(await answers(Rows("sys.dm_broker_forwarded_messages")))
        passed = decode(await answers(Passed()), type=list[Facts])

    assert report.status["forwarding"]["held"] == 1
    assert [one.address for one in report.reached] == [NetworkAddress("127.0.0.1", 1)]
    assert NetworkAddress("127.0.0.1", port_of(begin)) in report.own
    assert report.samples["broker_messages_received_total"] == [(("peer", "message"), 1.0)]
    assert "peer" in connection
    assert "//far" in held
    assert [facts.to_service for facts in passed] == ["//far"]


async def test_nothing_is_answered_before_the_beginning() -> None:
    with pytest.raises(RuntimeError, match="before it has begun"):
        await Answers()(Report())


async def test_worker_that_cannot_begin_says_why_and_ends(begin: Begin) -> None:
    answers = Answers()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = unpack_settings(begin.settings)
        listen = settings.endpoint.listen[0]
        taken_one = type(listen)(listen.host, taken.getsockname()[1])
        endpoint = settings.endpoint.with_values({"listen": (taken_one,)})
        bad = Begin(pack_settings(settings.with_values({"endpoint": endpoint})), begin.broker_instance)
        with pytest.raises(ListenFailedError):
            await answers(bad)

    assert answers.stopping.is_set()
    assert not answers.has_begun
    await answers.close()


async def test_worker_tells_its_state_in_the_log_when_a_signal_asks_and_endures_others() -> None:
    """SIGUSR1 tells; a SIGHUP that was meant for the supervisor, and SIGUSR2, do nothing."""
    ours, theirs = socket.socketpair()
    with structlog.testing.capture_logs() as lines:
        serving = asyncio.create_task(serve(theirs))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        await until(lambda: lines)

        ours.close()
        await asyncio.wait_for(serving, 10)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        asyncio.get_running_loop().remove_signal_handler(number)
    assert [("instance state", {"ready": False})] == [(one["event"], one["status"]) for one in lines]


@pytest.mark.parametrize("how", ["end of the supervisor", "SIGTERM"])
async def test_worker_ends_with(how: str) -> None:
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(serve(theirs))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    if how == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        ours.close()

    await asyncio.wait_for(serving, 10)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    ours.close()


def test_process_is_told_its_number_and_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []

    async def serving(sock: socket.socket) -> None:
        served.append(sock)

    monkeypatch.setattr(worker, "serve", serving)
    ours, theirs = socket.socketpair()
    descriptor = theirs.detach()

    with ours, structlog.contextvars.bound_contextvars():
        worker.main(["2", str(descriptor)])
        bound = structlog.contextvars.get_contextvars()
        structlog.contextvars.unbind_contextvars("worker")

    assert [descriptor] == [sock.fileno() for sock in served]
    assert bound["worker"] == 2
    served[0].close()


async def test_worker_that_is_told_to_leave_tells_its_peers_and_what_is_left(answers: Answers, begin: Begin) -> None:
    async with raw(NetworkAddress("127.0.0.1", port_of(begin)), name="peer") as peer:
        await peer.hear(Hello)

        assert decode(await answers(Leave(5.0))) is None
        goaway = await peer.hear(GoAway)
        left = decode(await answers(Remains()), type=Left)

    assert "the instance drains" == goaway.reason
    assert 0 < goaway.deadline_ms <= 5000
    assert (0, 1) == (left.held, left.peers)
