"""Whatever table and frame: a decision comes, it tells the truth about itself, and dialogs stay where they are."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.flow import Disposition
from broker.protocol.layout import NO_GUID
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.decide import AddressHealth, Decision, RoutingContext, RoutingFacts, decide, hosted, pick_instance
from broker.routing.route import BROKER_CONFIGURATION, Route
from broker.routing.table import build_table

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
INSTANCES = [UUID(int=n) for n in range(1, 6)]
ADDRESSES = [NetworkAddress(host) for host in ("one", "two", "three")]
SERVICES = ["Orders", "orders", "tcp://one/Orders", "tcp://two:x", "", BROKER_CONFIGURATION]

guids = st.binary(min_size=16, max_size=16)
services = st.one_of(st.sampled_from(SERVICES), st.text(max_size=8))

# Wider than what CREATE ROUTE allows: a row written by another hand must not stop the pass.
routes = st.builds(
    Route,
    name=st.sampled_from("abc"),
    address=st.sampled_from([LOCAL, TRANSPORT, *ADDRESSES]),
    remote_service_name=st.none() | services,
    broker_instance=st.none() | st.sampled_from(INSTANCES),
    lifetime=st.none() | st.sampled_from([NOW - timedelta(1), NOW, NOW + timedelta(1)]),
    mirror_address=st.none() | st.sampled_from(ADDRESSES),
    weight=st.integers(1, 1000),
)
facts = st.builds(
    RoutingFacts,
    to_service=services,
    to_broker_instance=st.one_of(st.just(NO_GUID), st.sampled_from([i.bytes for i in INSTANCES]), guids),
    conversation_id=guids,
    is_from_target=st.booleans(),
    database=st.none() | st.sampled_from([i.bytes for i in INSTANCES]),
)
healths = st.fixed_dictionaries({address: st.sampled_from(AddressHealth) for address in ADDRESSES})
surroundings = st.builds(
    lambda routes, databases, health, is_forwarding, msdb, own: RoutingContext(
        build_table(routes, now=NOW),
        hosted(databases),
        lambda address: health.get(address, AddressHealth.UNTRIED),
        is_forwarding,
        msdb=build_table(msdb, now=NOW),
        own=own,
    ),
    st.lists(routes, max_size=8),
    st.dictionaries(st.sampled_from([i.bytes for i in INSTANCES[:3]]), st.sets(services, max_size=3)),
    healths,
    st.booleans(),
    st.lists(routes, max_size=8),
    st.frozensets(st.sampled_from(ADDRESSES)),
)


def _target(decision: Decision) -> tuple[object, ...]:
    first = decision.candidates[0].address if decision.candidates else None
    return decision.disposition, decision.step, decision.route, first, decision.database


@given(facts, surroundings)
@pytest.mark.promise("R8", "multiple 16")
def test_every_decision_is_whole(facts: RoutingFacts, here: RoutingContext) -> None:
    """FORWARDED has candidates, the best first, DELIVERED a database, and nothing else has either."""
    decision = decide(facts, here)

    assert (decision.disposition is Disposition.FORWARDED) == bool(decision.candidates)
    assert (decision.disposition is Disposition.DELIVERED) == (decision.database is not None)
    assert (decision.disposition is Disposition.NO_ROUTE) == (decision.step == 7)
    assert (decision.step in {0, 7}) == (decision.route is None)
    assert decision.database is None or decision.database in here.hosted.services_of
    candidates = decision.candidates
    assert sorted(candidate.health for candidate in candidates) == [candidate.health for candidate in candidates]
    assert len({candidate.address for candidate in candidates}) == len(candidates)
    assert decision == decide(facts, here, [])  # explained, and so without a short cut


@given(facts, surroundings)
@pytest.mark.promise("R3.8")
def test_nothing_from_outside_is_forwarded_while_forwarding_is_off(facts: RoutingFacts, here: RoutingContext) -> None:
    decision = decide(replace(facts, database=None), replace(here, is_forwarding=False))

    assert not decision.candidates
    assert decision.disposition is not Disposition.PRINCIPAL_UNKNOWN


@given(facts, surroundings, st.lists(guids, min_size=1, max_size=5))
def test_a_cache_may_keep_what_is_not_by_conversation(
    facts: RoutingFacts, here: RoutingContext, others: list[bytes]
) -> None:
    """By conversation or not is the same for all with that key; if not, the decision is that of all of them."""
    decision = decide(facts, here)

    for other in others:
        again = decide(replace(facts, conversation_id=other), here)
        assert decision.is_by_conversation == again.is_by_conversation
        assert decision.is_by_conversation or _target(decision) == _target(again)


@given(guids, st.dictionaries(guids, st.integers(1, 1000), min_size=2, max_size=8), st.data())
@pytest.mark.promise("R2.3")
def test_removing_an_instance_moves_only_the_dialogs_that_were_on_it(
    conversation: bytes, weights: dict[bytes, int], data: st.DataObject
) -> None:
    removed = data.draw(st.sampled_from(sorted(weights)))
    before = pick_instance(conversation, weights)

    after = pick_instance(conversation, {key: value for key, value in weights.items() if key != removed})

    assert (before == removed) == (after != before)
    assert before == pick_instance(conversation, dict(reversed(weights.items())))
