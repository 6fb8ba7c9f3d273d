"""Repeated errors that have stopped are told with their number, without anybody asking."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest
import structlog

from broker.observe import logs
from broker.observe import logs as log_summary
from broker.observe.logs import configure_logging, tell_summaries


async def test_what_was_left_out_is_told_in_time(monkeypatch: pytest.MonkeyPatch, until: Any) -> None:
    stream = io.StringIO()
    configure_logging(log_format="json", level="info", instance="one", stream=stream)
    monkeypatch.setattr(log_summary, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(logs._State.repeats, "_interval", 0.05)
    log = structlog.get_logger("broker.net.test")
    for _ in range(3):
        log.error("peer is gone", peer="far")

    task = asyncio.create_task(tell_summaries())
    await until(lambda: stream.getvalue().count("\n") == 2)
    task.cancel()

    first, summary = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["component"], "suppressed" in first) == ("peer is gone", "net", False)
    assert (summary["event"], summary["component"], summary["suppressed"]) == ("peer is gone", "net", 2)
