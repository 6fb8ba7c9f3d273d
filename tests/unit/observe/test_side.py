"""Sides of conversations are counted by service and state, in walks that are bounded and rest."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.observe import database_stats as side
from broker.observe.database_stats import Sides
from tests.support.scraped import samples_of
from tests.support.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    with closing(Shop(tmp_path / "shop.db")) as opened:
        yield opened


class Clock:
    """Stands still unless it is told to go on. Shape: `step` added at every look."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def begin(shop: Shop, dialogs: int) -> list[Any]:
    db = shop.connect()
    with db:
        return [shop.begin(db) for _ in range(dialogs)]


def test_sides_are_counted_by_service_and_state(shop: Shop) -> None:
    first, *_ = begin(shop, 3)
    shop.change(first, "state", "CO")

    counted = Sides().samples({"shop": shop.path})

    assert dict(counted["broker_dialogs"]) == {("Orders", "STARTED_OUTBOUND"): 2, ("Orders", "CONVERSING"): 1}
    assert {labels for labels, age in counted["broker_dialog_oldest_age_seconds"] if age >= 0} == {
        ("STARTED_OUTBOUND",),
        ("CONVERSING",),
    }


def test_age_is_that_of_the_oldest(shop: Shop) -> None:
    old, _ = begin(shop, 2)
    shop.change(old, "create_date", 1000.0)

    ((_, age),) = Sides().samples({"shop": shop.path})["broker_dialog_oldest_age_seconds"]

    assert age > 1e9


def test_every_service_has_its_quarantine(shop: Shop) -> None:
    """Though it is empty, so that the first dialog in it is a change from 0."""
    dialog, *_ = begin(shop, 2)
    shop.connect(isolation_level=None).execute(
        "INSERT INTO broker_failure SELECT endpoint_id, 0, 5, 1.0, 2.0, 3.0, 'ValueError', '' FROM broker_conversation"
        " WHERE conversation_handle = ?",
        (dialog.conversation_handle.bytes,),
    )

    counted = Sides().samples({"shop": shop.path})

    assert dict(counted["broker_quarantined_dialogs"]) == {("Orders",): 1, ("Billing",): 0}


def test_queues_have_depth_and_age(shop: Shop) -> None:
    dialog, *_ = begin(shop, 1)
    shop.arrive(dialog, b"a", b"b")

    counted = Sides().samples({"shop": shop.path})

    assert dict(counted["broker_queue_messages"]) == {("shop", "OrdersQueue"): 2, ("shop", "BillingQueue"): 0}
    assert {queue for (_, queue), age in counted["broker_queue_oldest_seconds"] if age > 1e9} == {"OrdersQueue"}


def test_walk_rests_for_many_times_what_it_took(shop: Shop) -> None:
    clock = Clock()
    sides = Sides(clock)
    clock.step = 0.01
    sides.samples({"shop": shop.path})
    begin(shop, 1)
    clock.step = 0.0

    at_once = sides.samples({"shop": shop.path})
    clock.now += 2 * 0.01 * side.REST_FACTOR
    later = sides.samples({"shop": shop.path})

    assert (at_once["broker_dialogs"], [count for _, count in later["broker_dialogs"]]) == ([], [1])


def test_walk_that_takes_too_long_is_given_up_and_what_was_counted_stays(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    sides = Sides(clock)
    begin(shop, 3)
    sides.samples({"shop": shop.path})
    begin(shop, 3)
    monkeypatch.setattr(side, "_STEPS", 1)
    clock.now += 1.0
    clock.step = side.WALK_SECONDS

    counted = sides.samples({"shop": shop.path})

    assert [count for _, count in counted["broker_dialogs"]] == [3]


@pytest.mark.parametrize("content", [None, b"no database, and longer than the header of one" * 20])
def test_file_that_cannot_be_read_is_left_out(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "shop.db"
    if content is not None:
        path.write_bytes(content)

    assert all(not some for some in Sides().samples({"shop": path}).values())


def test_database_that_has_gone_is_forgotten(shop: Shop) -> None:
    sides = Sides()
    begin(shop, 1)
    sides.samples({"shop": shop.path})

    assert all(not some for some in sides.samples({}).values())


def test_lock_of_an_application_does_not_matter(shop: Shop) -> None:
    begin(shop, 1)
    with closing(sqlite3.connect(shop.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")

        counted = Sides().samples({"shop": shop.path})

    assert [count for _, count in counted["broker_dialogs"]] == [1]


async def test_metrics_have_them(start: Any, send: Any) -> None:
    instance = await start("near")
    send(instance, "//target")

    samples = await samples_of(instance)

    assert sum(samples["broker_dialogs"].values()) == 1
    assert samples["broker_quarantined_dialogs"] == {("//near",): 0}
    assert samples["broker_queue_messages"]["near", "Q"] == 0
