"""The whole chain: who is asked, what is the cause of all that is found, and who could not be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from broker.admin.client import AdminClient
from broker.admin.trace import NotAskedError, Trace, WhyDirectory, ask_why, hop_findings, trace
from broker.errors import DaemonUnreachableError
from broker.observe.why import Severity, WhyAnswer
from broker.routing.address import NetworkAddress
from tests.support.why import CONVERSATION, Instances, finding, holding, place, side, told, way

FINE, WAITING, TROUBLE = Severity.FINE, Severity.WAITING, Severity.TROUBLE
A, B, C = place("a", 1, "b"), place("b", 2, "c"), place("c", 3, None)
WAITS = finding("a", "not acknowledged", WAITING)


def first(*findings: Any, **more: Any) -> WhyAnswer:
    """The sender, at `a`, whose way leads over `b`."""
    return told(A, *(findings or (WAITS,)), ways=(way(A),), **{"sides": [holding()], **more})


def causes(found: Trace) -> list[tuple[str, str]]:
    return [(one.instance, one.cause) for one in found.findings]


def test_every_instance_on_the_way_is_asked_and_the_farthest_trouble_is_the_cause() -> None:
    instances = Instances(
        {"b": B, "c": C},
        {"b": told(B, finding("b", "held", TROUBLE)), "c": told(C, finding("c", "in quarantine", TROUBLE))},
    )

    found = trace(first(), instances)

    assert ["b", "c"] == instances.asked
    assert [("a", "not acknowledged"), ("b", "held"), ("c", "in quarantine")] == causes(found)
    assert ("in quarantine", "c", "c: why of in quarantine") == (found.cause, found.where, found.why)
    assert ("next of in quarantine", "remedy of in quarantine") == (found.next, found.remedy)
    assert "symptom of not acknowledged" == found.symptom
    assert [] == found.not_asked
    assert found.paths[0].startswith("a -> b -> c: delivered here")


def test_trouble_on_the_way_outweighs_what_only_waits_behind_it() -> None:
    instances = Instances(
        {"b": B, "c": C},
        {"b": told(B, finding("b", "held", TROUBLE)), "c": told(C, finding("c", "being read", WAITING))},
    )

    assert "held" == trace(first(), instances).cause


def test_where_all_is_well_that_is_told() -> None:
    well = first(finding("a", "acknowledged", FINE, remedy=""), sides=[side(send_sequence=1)])

    found = trace(well, Instances({"b": B, "c": C}, {"b": told(B), "c": told(C)}))

    assert ("acknowledged", "nothing has to be done") == (found.cause, found.remedy)


def test_a_dead_end_on_the_way_of_what_waits_is_its_cause() -> None:
    lost = place("b", 2, "")

    found = trace(first(), Instances({"b": lost}, {"b": told(lost)}))

    assert ("no route", "b") == (found.cause, found.where)
    assert "in msdb of b: CREATE ROUTE [S]" in found.remedy


def test_a_dead_end_on_a_way_that_nothing_waits_for_is_no_trouble() -> None:
    lost = place("b", 2, "")
    well = first(finding("a", "acknowledged", FINE), finding("a", "x", WAITING), sides=[side(send_sequence=1)])

    assert "x" == trace(well, Instances({"b": lost}, {"b": told(lost)})).cause


@pytest.mark.parametrize(
    ("hop", "cause", "remedy"),
    [
        (place("b", 2, ""), "no route", "CREATE ROUTE [S]"),
        (
            place("b", 2, "c", problem="Connection refused"),
            "next hop not reached",
            "start the instance at tcp://c:4022",
        ),
        (place("b", 2, None, service="T"), "service not here", "CREATE SERVICE [S]"),
    ],
)
def test_what_an_instance_on_the_way_would_do(hop: Any, cause: str, remedy: str) -> None:
    [found] = hop_findings(way(hop, incoming=True), {})

    assert (cause, TROUBLE, "b") == (found.cause, found.severity, found.instance)
    assert remedy in found.remedy


def test_a_database_that_is_named_and_has_no_such_service_is_trouble() -> None:
    hop = way(place("b", 2, None, service="T"), incoming=True, broker_instance=UUID(int=0xFA))

    [found] = hop_findings(hop, {})

    assert ("service not found", TROUBLE) == (found.cause, found.severity)
    assert "CREATE SERVICE [S] in that database of b" in found.remedy


def test_drops_that_no_route_foretells_are_told_where_something_waits() -> None:
    dropped = {"pool limit exceeded": 1200, "hops exhausted": 1, "duplicate": 5}

    found = trace(first(), Instances({"b": B, "c": C}, {"b": told(B, dropped=dropped), "c": told(C)}))

    whys = [one.why for one in found.findings if one.instance == "b"]
    assert [
        "1 frame of any dialog was dropped here since the start: hops exhausted (11285)",
        "1,200 frames of any dialog were dropped here since the start: pool limit exceeded (11289)",
    ] == whys
    assert "pool limit exceeded" == found.cause


def test_a_loop_is_a_cause() -> None:
    back = place("b", 2, "a")

    found = trace(first(), Instances({"b": back, "a": A}, {"b": told(back), "a": told(A)}))

    assert "loop" in [one.cause for one in found.findings]
    assert "a -> b -> a" in found.paths[0]


def test_who_could_not_be_asked_is_told_and_the_rest_is_said() -> None:
    found = trace(first(), Instances({"b": B}, {}))

    assert "not acknowledged" == found.cause
    assert 2 == len(found.not_asked)
    assert found.not_asked[0].startswith("it is gone; say where to ask with --admin tcp://b:4022=")
    assert "not known from there on: nobody there" in found.not_asked[1]


def test_from_the_target_the_sender_is_found_and_its_way_followed_again() -> None:
    """c, the target, has a way back to a; what a knows has a way to c over b."""
    target = place("c", 3, "a", service="O")
    sender = place("a", 1, None)
    origin = told(A, WAITS, sides=[holding()], ways=(way(A),))
    start = told(target, finding("c", "nothing sent", FINE), sides=[side(is_initiator=False)], ways=(way(target),))

    instances = Instances({"a": sender, "b": B, "c": C}, {"a": origin, "b": told(B), "c": start})
    found = trace(start, instances)

    assert ["c", "a", "b"] == [one.instance for one in found.answers]
    assert ["a", "b"] == instances.asked
    assert "not acknowledged" == found.cause


def test_an_answer_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdminClient, "get", lambda *_: {"x": 1})

    with pytest.raises(DaemonUnreachableError, match="its answer is not understood"):
        ask_why(AdminClient(Path("sock")), CONVERSATION)


def test_a_directory_asks_where_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, str]] = []

    def get(client: AdminClient, target: str) -> Any:
        asked.append((client.where, target))
        return msgspec.to_builtins(told(B))

    monkeypatch.setattr(AdminClient, "get", get)
    address = NetworkAddress("b")

    answer = WhyDirectory({address: Path("b.sock")}).why(address, CONVERSATION)

    assert "b" == answer.instance
    assert [(Path("b.sock"), f"/v1/why/{CONVERSATION}")] == asked


def test_one_that_does_not_answer_is_not_asked() -> None:
    with pytest.raises(NotAskedError, match="say where to ask"):
        WhyDirectory({NetworkAddress("b"): Path("/nowhere/b.sock")}).why(NetworkAddress("b"), CONVERSATION)
