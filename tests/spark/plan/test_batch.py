"""Batches of keys: counts come through, alike ones together, whatever the batches; without Spark."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pipeline.plan import batch as plan_batch
from broker.pipeline.plan.batch import COUNTS, DECIDED, decider
from broker.pipeline.plan.key import KEYED, Origin
from broker.pipeline.plan.ruling import NO_FACTS, Judge, Key
from broker.pipeline.plan.site import Change
from broker.routing.address import NetworkAddress
from broker.routing.facts import hosted
from broker.routing.journey import Site
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.property.test_routing import INSTANCES

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FORMS = {"string": pa.string(), "integer": pa.int32(), "binary": pa.binary(), "boolean": pa.bool_(), "long": pa.int64()}
INPUT = pa.schema([(one.name, FORMS[one.dataType.typeName()]) for one in KEYED])


def site(*routes: Route, services: set[str] | None = None) -> Site:
    databases = {} if services is None else {INSTANCES[0].bytes: services}
    return Site("a", frozenset(), build_table(routes, now=NOW), {}, hosted(databases), is_forwarding=True)


def to(host: str, service: str | None = "S", number: int | None = None) -> Route:
    return Route(f"to-{host}", NetworkAddress(host), service, None if number is None else INSTANCES[number])


PICKED = Change(
    {"a": site(to("one", number=0), to("two", number=1), to("rest", None))},
    {"a": site(to("one", number=0), to("other", number=1), to("rest", None))},
)


def row(conversation: int = 1, **told: Any) -> dict[str, Any]:
    given = {"conversation_id": conversation.to_bytes(16, "big"), "frames": 2, "bytes": 10}
    shown = {"forwarded": 1, "refused": 0, "delivered": 0}
    place = {"instance": "a", "origin": int(Origin.ARRIVED), "to_service": "S", "from_target": False}
    return dict.fromkeys(INPUT.names) | place | given | shown | told


def batches(rows: list[dict[str, Any]], size: int = 3) -> list[pa.RecordBatch]:
    made: list[pa.RecordBatch] = pa.Table.from_pylist(rows, INPUT).to_batches(max_chunksize=size)
    return made


def told(change: Change, rows: list[dict[str, Any]], size: int = 3) -> list[dict[str, Any]]:
    out = list(decider(change)(batches(rows, size)))
    assert {DECIDED} == {batch.schema for batch in out}
    rows_out: list[dict[str, Any]] = pa.Table.from_batches(out).to_pylist()
    return rows_out


def test_conversations_whose_key_decides_come_in_one_row() -> None:
    found = told(PICKED, [row(number, to_service="Other") for number in range(8)])

    [one] = found
    assert (None, 8, 16, 80) == (one["conversation_id"], *(one[name] for name in COUNTS))
    assert ("to-rest", ["tcp://rest:4022"], False) == (one["route_after"], one["next_after"], one["is_changed"])


def test_where_the_conversation_has_a_say_those_that_change_come_one_by_one() -> None:
    found = told(PICKED, [row(number) for number in range(40)])

    moved = [one for one in found if one["is_changed"]]
    kept = [one for one in found if not one["is_changed"]]
    assert all(one["conversation_id"] is not None and one["conversations"] == 1 for one in moved)
    assert {"moves"} == {one["fate"] for one in moved}
    assert [("to-one", None)] == [(one["route_after"], one["conversation_id"]) for one in kept]
    assert 40 == len(moved) + kept[0]["conversations"]
    assert 0 < len(moved) < 40


rows_of_history = st.lists(
    st.builds(
        row,
        st.integers(0, 30),
        to_service=st.sampled_from(["S", "Other", None]),
        to_broker_instance=st.sampled_from([None, INSTANCES[0].bytes, INSTANCES[1].bytes]),
        from_target=st.booleans(),
        instance=st.sampled_from(["a", "b"]),
        frames=st.integers(1, 5),
        bytes=st.none() | st.integers(0, 100),
    ),
    max_size=20,
)


@given(rows_of_history, st.integers(1, 7))
def test_however_it_is_cut_the_sums_are_those_of_the_rows_one_by_one(rows: list[dict[str, Any]], size: int) -> None:
    judge, expected = Judge(PICKED), Counter[Any]()
    for one in rows:
        ruling = judge.rule(Key(*(one[name] for name in Key._fields)), one["conversation_id"])
        route = ruling.after and ruling.after.route
        single = one["conversation_id"] if ruling.is_by_conversation and ruling.is_changed else None
        place = one["instance"], one["to_service"], one["to_broker_instance"], single, ruling.unplanned, route
        for name, count in zip(COUNTS, (1, one["frames"], one["bytes"] or 0), strict=True):
            expected[*place, name] += count

    found = Counter[Any]()
    for one in told(PICKED, rows, size):
        place = tuple(one[name] for name in ("instance", "to_service", "to_broker_instance", "conversation_id"))
        for name in COUNTS:
            found[*place, one["unplanned"], one["route_after"], name] += one[name]

    assert expected == found


def test_a_task_tells_what_it_has_before_it_becomes_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_batch, "KEPT_MAX", 1)

    out = list(decider(PICKED)(batches([row(number) for number in range(20)], size=5)))

    assert 4 + 1 == len(out)
    assert 20 == sum(sum(batch["conversations"].to_pylist()) for batch in out)


def test_nothing_in_nothing_out() -> None:
    assert [] == told(PICKED, [])


def test_what_the_sender_has_told_is_not_counted_again() -> None:
    here = Change({"a": site(to("one"), services={"I"})}, {"a": site(to("one"), services={"I"})})
    delivered = row(origin=int(Origin.MAYBE_TOLD), database=INSTANCES[0].bytes)

    assert [] == told(here, [delivered])
    assert [2] == [one["frames"] for one in told(here, [delivered | {"database": INSTANCES[1].bytes}])]


def test_what_cannot_be_planned_is_told_with_why() -> None:
    [one] = told(PICKED, [row(to_service=None), row(2, to_service=None)])

    assert (NO_FACTS, None, 4, None) == (one["unplanned"], one["fate"], one["frames"], one["next_before"])
