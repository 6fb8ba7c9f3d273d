"""Draining by the admin API: who may, what is told of it, and that it is written down first."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.admin.api import DrainQuestion, drain_now, drain_state
from broker.admin.audit import Audit
from broker.admin.auth import Caller
from broker.config.values import AdminRole
from broker.daemon.instance import Instance
from broker.errors import BrokerError
from broker.net.drain import Drain, DrainBounds, Left

OPERATOR = Caller("user:anna", "process 1", AdminRole.OPERATOR)


class Leaver:
    """Has one message left until it is told to leave."""

    def __init__(self) -> None:
        self.has_left = False

    def on_drain(self) -> None:
        pass

    async def leave(self, seconds: float) -> None:
        self.has_left = True

    async def left(self) -> Left:
        return Left() if self.has_left else Left(held=1, unserved=1, by_hop={"tcp://north:4022": 1})


async def test_request_drains_the_instance_and_is_written_down(instance: Instance, ask: Any) -> None:
    status, before = await ask("GET", "/v1/drain")
    assert (200, "serving", None, None) == (status, before["stage"], before["remaining_s"], before["clean"])

    status, answer = await ask("POST", "/v1/drain", {})
    async with asyncio.timeout(30):
        while answer["stage"] != "left":
            _, answer = await ask("GET", f"/v1/drain?since={answer['changes']}")

    assert (200, True, "drained") == (status, answer["clean"], answer["sentence"])
    assert instance.stopping.is_set()
    lines = instance.settings.admin.audit.read_text().splitlines()
    (line,) = [one for one in map(json.loads, lines) if one["operation"] == "POST /v1/drain"]
    assert ("instance", "done") == (line["target"], line["outcome"])


async def test_status_tells_of_a_drain(instance: Instance, ask: Any) -> None:
    assert None is (await ask("GET", "/v1/status"))[1]["draining"]

    await instance.drain.end("SIGTERM")

    draining = (await ask("GET", "/v1/status"))[1]["draining"]
    assert ("left", "SIGTERM", "drained") == (draining["stage"], draining["reason"], draining["sentence"])


async def test_drain_that_cannot_be_written_down_does_not_begin(tmp_path: Any) -> None:
    drain = Drain(Leaver(), lambda: DrainBounds(0.0, 1.0))
    (tmp_path / "audit").mkdir()
    with ThreadPoolExecutor(1) as executor:
        audit = Audit(tmp_path / "audit", executor)

        with pytest.raises(BrokerError):
            await drain_now(drain, audit, executor, OPERATOR)

    assert not drain.has_begun


async def test_second_request_changes_nothing(tmp_path: Any) -> None:
    drain = Drain(Leaver(), lambda: DrainBounds(0.0, 1.0))
    with ThreadPoolExecutor(1) as executor:
        audit = Audit(tmp_path / "audit.log", executor)

        await drain_now(drain, audit, executor, OPERATOR)
        answer = await drain_now(drain, audit, executor, OPERATOR)
        await drain.end("over")

    assert "asked for by user:anna" == answer.reason
    assert 1 == len((tmp_path / "audit.log").read_text().splitlines())


async def test_question_tells_what_would_have_to_leave(tmp_path: Any) -> None:
    drain = Drain(Leaver(), lambda: DrainBounds(0.0, 1.0))

    answer = await drain_state(drain, DrainQuestion())

    assert ("serving", 1, 1, {"tcp://north:4022": 1}) == (answer.stage, answer.held, answer.unserved, answer.by_hop)


async def test_follower_is_answered_at_the_next_change() -> None:
    drain = Drain(Leaver(), lambda: DrainBounds(0.0, 1.0))
    following = asyncio.ensure_future(drain_state(drain, DrainQuestion(since=0)))
    await asyncio.sleep(0)
    assert not following.done()

    await drain.end("SIGTERM")

    assert 0 < (await following).changes
