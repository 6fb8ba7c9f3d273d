from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from broker.observe.health import drops_of, read_dropped
from broker.observe.views import DISPOSITIONS, make_row

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def row(**values: Any) -> tuple[object, ...]:
    usual = {"disposition": "no route", "frames": 3, "to_service_name": "//shop/Billing"}
    return make_row(DISPOSITIONS, **(usual | values))


def test_each_reason_is_told_with_what_to_do() -> None:
    [told] = read_dropped(lambda: [row(last_time=AT)], "gw")

    assert ("no route", 3, "2026-01-01 12:00:00.000") == (told["disposition"], told["frames"], told["last_time"])
    assert "of gw: CREATE ROUTE [//shop/Billing]" in told["do"]


def test_a_status_tells_how_long_ago_the_last_one_was() -> None:
    rows = read_dropped(lambda: [row(last_time=AT), row(disposition="duplicate")], "gw")

    told = drops_of(rows, AT.replace(second=7))

    assert [("no route", 7.0), ("duplicate", None)] == [(one["reason"], one["last_s"]) for one in told]
