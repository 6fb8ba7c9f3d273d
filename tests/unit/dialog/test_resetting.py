"""Dialogs under way with other settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog.transmitter import DialogSettings, reset
from tests.unit.dialog.test_transmitter import Stage

OTHER = DialogSettings(
    Backoff(3.0, 9.0), Travel(hop_limit=5, time_to_live=3000), window=7, fragment_size=1, window_bytes=5000
)


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_dialogs_under_way_and_new_ones_obey(stage: Stage) -> None:
    transmitter = stage.transmitter
    stage.send(1, b"a")

    reset(transmitter, OTHER)
    stage.send(2, b"b")

    for endpoint_id in (1, 2):
        outbound = transmitter.senders[endpoint_id].outbound
        assert (OTHER.backoff, 7, 5000) == (
            outbound.round_trip.backoff,
            outbound.window.frames_max,
            outbound.window.bytes_max,
        )


async def test_messages_are_cut_as_those_before(stage: Stage) -> None:
    before = stage.transmitter.settings.fragment_size

    reset(stage.transmitter, OTHER)

    assert replace(OTHER, fragment_size=before) == stage.transmitter.settings
    assert OTHER.travel == stage.transmitter.framing.travel
