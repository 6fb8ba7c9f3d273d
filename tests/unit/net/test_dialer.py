"""An address is tried at every place its name resolves to, within a bound, and what went wrong is remembered."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from broker.net.dialer import connect
from broker.net.peer_table import BACKOFF_CAP, BACKOFF_FIRST, SPREAD, DialHistory
from broker.routing.address import NetworkAddress
from tests.support.played import PlayedLoop

ADDRESS = NetworkAddress("far.example", 4022)


def never() -> float:
    """Chance takes nothing off."""
    return 0.0


FIRST, SECOND = ("192.0.2.1", 4022), ("192.0.2.2", 4022)


class Sockets:
    """The sockets that were made, and what becomes of connecting each of them: None, an error, or silence."""

    def __init__(self, loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[tuple[str, int], OSError | str | None] = {}
        self.tried: list[tuple[str, int]] = []
        self.open: set[socket.socket] = set()
        monkeypatch.setattr(loop, "getaddrinfo", self._getaddrinfo)
        monkeypatch.setattr(loop, "sock_connect", self._sock_connect)
        monkeypatch.setattr(socket, "socket", self._make)

    def _make(self, *_: int) -> Any:
        sockets = self

        class Fake:
            def __init__(self) -> None:
                sockets.open.add(self)  # type: ignore[arg-type]

            def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - as the standard library has it
                assert not flag

            def close(self) -> None:
                sockets.open.remove(self)  # type: ignore[arg-type]

        return Fake()

    async def _getaddrinfo(self, host: str, port: int, *, type: int) -> list[tuple[Any, ...]]:  # noqa: A002
        assert ("far.example", 4022, socket.SOCK_STREAM) == (host, port, type)
        return [(socket.AF_INET, type, 6, "", where) for where in self.answers]

    async def _sock_connect(self, _sock: socket.socket, where: tuple[str, int]) -> None:
        self.tried.append(where)
        answer = self.answers[where]
        if answer == "silence":
            await asyncio.Event().wait()
        if isinstance(answer, OSError):
            raise answer


@pytest.fixture
def sockets(loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> Sockets:
    return Sockets(loop, monkeypatch)


def refused() -> OSError:
    return OSError(errno.ECONNREFUSED, "Connect call failed somewhere")


async def test_first_place_that_answers_is_taken(sockets: Sockets) -> None:
    sockets.answers = {FIRST: None, SECOND: None}

    sock, where = await connect(ADDRESS, timeout=10)

    assert (FIRST, [FIRST], {sock}) == (where, sockets.tried, sockets.open)


@pytest.mark.parametrize("make_answer", [refused, lambda: "silence"], ids=["refused", "silent"])
async def test_place_that_does_not_answer_does_not_hide_the_next(
    make_answer: Callable[[], Any], sockets: Sockets, loop: PlayedLoop
) -> None:
    sockets.answers = {FIRST: make_answer(), SECOND: None}

    sock, where = await connect(ADDRESS, timeout=10)

    assert (SECOND, [FIRST, SECOND], {sock}) == (where, sockets.tried, sockets.open)
    assert loop.time() <= 5


async def test_last_refusal_is_told_in_the_systems_words(sockets: Sockets) -> None:
    sockets.answers = {FIRST: refused()}

    with pytest.raises(OSError, match=os.strerror(errno.ECONNREFUSED)):
        await connect(ADDRESS, timeout=10)

    assert set() == sockets.open


async def test_silence_everywhere_ends_with_the_timeout(sockets: Sockets, loop: PlayedLoop) -> None:
    sockets.answers = {FIRST: "silence", SECOND: "silence"}

    with pytest.raises(OSError, match="no connection within 10 s"):
        await connect(ADDRESS, timeout=10)

    assert loop.time() == pytest.approx(10, abs=0.1)
    assert set() == sockets.open


async def test_name_that_resolves_to_nothing_is_told(sockets: Sockets) -> None:
    with pytest.raises(OSError, match=r"far\.example resolves to nothing"):
        await connect(ADDRESS, timeout=10)


async def test_cancelled_attempt_leaves_no_socket(sockets: Sockets) -> None:
    sockets.answers = {FIRST: "silence"}
    attempt = asyncio.ensure_future(connect(ADDRESS, timeout=10))
    await asyncio.sleep(1)

    attempt.cancel()

    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert set() == sockets.open


def test_waits_double_up_to_a_bound() -> None:
    attempts = DialHistory()

    waits = [attempts.failed("refused", 100.0, never) for _ in range(40)]

    assert [BACKOFF_FIRST, 2 * BACKOFF_FIRST, 4 * BACKOFF_FIRST] == waits[:3]
    assert {BACKOFF_CAP} == set(waits[7:])
    assert (40, 100.0 + BACKOFF_CAP, "refused") == (attempts.failures, attempts.suppressed_until, attempts.problem)


def test_many_that_fail_at_one_instant_do_not_try_again_in_step() -> None:
    waits = [DialHistory().failed("refused", 100.0) for _ in range(1000)]

    assert all((1.0 - SPREAD) * BACKOFF_FIRST <= wait <= BACKOFF_FIRST for wait in waits)
    assert len(set(waits)) > 900
    tenths = {int(10 * (BACKOFF_FIRST - wait) / (SPREAD * BACKOFF_FIRST)) for wait in waits}
    assert tenths >= set(range(10))


def test_success_holds_nothing_against_the_address() -> None:
    attempts = DialHistory()
    attempts.failed("refused", 100.0)

    attempts.succeeded()

    assert DialHistory() == attempts


def test_address_that_nobody_tried_for_long_begins_with_the_shortest_wait() -> None:
    attempts = DialHistory()
    for _ in range(10):
        attempts.failed("refused", 100.0, never)

    assert BACKOFF_CAP == attempts.failed("refused", 100.0 + 3 * BACKOFF_CAP, never)
    assert BACKOFF_FIRST == attempts.failed("refused", attempts.suppressed_until + 2 * BACKOFF_CAP + 1, never)
    assert (12, "refused") == (attempts.failures, attempts.problem)
