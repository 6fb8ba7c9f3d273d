"""What scripts and a history tell together: whose broker instance a database has, what is there, who forwards."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from broker.pipeline.plan.script import Scripted, play_script
from broker.pipeline.plan.site import Change, Shown, change_of, gather
from broker.routing.address import NetworkAddress

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ONE, TWO = bytes(15) + b"\1", bytes(15) + b"\2"


def scripted(text: str) -> Scripted:
    return play_script(Scripted(), text, source="x.sql", now=NOW)


def change(before: str, after: str | None = None, shown: Shown | None = None, **given: UUID) -> Change:
    was, will = scripted(before), scripted(before if after is None else after)
    addresses = {NetworkAddress("a"): "a", NetworkAddress("b"): "b"}
    seen = {"a": shown or Shown()}
    return change_of({"a": was}, {"a": will}, seen, now=NOW, addresses=addresses, given=given)


def clue(**told: Any) -> dict[str, Any]:
    return {"instance": "a", "database": None, "service": None, "forwarded": 0, "refused": 0} | told


def test_clues_are_gathered_by_instance() -> None:
    shown = gather(
        [
            clue(database=bytearray(ONE), service="//s"),
            clue(database=ONE, service="//t"),
            clue(service="//open"),
            clue(instance="b", refused=1),
            clue(instance=None, forwarded=1),
        ]
    )

    assert {
        "a": Shown({ONE: {"//s", "//t"}}, {"//open"}),
        "b": Shown(is_forwarding=False),
    } == shown


def test_who_forwarded_once_forwards() -> None:
    assert gather([clue(refused=1), clue(forwarded=1)])["a"].is_forwarding
    assert gather([clue(forwarded=1), clue(refused=1)])["a"].is_forwarding


def test_an_instance_forwards_unless_it_was_seen_to_refuse() -> None:
    assert change("").before["a"].is_forwarding
    assert not change("", shown=Shown(is_forwarding=False)).before["a"].is_forwarding


def test_own_addresses_are_those_that_lead_there() -> None:
    site = change("").before["a"]

    assert frozenset({NetworkAddress("a")}) == site.addresses


def test_the_only_database_is_the_one_that_has_sent() -> None:
    made = change("USE orders; CREATE ROUTE r WITH ADDRESS = 'tcp://h'", shown=Shown({ONE: {"//s"}}))

    assert ({ONE: "orders"}, [ONE]) == (made.names, list(made.before["a"].databases))


def test_databases_are_told_apart_by_their_services() -> None:
    made = change(
        "USE x; CREATE SERVICE [//s] ON QUEUE Q; USE y; CREATE SERVICE [//t] ON QUEUE Q",
        shown=Shown({TWO: {"//s"}, ONE: {"//t"}}),
    )

    assert {TWO: "x", ONE: "y"} == made.names


def test_a_broker_instance_that_is_given_wins() -> None:
    made = change("USE x; CREATE SERVICE [//s] ON QUEUE Q", shown=Shown({ONE: {"//s"}}), x=UUID(bytes=TWO))

    assert {TWO: "x"} == made.names


def test_a_database_that_nothing_is_known_of_gets_one_that_is_made_up() -> None:
    made = change("USE x; USE y", shown=Shown({ONE: {"//s"}}))

    assert ["x", "y"] == sorted(made.names.values())
    assert ONE not in made.names


def test_services_are_those_that_were_seen_and_those_of_the_scripts() -> None:
    shown = Shown({ONE: {"//seen"}}, {"//somewhere"})
    made = change("USE x; CREATE SERVICE [//made] ON QUEUE Q", "USE x; DROP SERVICE [//seen]", shown)

    before, after = made.before["a"].hosted, made.after["a"].hosted
    assert {"//seen", "//made"} == before.services_of[ONE]
    assert frozenset() == after.services_of[ONE]
    assert "//somewhere" in before.databases_with
    assert "//somewhere" in after.databases_with


def test_an_instance_that_only_one_side_tells_of_stays_as_it_is() -> None:
    route = scripted("CREATE ROUTE r WITH ADDRESS = 'tcp://h'")
    made = change_of({"a": route}, {}, {}, now=NOW, addresses={}, given={})

    assert [["AutoCreatedLocal", "r"]] * 2 == [
        sorted(one.name for one in site["a"].msdb) for site in (made.before, made.after)
    ]
