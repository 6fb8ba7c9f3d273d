"""Values of the port: how a batch splits, and how drops are counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from broker.flow import Disposition
from broker.protocol.frame import Header
from broker.store.port import Find, LoadRequest, ReceiveResult, WriteBatch

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


def test_drops_are_counted_with_the_header_of_the_last() -> None:
    result = ReceiveResult()
    first, last = (Header(0x10, 0, bytes([number]) * 16, b"c" * 16, "//b", "//a", b"f" * 16) for number in (1, 2))

    result.drop(Disposition.DUPLICATE, last, first)
    result.drop(Disposition.DUPLICATE, last)
    result.count(Disposition.MALFORMED, None)

    assert Counter({Disposition.DUPLICATE: 3, Disposition.MALFORMED: 1}) == result.dropped
    assert {Disposition.DUPLICATE: last, Disposition.MALFORMED: None} == result.last_dropped


def test_each_frame_has_its_own_verdict_though_it_is_a_copy() -> None:
    result = ReceiveResult()
    copies = [Header(0x10, 0, b"1" * 16, b"c" * 16, "//b", "//a", b"f" * 16) for _ in range(3)]
    result.headers += [*copies, None]

    result.drop(Disposition.DUPLICATE, copies[1])
    result.count(Disposition.OUT_OF_SEQUENCE, copies[2])

    delivered = Disposition.DELIVERED
    assert [delivered, Disposition.DUPLICATE, delivered, Disposition.MALFORMED] == result.verdicts()
