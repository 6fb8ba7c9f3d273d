"""What was dropped, as rows: each reason with its count and the head of the last frame."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.net.quotas import Permissions
from broker.observe.snapshot import read_drops
from broker.observe.views import DISPOSITIONS, MEMORY_VIEWS
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import HEAD_MAX_BYTES, FrameKind
from broker.routing.decide import AddressHealth

AT = datetime(2030, 1, 1, tzinfo=UTC)
HEADER = Header(FrameKind.MESSAGE, 0, b"m" * 16, b"c" * 16, "//far", "//near", b"f" * 16, sequence_number=5)


def instance(gone: dict[Disposition, int] | None = None, **endpoints: Any) -> Any:
    """One that serves these databases; `gone` is what those dropped that it serves no more."""
    forwarder = Forwarder(Limits(1 << 20, 1 << 20, 16), deliver=lambda *_: None, want=lambda _: None, health_of=health)
    past, peers = SimpleNamespace(dropped=Counter(gone)), SimpleNamespace(permissions=Permissions())
    return SimpleNamespace(forwarder=forwarder, endpoints=endpoints, past=past, peers=peers)


def health(_address: object) -> AddressHealth:
    return AddressHealth.UNTRIED


def endpoint(disposition: Disposition, frames: int, header: Header | None) -> Any:
    return SimpleNamespace(dropped=Counter({disposition: frames}), last_dropped={disposition: (3.0, header)})


def shown(rows: list[tuple[object, ...]]) -> list[dict[str, object]]:
    return [dict(zip(MEMORY_VIEWS[DISPOSITIONS], row, strict=True)) for row in rows]


def test_nothing_dropped_is_no_row() -> None:
    assert [] == read_drops(instance(), AT)


def test_the_head_of_the_last_frame_is_told_and_its_body_is_not_kept() -> None:
    one = instance()
    one.forwarder.drop(encode_dialog(HEADER, b""), Disposition.NO_ROUTE, None)
    one.forwarder.drop(encode_dialog(HEADER, bytes(100_000)), Disposition.NO_ROUTE, None)

    (row,) = shown(read_drops(one, AT))

    assert HEAD_MAX_BYTES == len(one.forwarder.last_dropped[Disposition.NO_ROUTE][1])
    assert ("no route", 9798, None, 2, AT) == tuple(row.values())[:5]
    assert (UUID(bytes=b"c" * 16), "//far", "//near", 5) == (
        row["conversation_id"],
        row["to_service_name"],
        row["from_service_name"],
        row["message_sequence_number"],
    )


def test_what_is_not_permitted_tells_who_lacks_what() -> None:
    one = instance()
    one.peers.permissions.last_refusal = "CN=a may not send: no GRANT"
    for disposition in (Disposition.NO_ROUTE, Disposition.NOT_PERMITTED):
        one.forwarder.drop(encode_dialog(HEADER, b""), disposition, None)

    rows = shown(read_drops(one, AT))

    assert [("not permitted", "CN=a may not send: no GRANT"), ("no route", None)] == [
        (row["disposition"], row["reason"]) for row in rows
    ]


def test_a_frame_too_short_for_a_head_is_counted_without_one() -> None:
    one = instance()
    one.forwarder.drop(b"\x10" * 20, Disposition.MALFORMED, None)

    (row,) = shown(read_drops(one, AT))

    assert (1, None) == (row["frames"], row["conversation_id"])


def test_what_databases_dropped_that_are_gone_stays_in_the_sum() -> None:
    (row,) = shown(read_drops(instance(gone={Disposition.DUPLICATE: 4}), AT))

    assert ("duplicate", None, 4, None) == (row["disposition"], row["database_name"], row["frames"], row["last_time"])


def test_each_database_has_rows_of_its_own_in_the_order_of_the_reasons() -> None:
    one = instance(orders=endpoint(Disposition.DUPLICATE, 3, HEADER), billing=endpoint(Disposition.DUPLICATE, 4, None))
    one.forwarder.drop(encode_dialog(HEADER, b""), Disposition.NO_ROUTE, None)

    rows = shown(read_drops(one, AT))

    told = [(row["disposition"], row["database_name"], row["frames"], row["to_service_name"]) for row in rows]
    assert [
        ("no route", None, 1, "//far"),
        ("duplicate", "orders", 3, "//far"),
        ("duplicate", "billing", 4, None),
    ] == told
    assert AT + timedelta(seconds=3) == rows[1]["last_time"]
