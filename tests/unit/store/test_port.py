"""Values of the port: how a batch splits, and how drops are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.store.port import Find, LoadRequest, WriteBatch

NOTHING = WriteBatch(now=0.0)
REQUEST = LoadRequest(endpoint_id=1, place=(0, 0), fragments=10, max_bytes=1000)


def test_what_only_reads_is_done_first_and_by_itself() -> None:
    reading: dict[str, Any] = {"find": Find.NEW, "load": [REQUEST]}
    writing: dict[str, Any] = {"statuses": {1: "waits"}, "frames": [b"f"], "is_maintenance_due": True}

    assert replace(NOTHING, **reading, **writing).parts() == [
        replace(NOTHING, **reading),
        replace(NOTHING, **writing),
    ]


@pytest.mark.parametrize(
    "more", [{}, {"find": Find.NEW}, {"frames": [b"f"]}, {"is_probe": True, "find": Find.NEW, "frames": [b"f"]}]
)
def test_other_batches_stay_whole(more: dict[str, Any]) -> None:
    batch = replace(NOTHING, **more)

    assert batch.parts() == [batch]
