"""Snapshots as they come, from a daemon that comes and goes."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

from broker.admin.client import ProblemError
from broker.cli.top_news import News
from broker.errors import BrokerError, DaemonUnreachableError

SECONDS = 20.0


class Daemon:
    """Gives what is put into it: a snapshot, an error, or None for the end of the stream. Shape: `asked` how often."""

    def __init__(self, *given: dict[str, Any] | BrokerError | None) -> None:
        self.given: queue.Queue[dict[str, Any] | BrokerError | None] = queue.Queue()
        self.asked = 0
        for one in given:
            self.given.put(one)

    def listen(self) -> Iterator[dict[str, Any]]:
        self.asked += 1
        while (one := self.given.get(timeout=SECONDS)) is not None:
            if isinstance(one, BrokerError):
                raise one
            yield one


def test_the_newest_snapshot_is_known() -> None:
    daemon = Daemon({"n": 1}, {"n": 2})
    news = News(daemon.listen)
    news.start()

    assert news.wait(after=1, seconds=SECONDS)
    assert ({"n": 2}, 2, "") == (news.pulse, news.number, news.problem)
    news.stop()
    daemon.given.put(None)


def test_a_daemon_that_goes_away_is_asked_again_until_it_is_back() -> None:
    daemon = Daemon({"n": 1}, DaemonUnreachableError("x", "refused"), None, {"n": 2})
    news = News(daemon.listen)
    news.start()

    assert news.wait(after=1, seconds=SECONDS)
    assert ({"n": 2}, "", 3) == (news.pulse, news.problem, daemon.asked)
    news.stop()
    daemon.given.put(None)


def test_a_daemon_that_was_never_there_is_not_waited_for() -> None:
    error = DaemonUnreachableError("x", "refused")
    news = News(Daemon(error).listen)
    news.start()

    assert not news.wait(after=0, seconds=SECONDS)
    assert ("refused", error, False) == (news.problem, news.error, news.is_refused)
    news.stop()


def test_a_daemon_that_refuses_is_not_asked_again() -> None:
    error = ProblemError(403, {"detail": "not permitted"})
    daemon = Daemon({"n": 1}, error, {"n": 2})
    news = News(daemon.listen)
    news.start()

    assert not news.wait(after=1, seconds=SECONDS)
    assert ("not permitted", error, True, 1) == (news.problem, news.error, news.is_refused, daemon.asked)


def test_a_daemon_with_too_many_streams_is_asked_again() -> None:
    daemon = Daemon({"n": 1}, ProblemError(503, {"detail": "32 streams are open"}), {"n": 2})
    news = News(daemon.listen)
    news.start()

    assert news.wait(after=1, seconds=SECONDS)
    assert 2 == daemon.asked
    news.stop()
    daemon.given.put(None)
