"""Following what a plan changes: which loops are found, which are new, and what nobody could tell."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from broker.admin.client import AdminClient
from broker.admin.trace import (
    HOPS_MAX,
    Directory,
    Followed,
    NotAskedError,
    RoutingLoop,
    Trace,
    TracedRoute,
    TraceEnd,
    ask,
    ask_why,
    follow,
    follow_plan,
    trace,
)
from broker.errors import MAY_NOT_CONNECT, NOT_TRUSTED, DaemonUnreachableError
from broker.observe.causes import HeldShown, Severity, SideShown, Spot, begin_again
from broker.observe.drops import DEFINITIONS_CHANGED
from broker.observe.explain import ExplainAnswer, ExplainRequest, InstanceView, SendingDatabase, answer
from broker.observe.why import ClosedShown, QueueOff, WhyAnswer
from broker.protocol.layout import show_guid
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import hosted
from broker.routing.route import Route
from broker.security.grants import Grants, Permission, PermissionRule, PermissionRuling, PermissionState
from broker.security.principal import parse_principal, who_is
from tests.support.why import AT, CONVERSATION, Instances, finding, holding, place, routed, side, told, way

FAR, DIALOG = UUID(int=0xFA), UUID(int=1)
THERE, OLD = show_guid(FAR), show_guid(UUID(int=0x01D))
LOOP = "a loop, until the hops of the message are used up (11285)"


def arriving(service: str = "S", **more: Any) -> ExplainRequest:
    return ExplainRequest(service, conversation=DIALOG, incoming=True, **more)


def places_of(routes: dict[str, str | None]) -> dict[str, InstanceView]:
    """Gateways on hosts of their names, each with one route; None leads to the services. `a` has a database orders."""
    places = {name: place(name, number, to) for number, (name, to) in enumerate(routes.items(), 1)}
    if "a" in places:
        home = SendingDatabase(UUID(int=0x0D).bytes, places["a"].surroundings.msdb, Path("none"))
        places["a"] = replace(places["a"], homes={"orders": home})
    return places


def planned(routes: dict[str, str | None], to: str, *requests: ExplainRequest) -> tuple[Followed, list[ExplainRequest]]:
    """Follow these messages, with `a` as it is planned, and what was asked about today."""
    places, asked = places_of(routes), []
    after = places_of(routes | {"a": to})["a"]

    def ask_here(request: ExplainRequest) -> ExplainAnswer:
        asked.append(request)
        return answer(places["a"], request)

    return follow_plan([answer(after, one) for one in requests], ask_here, Instances(places, {}).explain), asked


@pytest.mark.parametrize(
    ("routes", "loops"),
    [
        ({"a": None, "b": "a"}, [RoutingLoop("S", f"a -> b -> a: {LOOP}", was_there=False)]),
        ({"a": "b", "b": "a"}, [RoutingLoop("S", f"a -> b -> a: {LOOP}", was_there=True)]),
        ({"a": None, "b": "c", "c": "b"}, [RoutingLoop("S", f"a -> b -> c -> b: {LOOP}", was_there=False)]),
        ({"a": "b", "b": None}, []),
    ],
)
def test_a_loop_is_new_or_was_there_and_what_arrives_needs_no_second_question(
    routes: dict[str, str | None], loops: list[RoutingLoop]
) -> None:
    assert (Followed(loops, []), [arriving()] * len(loops)) == planned(routes, "b", arriving())


def test_todays_answer_is_asked_about_the_same_message_in_the_database_where_it_begins() -> None:
    begun = ExplainRequest("S", conversation=DIALOG, database="orders")
    requests = [arriving(broker_instance=FAR, from_target=True), begun]

    assert requests == planned({"a": None, "b": "c", "c": "b"}, "b", *requests)[1]


def test_where_nobody_can_be_asked_is_said_once() -> None:
    followed, _ = planned({"a": None, "b": "beyond"}, "b", arriving(), arriving("T"))

    [sentence] = followed.unknown
    assert sentence.startswith("a -> b -> tcp://beyond:4022: not known from there on: nobody there")


# --- a message ---


def followed(places: dict[str, InstanceView], **request: Any) -> TracedRoute:
    """The way of a message from the first instance."""
    first = next(iter(places.values()))
    return follow(answer(first, ExplainRequest("S", conversation=DIALOG, **request)), Instances(places, {}).explain)


def names(way: TracedRoute) -> list[str]:
    return [hop.instance for hop in way.hops]


def test_the_way_is_followed_to_where_the_service_is() -> None:
    way = followed(places_of({"a": "b", "b": "c", "c": None}))
    last = followed(places_of({"b": "c", "c": None}), broker_instance=FAR, from_target=True).hops[-1].explanation

    assert (["a", "b", "c"], TraceEnd.DECIDED, True) == (names(way), way.end, way.arrives)
    assert f"a -> b -> c: delivered here, to the database {THERE} by route r" == way.sentence
    assert (THERE, show_guid(DIALOG), True) == (last.to_broker_instance, last.conversation_id, last.is_from_target)
    assert (True, "public") == (last.passes[0].is_incoming, last.peer)


@pytest.mark.parametrize(
    ("principal", "peer", "is_permitted"), [("CN=a", "CN=a", True), (None, "public", False), ("", None, True)]
)
def test_each_instance_checks_the_permissions_of_the_one_before(
    principal: str | None, peer: str | None, *, is_permitted: bool
) -> None:
    """One that shows no certificate is public; of one whose certificate cannot be read nothing is known."""
    places = places_of({"a": "b", "b": None})
    rules = [PermissionRule(one, "*", parse_principal("CN=a"), PermissionState.GRANT) for one in Permission]
    places["a"] = replace(places["a"], principal=principal)
    places["b"] = replace(places["b"], grants=Grants(rules, is_default_deny=True))

    way = followed(places)

    assert (peer, is_permitted) == (way.hops[-1].explanation.peer, way.arrives)


def test_coming_back_to_where_it_began_is_no_loop_yet() -> None:
    """What begins in a database is decided by that database; what comes back, by msdb."""
    way = followed(places_of({"a": "b", "b": "a"}), database="orders")

    assert ["a", "b", "a"] == names(way)
    assert "a -> b -> a -> b: a loop" in way.sentence


def test_where_nobody_can_be_asked_the_way_is_known_so_far_and_good_so_far() -> None:
    way = followed(places_of({"a": "b", "b": "beyond"}))

    assert (["a", "b"], TraceEnd.UNKNOWN, True) == (names(way), way.end, way.arrives)
    assert "--admin tcp://beyond:4022=http://HOST:PORT" in way.sentence


def test_a_way_that_never_ends_is_given_up() -> None:
    """Another instance each time, so no loop."""
    way = followed(places_of({f"h{number}": f"h{number + 1}" for number in range(HOPS_MAX + 10)}))

    assert (TraceEnd.TOO_FAR, HOPS_MAX + 1, False) == (way.end, len(way.hops), way.arrives)
    assert way.sentence.endswith("after 255 hops a message is dropped (11285)")


# --- asking ---


def told_of(name: str, *addresses: str) -> dict[str, Any]:
    """The JSON of an answer."""
    plain: dict[str, Any] = msgspec.to_builtins(answer(place(name, 1, None), ExplainRequest("S")))
    return plain | {"addresses": [*addresses]}


def test_an_address_is_asked_where_somebody_said_with_the_fields_of_the_api(fake_admin: Any) -> None:
    """The place is believed: behind a balancer an instance does not know all its addresses."""
    address = NetworkAddress("b")
    fake_admin.answers["/v1/explain"] = (200, told_of("b"))
    fake_admin.answers[f"/v1/why/{CONVERSATION}"] = (200, msgspec.to_builtins(told(B)))
    directory = Directory({address: fake_admin.path})

    got = directory.explain(address, ExplainRequest("S", FAR, incoming=True))

    assert ("b", "b") == (got.instance, directory.why(address, CONVERSATION).instance)
    assert {"b": fake_admin.path} == directory.places
    assert f"at b ({address}): x; at tcp://c:1: y" == directory.named(f"at {address}: x; at tcp://c:1: y")
    body = fake_admin.asked[0][2]
    assert {"to": "S", "broker_instance": str(FAR), "incoming": True} == {
        name: value for name, value in body.items() if value
    }
    for path in ("/v1/explain", f"/v1/why/{CONVERSATION}"):
        fake_admin.answers[path] = (200, {"name": "something else"})
    with pytest.raises(DaemonUnreachableError, match=r"its answer is not understood: .*instance"):
        ask(AdminClient(fake_admin.path), ExplainRequest("S"))
    with pytest.raises(DaemonUnreachableError, match="its answer is not understood"):
        ask_why(AdminClient(fake_admin.path), CONVERSATION)


def test_a_refusal_and_silence_say_where_the_question_may_be_asked_instead(fake_admin: Any, tmp_path: Path) -> None:
    fake_admin.answers["/v1/explain"] = (403, {"detail": "only loopback"})
    directory = Directory({NetworkAddress("b"): fake_admin.path, NetworkAddress("c"): tmp_path / "none.sock"})

    for host, problem in (
        ("b", "admin.sock answers: only loopback; say where"),
        ("c", "no daemon answers on .*; say where to ask"),
    ):
        for service in ("S", "T"):
            with pytest.raises(NotAskedError, match=problem):
                directory.explain(NetworkAddress(host), ExplainRequest(service))
    assert ["S"] == [body["to"] for _, _, body in fake_admin.asked], "it is not asked again"


def test_an_instance_that_has_answered_is_asked_there_at_its_own_addresses(fake_admin: Any) -> None:
    own = NetworkAddress("a")
    fake_admin.answers["/v1/explain"] = (200, told_of("a", str(own)))
    directory, client = Directory({}), AdminClient(fake_admin.path)

    first = directory.learn(client, ask(client, ExplainRequest("S")))

    assert first == directory.explain(own, ExplainRequest("S"))


@pytest.mark.parametrize(("host", "url"), [("b.example", "https://b.example:9422"), ("::1", "http://[::1]:9422")])
def test_an_address_that_nobody_named_is_asked_on_its_host_and_must_be_known_there(
    monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    """Several instances on one host: the one on the documented port may be another."""
    plain = told_of("b", str(NetworkAddress(host, 1)))
    monkeypatch.setattr(AdminClient, "request", lambda self, *_: plain | {"instance": str(self.where)})
    directory = Directory({})

    got = directory.explain(NetworkAddress(host, 1), ExplainRequest("S"))

    assert url == got.instance
    with pytest.raises(NotAskedError, match="does not know the address as its own; say where to ask"):
        directory.explain(NetworkAddress(host, 2), ExplainRequest("S"))


# --- a conversation ---


FINE, WAITING, TROUBLE = Severity.FINE, Severity.WAITING, Severity.TROUBLE
A, B, C = place("a", 1, "b"), place("b", 2, "c"), place("c", 3, None)
LOST, GONE = place("b", 2, ""), UUID(int=0xDEAD)
WAITS, ACKNOWLEDGED = finding("a", "not acknowledged", WAITING), finding("a", "acknowledged", FINE)
END = "at a, with broker sql: USE [orders]; END CONVERSATION 'HANDLE' WITH CLEANUP;"
RUN = "with broker sql, and in its script if it has one: USE"
AT_C = way(C).explanation.database or ""


def guarded(where: InstanceView, *rules: PermissionRule) -> InstanceView:
    """The same instance, where everything else than these is forbidden."""
    return replace(where, grants=Grants(rules, is_default_deny=True))


def homed(where: InstanceView, *rules: PermissionRule) -> InstanceView:
    """The same instance with the database of the service, where everything else than these is forbidden."""
    grants = Grants(rules, is_default_deny=True)
    return replace(where, homes={"far": SendingDatabase(FAR.bytes, where.surroundings.msdb, Path("none"), grants)})


def send_rule(who: str, state: PermissionState = PermissionState.GRANT) -> PermissionRule:
    return PermissionRule(Permission.SEND, "S", parse_principal(who), state)


def first(*findings: Any, **more: Any) -> WhyAnswer:
    """The sender, at `a`, whose way leads over `b`."""
    return told(A, *(findings or (WAITS,)), **{"ways": (way(A),), "sides": [holding()], **more})


def failed(code: int, text: str = "", **more: Any) -> tuple[WhyAnswer, SideShown]:
    """The sender, whose dialog has failed, and its side."""
    one = side(state="ER", error_code=code, error_text=text, **more)
    return first(replace(finding("a", f"error {code}", TROUBLE), database="orders"), sides=[one]), one


def from_target(*findings: Any, to: UUID | None = None, **more: Any) -> WhyAnswer:
    """The target, at `c`, whose way leads back to `a`."""
    target = place("c", 3, "a", service="O")
    return told(target, *findings, ways=(way(target, broker_instance=to, from_target=True),), **more)


Hop: TypeAlias = InstanceView | tuple[InstanceView, WhyAnswer | None]


def traced(
    start: WhyAnswer, *hops: Hop, given: str = "", options: str = "", asked: type[Instances] = Instances
) -> Trace:
    """Over these instances, each with its answer, which is about nothing if left out; None is no answer."""
    pairs = [hop if isinstance(hop, tuple) else (hop, told(hop)) for hop in hops]
    answers = {hop.name: known for hop, known in pairs if known is not None}
    return trace(start, asked({hop.name: hop for hop, _ in pairs}, answers, given=given), options)


def test_what_waits_for_its_reader_is_no_symptom_of_what_keeps_answers_away() -> None:
    unread, refused = finding("a", "waiting for RECEIVE", TROUBLE), finding("a", "not permitted", TROUBLE)

    assert "symptom of not permitted" == traced(first(unread, refused)).symptom
    assert "symptom of waiting for RECEIVE" == traced(first(unread)).symptom


def test_every_instance_on_the_way_is_asked_and_the_farthest_trouble_is_the_cause() -> None:
    at_b, at_c = told(B, finding("b", "held", TROUBLE)), told(C, finding("c", "in quarantine", TROUBLE))

    found = traced(first(), (B, at_b), (C, at_c))
    waits_behind = traced(first(), (B, at_b), (C, told(C, finding("c", "being read", WAITING))))

    assert [("a", "not acknowledged"), ("b", "held"), ("c", "in quarantine")] == [
        (one.instance, one.cause) for one in found.findings
    ]
    assert ("in quarantine", "c", "c: why of in quarantine") == (found.cause, found.where, found.why)
    assert ("next of in quarantine", "remedy of in quarantine") == (found.next, found.remedy)
    assert ("symptom of not acknowledged", []) == (found.symptom, found.not_asked)
    assert found.paths[0].startswith("a -> b -> c: delivered here")
    assert "held" == waits_behind.cause


CONNECT_DENIED = "FATAL from CN=c: CN=b may not connect: no GRANT CONNECT ON ENDPOINT::[c] TO [CN=b]"
REFUSED = "sent; attempt 5, at noon, refused by the next hop: "


@pytest.mark.parametrize("why", [f"{REFUSED}no route (9798)", f"{REFUSED}not permitted (11215)", CONNECT_DENIED])
@pytest.mark.parametrize(
    ("gateway", "lacks"), [(B, ""), (LOST, "CREATE ROUTE"), (guarded(B), "GRANT")], ids=["good", "lost", "guarded"]
)
def test_a_refusal_is_history_once_the_next_hop_would_accept_the_message(
    gateway: InstanceView, lacks: str, why: str
) -> None:
    found = traced(first(replace(finding("a", "refused", TROUBLE), why=why)), gateway, C)

    if lacks:
        assert (TROUBLE, "b") == (found.findings[0].severity, found.where)
        assert f"at b, {RUN} [msdb]; {lacks}" in found.remedy
    else:
        assert ("refused", WAITING) == (found.cause, found.findings[0].severity)
        assert "the next hop would accept it now; before that, " in found.why
        assert found.remedy.endswith("at once: at a, broker dialogs retry")


def frames_for(address: str) -> HeldShown:
    """Frames that are held for this next hop."""
    return HeldShown(True, "S", None, "//Orders", None, address, "waiting for a connection", 1, 1500, 0)


@pytest.mark.parametrize(("waits_there", "goes_on"), [(True, True), (False, True), (False, False)])
def test_a_copy_that_waits_at_the_next_hop_is_no_history(*, waits_there: bool, goes_on: bool) -> None:
    """A gateway that was started again has it no more."""
    why = "sent to tcp://b:4022 at noon; attempt 5, refused by the next hop: already held (11288)"
    start = first(replace(finding("a", "already held", TROUBLE), why=why), sides=[holding(status=why)])
    there = B if goes_on else LOST

    [found, *_] = traced(start, (there, told(there, held=[frames_for("tcp://c:4022")] * waits_there)), C).findings

    told_now = "the next hop would accept it now" if goes_on else "that next hop has no copy any longer"
    history = (
        f"it is sent again, and {told_now}; before that, {why}",
        "nothing, or send it again at once: at a, broker dialogs retry",
    )
    assert ((why, "remedy of already held") if waits_there else history) == (found.why, found.remedy)


@pytest.mark.parametrize(
    ("problem", "is_beyond"),
    [
        (f"TLS refused: the peer {NOT_TRUSTED}: add it", False),
        ("Connection refused", False),
        (f"FATAL from the peer: CN=a {MAY_NOT_CONNECT}: no GRANT", True),
        (f"CN=b {MAY_NOT_CONNECT}: no GRANT", False),
    ],
)
def test_what_does_not_reach_the_next_hop_has_not_come_to_the_permissions_beyond(
    problem: str, *, is_beyond: bool
) -> None:
    start = first(finding("a", "next hop not reached", TROUBLE), ways=(way(place("a", 1, "b", problem=problem)),))

    found = traced(start, (guarded(B), told(B, finding("b", "waiting for RECEIVE", TROUBLE))))

    assert is_beyond == (found.cause != "next hop not reached")
    assert is_beyond == ("not permitted" in [one.cause for one in found.findings])
    assert is_beyond != (found.paths == [f"a -> tcp://b:4022: {problem}"])


def test_a_copy_at_an_instance_that_is_no_longer_on_the_way_is_told_and_is_no_obstacle() -> None:
    beside = place("d", 4, "c")
    known = told(beside, finding("d", "held", TROUBLE), held=[frames_for("tcp://x:4022")])

    found = traced(first(), B, C, (beside, known), given="d")

    assert ("held", WAITING) == (found.cause, found.findings[-1].severity)


@pytest.mark.parametrize(
    ("where", "held", "ready", "is_cause"),
    [("c", 1, 0, True), ("c", 0, 1, False), ("c", 0, 0, False), ("a", 0, 1, True)],
    ids=["sent", "arrived", "nothing", "in its own queues"],
)
def test_a_locked_database_is_a_cause_for_what_waits_for_it(
    where: str, held: int, ready: int, *, is_cause: bool
) -> None:
    lock = Spot(where, "orders").found("write lock held", who="process 7", seconds=9.0)
    near, far = ([lock], []) if where == "a" else ([], [lock])

    found = traced(first(WAITS, *near, sides=[side(held=held, ready=ready)]), B, (C, told(C, *far)))

    assert is_cause == (found.cause == "write lock held")


def test_what_a_far_instance_has_put_right_is_sent_again_by_a_command_at_the_sender() -> None:
    hops = (B, told(B, finding("b", "not permitted", WAITING, remedy=DEFINITIONS_CHANGED))), C

    sent, nothing = (traced(start, *hops, options=" -c a.toml") for start in (first(), first(sides=[])))

    assert sent.remedy.endswith("at once: broker dialogs retry -c a.toml")
    assert DEFINITIONS_CHANGED == nothing.remedy


@pytest.mark.parametrize(("held", "cause"), [(2, "not permitted"), (0, "waiting for RECEIVE")])
def test_a_sender_whose_acknowledgements_were_refused_is_not_told_to_start_a_reader(held: int, cause: str) -> None:
    refused = finding("a", "not permitted", WAITING, remedy=DEFINITIONS_CHANGED)
    unread = told(C, finding("c", "waiting for RECEIVE", TROUBLE))

    found = traced(first(WAITS, refused, sides=[holding(held)]), B, (C, unread))

    assert (cause, held > 0) == (found.cause, "broker dialogs retry" in found.remedy)


@pytest.mark.parametrize("is_permitted", [True, False])
def test_a_connection_that_a_later_hop_refused_is_history_once_it_would_be_taken(*, is_permitted: bool) -> None:
    found = traced(first(), place("b", 2, "c", problem=CONNECT_DENIED), C if is_permitted else place("c", 3, ""))

    assert is_permitted == ("before that" in next(one.why for one in found.findings if one.instance == "b"))


@pytest.mark.parametrize(("service", "cause"), [("S", "queue off"), ("T", "not acknowledged")])
def test_the_queue_that_is_off_where_the_message_would_be_delivered_is_its_cause(service: str, cause: str) -> None:
    """With the statement to run: the sender knows neither the queue nor its database."""
    last = told(C, queues_off=[QueueOff(AT_C, service, "Q"), QueueOff("other", "S", "Q")])

    found = traced(first(), B, (C, last))

    assert cause == found.cause
    assert (cause == "queue off") == (f"at c, with broker sql: USE [{AT_C}]; ALTER QUEUE [Q]" in found.remedy)


def test_a_dead_end_on_the_way_of_what_waits_is_its_cause() -> None:
    found = traced(first(), LOST)

    assert ("no route", "b") == (found.cause, found.where)
    assert f"at b, {RUN} [msdb]; CREATE ROUTE [S]" in found.remedy
    assert END in found.remedy


def test_where_both_sides_have_failed_the_one_that_says_why_is_the_cause_with_what_is_left_to_do_at_both() -> None:
    near, far = finding("a", "error -8470", TROUBLE), finding("c", "error", TROUBLE)

    found = traced(first(near, sides=[side(state="ER")]), B, (C, told(C, far, sides=[side(state="ER")])))

    assert ("error -8470", "a") == (found.cause, found.where)
    assert "remedy of error -8470. Then, remedy of error" == found.remedy


def test_what_lacks_the_way_back_at_the_target_is_imported_again_though_nothing_waits_there() -> None:
    lost = Spot("a", "msdb").found("imports lost")

    found = traced(first(finding("a", "no way back", TROUBLE), lost, sides=[side(is_initiator=False)], ways=()))

    assert "imports lost" == found.cause


@pytest.mark.parametrize(("lost", "is_cause"), [(GONE, True), (FAR, False)])
def test_a_lost_database_is_put_back_before_a_dialog_with_it_is_ended(lost: UUID, *, is_cause: bool) -> None:
    anew = place("b", 2, None)
    known = told(anew, Spot("b", "stock", " -c b.toml").found("database replaced", problem=f"it was {show_guid(lost)}"))

    found = traced(first(ways=(way(A, broker_instance=GONE),)), (anew, known))

    assert is_cause == (found.cause == "database replaced")
    assert is_cause == ("accept the new one, broker database keep -c b.toml stock" in found.remedy)


@pytest.mark.parametrize(
    ("known", "is_gone"),
    [({}, True), ({"sides": [side()]}, False), ({"looked_in": ["not in database far: it cannot be read"]}, False)],
)
def test_a_dialog_that_is_open_here_and_unknown_where_its_messages_go_is_ended_here(
    known: dict[str, Any], *, is_gone: bool
) -> None:
    received = side(is_initiator=False, receive_sequence=1, database="far")
    sender = place("a", 1, None)

    found = traced(from_target(finding("c", "received", FINE), sides=[received]), (sender, told(sender, **known)))

    assert is_gone == (("far side gone", "c, database far") == (found.cause, found.where))
    assert is_gone == ("at c, with broker sql: USE [far]; END CONVERSATION 'HANDLE';" in found.remedy)


def test_a_message_that_is_unread_is_received_before_its_dialog_which_the_sender_has_forgotten_is_ended() -> None:
    unread = side(is_initiator=False, receive_sequence=1, ready=1, database="far")
    waits = finding("c", "waiting for RECEIVE", TROUBLE)

    found = traced(from_target(waits, sides=[unread]), place("a", 1, None))
    [gone] = [one for one in found.findings if one.cause == "far side gone"]

    assert waits.remedy == found.remedy
    assert gone.remedy.startswith(
        "first, the application of //Orders should RECEIVE the messages in its queue; then, END CONVERSATION"
    )


def test_what_the_target_sends_is_ended_there() -> None:
    """The database of the initiator has been made again."""
    found = traced(from_target(WAITS, to=GONE, sides=[holding(is_initiator=False)]), place("a", 1, None))

    assert found.remedy.endswith(
        "at c, with broker sql: USE [orders]; END CONVERSATION 'HANDLE' WITH CLEANUP; and have S begin another dialog."
        " Send again what was not processed."
    )


def test_messages_of_a_dialog_that_the_far_side_has_forgotten_are_said_to_be_lost() -> None:
    found = traced(first(sides=[holding(state="CO", acknowledged_sequence=1)]), B, C)

    assert "far side gone" == found.cause
    assert found.remedy.startswith("1 message of it will not arrive: the dialog fails by itself (-8462)")
    assert found.remedy.endswith("; Then begin another dialog, and send again what was not processed")


def test_of_a_side_that_is_closed_the_far_side_is_asked_where_admin_says() -> None:
    over = [finding(name, "over", FINE, remedy="ask there") for name in "ac"]
    unread = told(C, finding("c", "waiting for RECEIVE", TROUBLE), sides=[side(ready=1)])
    closed = told(C, over[1], closed=[ClosedShown("c", False, 0, AT, AT)])
    start = first(over[0], ways=(), sides=[])

    found, both, alone = traced(start, (C, unread), given="c"), traced(start, (C, closed), given="c"), traced(start)

    assert ("waiting for RECEIVE", "c") == (found.cause, found.where)
    assert ("nothing has to be done: no side of the dialog is open", "ask there") == (both.remedy, alone.remedy)


@pytest.mark.parametrize(
    ("rules", "is_known", "is_told"), [([], False, True), ([], True, False), ([send_rule("CN=x")], False, False)]
)
def test_a_database_that_lets_no_sender_begin_is_told_before_the_message_comes_there(
    rules: list[PermissionRule], *, is_known: bool, is_told: bool
) -> None:
    target = homed(place("b", 2, None), *rules)
    there = target, told(target, sides=[side(is_initiator=False)] if is_known else [])

    sealed, found = traced(first(sides=[holding(principal="CN=a")]), there), traced(first(), there)

    assert is_told == ("GRANT SEND ON SERVICE::[S] TO [PRINCIPAL];" in found.remedy)
    assert is_told == ("GRANT SEND ON SERVICE::[S] TO [CN=a];" in sealed.remedy)
    assert "PRINCIPAL" not in sealed.why


def test_a_deny_in_the_database_of_the_target_is_no_missing_grant() -> None:
    deny = send_rule("CN=a", PermissionState.DENY)

    class Denying(Instances):
        def send_ruling(self, address: NetworkAddress, database: str, who: str, service: str) -> PermissionRuling:
            return Grants([deny], is_default_deny=True).send(who_is(who), service)

    found = traced(first(sides=[holding(principal="CN=a")]), homed(place("b", 2, None), deny), asked=Denying)

    assert found.remedy.startswith("if DENY SEND ON SERVICE::[S] TO [CN=a] is not meant, at b, with broker sql")
    assert "no GRANT" not in f"{found.findings} {found.paths}"


def test_two_grants_that_the_target_lacks_are_told_at_once_that_of_its_database_first() -> None:
    """With the one of msdb alone the message would arrive, and its dialog fail."""
    found = traced(first(sides=[holding(principal="CN=a")]), guarded(homed(place("b", 2, None))))

    one, other = found.remedy.split(" And ")
    assert one.startswith(f"at b, {RUN} [far]; GRANT SEND ON SERVICE::[S] TO [CN=a];")
    assert f"at b, {RUN} [msdb]; GRANT" in other


@pytest.mark.parametrize("looked_in", ["not in database stock: its file is not there", "database stock"])
def test_a_store_that_has_failed_and_cannot_be_looked_into_is_told_though_all_was_acknowledged(looked_in: str) -> None:
    target = place("b", 2, None)
    lost = Spot("b", "stock").found("store failed", problem="its file is gone", remedy="put it back")

    found = traced(first(ACKNOWLEDGED, sides=[side()]), (target, told(target, lost, looked_in=[looked_in])))

    assert ("store failed" if looked_in.startswith("not") else "acknowledged") == found.cause


@pytest.mark.parametrize(("anew", "is_cause"), [(LOST, True), (B, False)], ids=["refused", "goes on"])
def test_what_partner_files_had_brought_is_imported_again_before_a_statement_is_written(
    anew: InstanceView, *, is_cause: bool
) -> None:
    found = traced(first(), (anew, told(anew, Spot("b", "msdb", " -c b.toml").found("imports lost"))), C)

    assert is_cause == (found.cause == "imports lost")
    assert is_cause == found.remedy.startswith("at b, broker partner import -c b.toml FILE again")


def test_a_dead_end_on_a_way_that_nothing_waits_for_is_no_trouble() -> None:
    well = traced(first(ACKNOWLEDGED, finding("a", "x", WAITING), sides=[side(send_sequence=1)]), LOST)

    assert "x" == well.cause
    assert "nothing known here waits for it; the next message of the dialog meets it" == well.findings[-1].next
    assert "acknowledged" == traced(first(ACKNOWLEDGED, sides=[side()]), LOST).cause


@pytest.mark.parametrize(
    ("hop", "instance", "cause", "remedy"),
    [
        (
            place("b", 2, "c", problem="Connection refused"),
            None,
            "next hop not reached",
            "start the instance at tcp://c:4022",
        ),
        (place("b", 2, None, service="T"), None, "service not here", "CREATE ROUTE [S] WITH SERVICE_NAME = 'S'"),
        (
            place("b", 2, None, service="T"),
            FAR,
            "service not found",
            f"at b, {RUN} [{THERE}]; CREATE SERVICE [S] ON QUEUE [QUEUE];",
        ),
    ],
)
def test_what_an_instance_on_the_way_would_do(hop: Any, instance: UUID | None, cause: str, remedy: str) -> None:
    [_, found] = traced(first(ways=(way(A, broker_instance=instance),)), hop).findings

    assert (cause, TROUBLE, "b") == (found.cause, found.severity, found.instance)
    assert remedy in found.remedy


@pytest.mark.parametrize("is_waiting", [True, False])
def test_what_the_target_has_dropped_or_cannot_acknowledge_is_told_where_something_waits(*, is_waiting: bool) -> None:
    start = first(sides=[holding() if is_waiting else side()])
    far = finding("c", "no way back", TROUBLE), finding("c", "waiting for RECEIVE", TROUBLE)

    dropped = traced(start, B, (C, told(C, drops=[finding("c", "not permitted", WAITING)])))
    unread = traced(start, B, (C, told(C, *far)))

    assert is_waiting == (dropped.cause == "not permitted")
    assert ("no way back" if is_waiting else "waiting for RECEIVE") == unread.cause


def test_a_loop_is_a_cause() -> None:
    found = traced(first(), place("b", 2, "a"), A)

    assert "loop" in [one.cause for one in found.findings]
    assert "a -> b -> a" in found.paths[0]


def test_a_route_that_leads_back_to_where_the_message_began_is_the_one_to_change() -> None:
    """Its port is wrong; what is missing where it leads is not to be made there."""
    start = first(ways=(way(homed(A)),))

    found = traced(start, place("b", 2, "a"), guarded(place("a", 1, None, service="T")))

    assert ("loop", "a") == (found.cause, found.where)
    assert "route r of b leads back to a: " in found.why
    route = f"at b, {RUN} [msdb]; ALTER ROUTE [r] WITH ADDRESS = 'tcp://HOST:PORT';"
    assert f"{route} with the address of the instance that has S, or of one that leads there" == found.remedy


MAY_CONNECT = PermissionRule(Permission.CONNECT, "*", parse_principal("public"), PermissionState.GRANT)


@pytest.mark.parametrize(
    ("to", "rules", "is_asked"), [("c", [MAY_CONNECT], False), ("", [MAY_CONNECT], True), ("c", [], True)]
)
def test_the_address_is_asked_for_as_well_as_a_permission_where_nothing_leads_on_or_a_stranger_connects(
    to: str, rules: list[PermissionRule], *, is_asked: bool
) -> None:
    found = traced(first(), guarded(place("b", 2, to), *rules))

    assert is_asked == ("if route r of a is not to lead to b, at a, with broker sql" in found.remedy)
    assert ("Or, if the name is wrong" in found.remedy) == (to == "")
    assert f"at b, {RUN} [msdb]; GRANT {'SEND' if rules else 'CONNECT'}" in found.remedy


OF_OLD = routed(A, Route("r", NetworkAddress("c"), "S", UUID(int=0x01D)))
REPLACED = f"S at c is broker instance {THERE} now, and the messages name {OLD}: "
BEGIN = "and begin another dialog. Send again what was not processed."


def test_a_broker_instance_that_was_replaced_is_told_with_the_routes_that_name_the_old_one() -> None:
    """Unread messages are received before an END removes them."""
    ways = (way(OF_OLD, broker_instance=UUID(int=0x01D)),)

    found = traced(first(ways=ways, sides=[holding(acknowledged_sequence=1)]), C)
    unread = [holding(acknowledged_sequence=1, ready=2)]
    with_unread = traced(first(ways=ways, sides=unread, config_option=" -c a.toml"), C)

    alter = f"at a, {RUN} [msdb]; ALTER ROUTE [r] WITH BROKER_INSTANCE = '{THERE}';"
    assert f"{REPLACED}{alter} Then {END} {BEGIN}" == found.remedy
    read = "broker receive -c a.toml -d orders --queue Q --conversation HANDLE"
    assert f"first receive its unread messages, which END removes (at a, {read}); then at a, with" in with_unread.remedy


@pytest.mark.parametrize(
    ("state", "hosts", "is_gone"),
    [("CO", "c", True), ("DO", "c", False), ("CO", "cd", False)],
    ids=["open", "ended here", "another next hop may have it"],
)
def test_what_was_stored_by_a_database_that_was_made_again_may_be_lost_though_nothing_waits(
    state: str, hosts: str, *, is_gone: bool
) -> None:
    sent = side(state=state, send_sequence=1, acknowledged_sequence=1)
    start = first(ACKNOWLEDGED, ways=(way(A, broker_instance=UUID(int=0x01D)),), sides=[sent])
    gateway = routed(B, *(Route(host, NetworkAddress(host), "S") for host in hosts))

    found = traced(start, gateway, C, (place("d", 4, None), told(C)))

    assert ("far side gone" if is_gone else "acknowledged") == found.cause
    if is_gone:
        assert found.next.startswith("what had arrived there and was not received is lost; ")
        assert f"{REPLACED}{END} {BEGIN}" == found.remedy


@pytest.mark.parametrize("is_from_target", [True, False])
def test_a_route_that_names_another_broker_instance_than_the_messages_is_told(*, is_from_target: bool) -> None:
    gateway = routed(B, Route("r", NetworkAddress("c"), "S", UUID(int=0x01D)))
    begun = way(A, broker_instance=FAR, from_target=is_from_target)
    sender = holding(is_initiator=not is_from_target, acknowledged_sequence=1)

    remedy = traced(first(ways=(begun,), sides=[sender]), gateway).remedy

    assert remedy.startswith(
        f"no route leads to broker instance {THERE}, which the messages are for, and they wait until one does. Make it"
        f" with its former WEIGHT, if it had one, and at each gateway that lacks it: at b, {RUN} [msdb];"
        f" CREATE ROUTE [S {THERE[:8]}] WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{THERE}',"
        " ADDRESS = 'tcp://HOST:PORT';"
    )
    assert is_from_target != remedy.endswith(
        f"Or, only if it does not come back, {END} and begin another dialog: what it has not acknowledged is lost"
    )


@pytest.mark.parametrize(
    ("acknowledged", "begins"), [(0, ""), (1, f"{END} and begin another dialog, as it has answered this one")]
)
def test_a_target_that_is_not_reached_and_is_one_of_several_can_be_taken_out(acknowledged: int, begins: str) -> None:
    sender = routed(A, *(Route(name, NetworkAddress(name), "S", UUID(int=ord(name))) for name in "bc"))
    sender = replace(sender, problem_of=lambda _: "Connection refused")
    down, sides = finding("a", "next hop not reached", TROUBLE), [holding(acknowledged_sequence=acknowledged)]
    start = told(sender, down, ways=(way(sender),), sides=sides)

    found = traced(start)

    assert found.remedy.startswith(f"{down.remedy}. If it does not return soon, {begins or 'take it out'}")
    out = "take it out: remove its routes from the scripts, and then, at a, with broker sql: USE [msdb]; DROP ROUTE"
    assert f"{out} [{start.ways[0].explanation.route}]; Then at a, broker reload. Keep it stopped" in found.remedy
    sent = replace(start, sides=[side(acknowledged_sequence=acknowledged)])
    assert "soon, take it out" in traced(sent).remedy  # another dialog would double it


@pytest.mark.parametrize("chooses", [True, False], ids=["the sender chooses as well", "gateways choose"])
def test_a_target_is_taken_out_wherever_it_is_chosen_also_beside_the_way(*, chooses: bool) -> None:
    def several(*hops: str) -> list[Route]:
        ways = [(to, hop) for to in "xy" for hop in hops or to]
        return [Route(f"{to}{hop}", NetworkAddress(hop), "S", UUID(int=ord(to))) for to, hop in ways]

    to_all = [Route("AutoCreatedLocal", LOCAL), *(Route(hop, NetworkAddress(hop)) for hop in "gh")]
    sender = routed(A, *(several("g", "h") if chooses else to_all))
    gateways = [routed(place(name, number, "", problem="refused"), *several()) for name, number in [("g", 2), ("h", 3)]]
    start = first(ways=(way(sender),))

    found, partly = (traced(start, (sender, None), *gateways, given=given) for given in ("agh", ""))

    steps = found.remedy.partition(" and then, ")[2].partition(" Then at ")[0].split(" And ")
    out = {step[3]: set(re.findall(r"DROP ROUTE \[(.*?)\];", step)) for step in steps}
    gone = min(out["g"])[0]
    assert {**({"a": {f"{gone}g", f"{gone}h"}} if chooses else {}), "g": {gone * 2}, "h": {gone * 2}} == out
    assert f"at h, with broker sql: USE [msdb]; DROP ROUTE [{gone * 2}];" in steps
    [other] = {"g", "h"} - {one.instance for one in partly.answers}
    assert f"soon, ask tcp://{other}:4022 as well (--admin)" in partly.remedy
    assert "soon, take it out: " in found.remedy


def test_a_dialog_that_the_far_database_has_failed_names_that_database_unless_it_is_only_to_be_begun_again() -> None:
    start, _ = failed(-8490)
    over, one = failed(-9727)
    again = begin_again(one, Spot("a", "orders"))
    over = replace(over, findings=[replace(over.findings[0], remedy=again)])

    assert f"at c, {RUN} [{AT_C}]; CREATE SERVICE [S] ON QUEUE" in traced(start, B, C).remedy
    assert again == traced(over, B, C).remedy


class Granting(Instances):
    """Where one principal may send by now."""

    def send_ruling(self, address: NetworkAddress, database: str, who: str, service: str) -> PermissionRuling:
        assert ("tcp://c:4022", AT_C, "S") == (str(address), database, service)
        return Grants([send_rule("CN=a]")], is_default_deny=True).send(who_is(who), service)


SEND_AT_C = f"at c, {RUN} [{AT_C}]; GRANT SEND ON SERVICE::[S] TO [CN=x];"


@pytest.mark.parametrize(("who", "is_lacking"), [("CN=a]", False), ("CN=x", True)])
def test_a_sender_that_the_target_does_not_let_send_is_told_though_another_one_may(
    who: str, *, is_lacking: bool
) -> None:
    found = traced(first(sides=[holding(principal=who)]), B, C, asked=Granting)

    assert is_lacking == (SEND_AT_C == found.remedy)


@pytest.mark.parametrize(
    ("who", "acknowledged", "is_told"), [("CN=x", 0, True), ("CN=a]", 0, False), ("CN=x", 1, False)]
)
def test_a_grant_that_the_target_lacks_is_told_though_a_hop_before_it_refuses_messages(
    who: str, acknowledged: int, *, is_told: bool
) -> None:
    start = first(sides=[holding(principal=who, acknowledged_sequence=acknowledged)])

    open_, found = (traced(start, guarded(B), (one, None), asked=Granting) for one in (C, guarded(C)))

    told_first = found.remedy.startswith(f"{SEND_AT_C} And"), any("-8494" in one.next for one in found.findings)
    assert (is_told, is_told) == told_first
    assert f"at b, {RUN} [msdb]; GRANT CONNECT" in found.remedy
    assert open_.remedy == found.remedy


@pytest.mark.parametrize(("who", "is_over"), [("CN=a]]", True), ("CN=x", False)])
def test_a_dialog_that_failed_for_want_of_a_permission_is_only_begun_again_once_it_is_granted(
    who: str, *, is_over: bool
) -> None:
    """That is asked at its target, though the next hop refuses messages now."""
    start, one = failed(-8494, f"you do not have permission: no GRANT SEND ON SERVICE::[S] TO [{who}] or public")

    found = traced(start, B, C, asked=Granting)
    beyond = traced(start, guarded(B), (C, None), asked=Granting)

    assert is_over == (begin_again(one, Spot("a", "orders")) == found.remedy)
    assert is_over != (f"GRANT SEND ON SERVICE::[S] TO [{who}];" in found.remedy)
    [told_beyond] = [one for one in beyond.findings if one.cause == "error -8494"]
    assert (found.remedy, is_over) == (told_beyond.remedy, "permitted now" in told_beyond.why)


def test_a_dialog_that_failed_by_a_deny_has_what_refuses_it_now_as_remedy() -> None:
    start, _ = failed(-8494, "you do not have permission: DENY SEND ON SERVICE::[S] TO [public]", principal="CN=x")

    found = traced(start, B, C, asked=Granting)

    assert "; what refuses it now: no GRANT SEND ON SERVICE::[S] TO [CN=x] or public" in found.why
    assert ("GRANT SEND ON SERVICE::[S] TO [CN=x];" in found.remedy, "REVOKE" in found.remedy) == (True, False)


@pytest.mark.parametrize(
    ("rows", "may_send"),
    [
        ([["CN=a", "GRANT", "S"]], True),
        ([["public", "GRANT", "*"]], True),
        ([["CN=a", "GRANT", "S"], ["public", "DENY", "S"]], False),
        ([["CN=b", "GRANT", "S"], ["CN=a", "GRANT", "T"]], False),
        ([], False),
    ],
)
def test_whether_a_principal_may_send_by_now_is_asked_of_the_far_database(
    fake_admin: Any, rows: list[list[str]], *, may_send: bool
) -> None:
    address = NetworkAddress("b")
    fake_admin.answers["/v1/sql"] = (200, {"rows": rows})

    ruling = Directory({address: fake_admin.path}).send_ruling(address, "far", "CN=a", "S")

    assert ruling is not None
    assert may_send == ruling.is_permitted
    assert "far" == fake_admin.asked[0][2]["database"]
    assert Directory({address: f"{fake_admin.path}.none"}).send_ruling(address, "far", "CN=a", "S") is None


def test_who_could_not_be_asked_is_told_and_the_rest_is_said() -> None:
    found = traced(first(), (B, None))

    assert "not acknowledged" == found.cause
    assert 2 == len(found.not_asked)
    assert found.not_asked[0].startswith("it is gone; say where to ask with --admin tcp://b:4022=")
    assert "not known from there on: nobody there" in found.not_asked[1]


@pytest.mark.parametrize(
    ("cause", "held_since", "begins"),
    [
        ("acknowledged", None, "ask the rest of the way: "),
        ("received", None, "ask the rest of the way: "),
        ("not acknowledged", None, "nothing, unless it lasts: then ask the rest "),
        ("not acknowledged", AT, "ask the rest of the way: "),
        ("already held", AT, "ask the rest of the way: "),
    ],
)
def test_where_the_rest_of_the_way_may_have_the_cause_the_remedy_is_to_ask_it(
    cause: str, held_since: datetime | None, begins: str
) -> None:
    """The dialog may be in quarantine at the target."""
    remedy = "" if cause != "not acknowledged" else "nothing, unless it lasts"
    start = first(finding("a", cause, FINE, remedy=remedy), sides=[side(held_since=held_since)])
    directory = Instances({}, {})
    directory.given = {NetworkAddress("x"): Path("x y.sock"), NetworkAddress("b"): "http://b:1"}

    asked_on = trace(start, directory, " -c a.toml").remedy

    assert asked_on.startswith(begins)
    command = f"broker why {start.id} -c a.toml --admin 'tcp://x:4022=x y.sock' --admin tcp://b:4022=http://HOST:PORT ("
    assert command in asked_on
    assert (remedy or "nothing has to be done") == traced(start, B, C).remedy
    assert "remedy of held" == traced(first(finding("a", "held", TROUBLE))).remedy


def test_from_the_target_the_sender_is_found_and_its_way_followed_again() -> None:
    """c, the target, has a way back to a; what a knows has a way to c over b."""
    start = from_target(finding("c", "nothing sent", FINE), sides=[side(is_initiator=False)])
    instances = Instances({"a": place("a", 1, None), "b": B, "c": C}, {"a": first(), "b": told(B), "c": start})

    found = trace(start, instances)

    assert (["c", "a", "b"], ["a", "b"]) == ([one.instance for one in found.answers], instances.asked)
    assert "not acknowledged" == found.cause


CREATE = "CREATE ROUTE [S] WITH SERVICE_NAME = 'S', ADDRESS ="


def test_a_missing_route_has_the_address_of_the_instance_that_has_the_service() -> None:
    """One that --admin names, or the sender for the way back; where the address is not known, several are named."""
    other, sender = place("d", 4, ""), replace(first(sides=[holding(service_name="S")]), addresses=["tcp://a:1"])
    gateway = place("b", 2, None)
    there = replace(gateway, surroundings=replace(gateway.surroundings, hosted=hosted({})))
    back = replace(sender, ways=[way(place("c", 3, "b"), from_target=True)])

    assert traced(first(), LOST, C, given="bc").remedy.startswith(f"at b, {RUN} [msdb]; {CREATE} 'tcp://c:4022';")
    assert f"{CREATE} 'tcp://a:1';" in traced(back, LOST).remedy
    with_weight = traced(first(ways=(way(A, broker_instance=FAR),)), there, C, given="bc").remedy
    assert "ADDRESS = 'tcp://c:4022';" in with_weight
    assert with_weight.startswith("if the service is elsewhere (a route that had a WEIGHT needs it again), at b, with")
    at_each = " And ".join(f"at {name}, {RUN} [msdb]; {CREATE} 'tcp://HOST:PORT';" for name in "bd")
    assert traced(first(), LOST, other, given="bd").remedy.startswith(at_each)
