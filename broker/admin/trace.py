"""
Traces of a message, a plan and a conversation from instance to instance; only questions are sent.

Each instance is asked what it would do with a message that the one before forwards; of several addresses the one that
would be used now is followed. The msdb of an instance decides about every message that arrives there, so an instance at
which the message arrives a second time forwards it as before: a loop.

For a plan the instance that makes it says where messages would go; every other one says what it would do with them now.
For a conversation each instance of the path is also asked what it knows of it. A side that is found there has its own
path, so the sender is found from the target, and the reverse.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta, structs

from broker.admin.client import NO_CREDENTIALS, AdminClient, ClientCredentials, ProblemError
from broker.advice import ADDRESS_GAP, render_name, run_at, to_run
from broker.config.values import ListenAddress
from broker.dialog.status import REFUSED
from broker.errors import MAY_NOT_CONNECT, BrokerError, DaemonUnreachableError
from broker.flow import Disposition
from broker.observe.causes import (
    ERROR_RECEIVED,
    IMPORTS_LOST,
    LOOP,
    NO_PERMISSION,
    NO_WAY_BACK,
    OVER,
    RECEIVED,
    REPLACED,
    UNREAD,
    WRITE_LOCK,
    Severity,
    WhyFinding,
    begin_again,
    cause_of_failure,
    dead_end,
    far_side_gone,
    instance_of_several,
    is_cut_off,
    is_failure,
    joined,
    next_hop_problem,
    other_candidates,
    queue_off_finding,
    remedy_of_failed,
    remedy_of_loop,
    routes_of_service,
    sent_to,
    taken_route,
    waiting_dialog,
)
from broker.observe.drops import DEFINITIONS_CHANGED
from broker.observe.explain import ExplainAnswer, ExplainRequest
from broker.observe.health import OF_IMPORTS
from broker.observe.message_catalogue import TakenRoute, WaitingDialog, remedy_of, remedy_of_unreached
from broker.observe.why import WhyAnswer
from broker.routing.address import NetworkAddress, parse_address
from broker.routing.explain import Explanation, Outcome, failing, how_to_permit
from broker.security.grants import Grants, Permission, PermissionRule, PermissionRuling, PermissionState, refused_sender
from broker.security.principal import PUBLIC, PrincipalError, parse_principal, who_is

ADMIN_PORT = 9422  # the documented one; where an instance is asked unless said otherwise
HOPS_MAX = 255  # what the wire can count
LASTING_SECONDS = 60.0  # after which a message that is not acknowledged is one to ask about
TIMEOUT_SECONDS = 10.0  # for an instance that may be far, or not there at all
_SEND_AGAIN = (
    "nothing, if that was all that was missing: broker check with a -c for each instance lists the rest. It is sent"
    " again by itself, or at once: broker dialogs retry"
)
_REFUSED = OF_IMPORTS | {NO_WAY_BACK}
_NOT_STORING = {WRITE_LOCK, Disposition.STORE_FAILED}
FORECAST = "nothing known here waits for it; the next message of the dialog meets it"
_DROPS = frozenset(Disposition)
Asking = Callable[[NetworkAddress, ExplainRequest], ExplainAnswer]
_T = TypeVar("_T")
_Answer = TypeVar("_Answer", WhyAnswer, ExplainAnswer)


# --- answers ---


class TraceEnd(StrEnum):
    """Why no further instance was asked."""

    DECIDED = "decided"  # the last one delivers, holds, delays or drops it
    LOOP = "loop"
    UNKNOWN = "unknown"  # the instance at the next address could not be asked
    TOO_FAR = "too far"


_GOES_ROUND = frozenset({TraceEnd.LOOP, TraceEnd.TOO_FAR})
_NOT_REACHED = frozenset({"next hop not reached", "held"})
# For these, what the far instances know is what matters.
_GOES_ON_BEYOND = frozenset({"acknowledged", "not acknowledged", RECEIVED, Disposition.ALREADY_HELD})


class TracedRoute(msgspec.Struct, frozen=True):
    """The way of a message, as far as it is known."""

    hops: Annotated[tuple[ExplainAnswer, ...], Meta(description="One answer for each instance, in order.")]
    end: TraceEnd
    sentence: str

    @property
    def arrives(self) -> bool:
        """Whether the way is good as far as it is known; False when it leads nowhere, or on for ever."""
        return self.end in {TraceEnd.DECIDED, TraceEnd.UNKNOWN} and self.hops[-1].explanation.has_way


class RoutingLoop(msgspec.Struct, frozen=True):
    """Messages to one service that would never arrive."""

    to_service: str
    path: Annotated[str, Meta(description="The whole way in one sentence.")]
    was_there: Annotated[bool, Meta(description="Whether they go round now as well.")]


class Followed(msgspec.Struct, frozen=True):
    """Loops that were found, and a sentence for each path whose end is not known."""

    loops: list[RoutingLoop]
    unknown: list[str]


class Trace(msgspec.Struct, frozen=True):
    """One cause chain over all instances, and what it is made of."""

    id: str
    conversation_id: str | None
    cause: str
    where: Annotated[str, Meta(description="The instance and database that the cause is at.")]
    symptom: str
    why: str
    next: str
    remedy: str
    findings: Annotated[list[WhyFinding], Meta(description="Of all instances, in the order of the way.")]
    paths: Annotated[list[str], Meta(description="The ways that messages take, one sentence each.")]
    not_asked: Annotated[list[str], Meta(description="Who could not be asked, and why.")]
    answers: Annotated[list[WhyAnswer], Meta(description="The answers of the instances.")]


# --- asking ---


class NotAskedError(BrokerError):
    """The instance at an address could not be asked."""

    address: NetworkAddress
    problem: str
    says: ClassVar[str] = "{problem}; say where to ask with --admin {address}=http://HOST:PORT or =PATH of its socket"


class Directory:
    """
    Asks the instance at an address. One that could not be asked where a message would go is not asked again.

    Args:
        where: URL or socket file of the admin API by address of the instance. An address that is not in it is asked
            on its own host's documented port, over TLS unless that is loopback, and the instance there must know
            the address as its own.
        credentials: What is shown to the instances in `where`; to others no token is shown.

    Attributes:
        given: The argument `where`.
        places: Where the instances of `given` were asked, by name.
    """

    def __init__(
        self, where: Mapping[NetworkAddress, Path | str], *, credentials: ClientCredentials = NO_CREDENTIALS
    ) -> None:
        self.given = where
        self.places: dict[str, Path | str] = {}
        self._names: dict[NetworkAddress, str] = {}
        self._where = where
        self._credentials = credentials
        self._silent: dict[NetworkAddress, NotAskedError] = {}

    def learn(self, client: AdminClient, answer: _Answer) -> _Answer:
        """The instance that has answered this client is asked there at its own addresses, too; returns the answer."""
        own = {one: client.where for one in map(parse_address, answer.addresses) if isinstance(one, NetworkAddress)}
        self._where = {**own, **self._where}
        return answer

    def explain(self, address: NetworkAddress, request: ExplainRequest) -> ExplainAnswer:
        """
        Ask the instance at this address what it would do.

        Raises:
            NotAskedError: none answers there, it refuses to, or it is another instance that does.
        """
        if address in self._silent:
            raise self._silent[address]
        try:
            return self._explain(address, request)
        except NotAskedError as error:
            self._silent[address] = error
            raise

    def why(self, address: NetworkAddress, conversation: UUID) -> WhyAnswer:
        """
        Ask the instance at this address about a conversation, after `explain`.

        Raises:
            NotAskedError: it does not answer now, or not like this version.
        """
        return self._placed(address, self._ask(address, lambda client: ask_why(client, conversation)))

    def named(self, remedy: str) -> str:
        """A remedy with the name of the instance at each address of which it says what to do there."""
        for address, name in self._names.items():
            remedy = remedy.replace(f"at {address}: ", f"at {name} ({address}): ")
        return remedy

    def _placed(self, address: NetworkAddress, answer: _Answer) -> _Answer:
        self._names[address] = answer.instance
        if address in self.given:
            self.places[answer.instance] = self.given[address]
        return answer

    def _explain(self, address: NetworkAddress, request: ExplainRequest) -> ExplainAnswer:
        answer = self._ask(address, lambda client: ask(client, request))
        if address not in self._where and str(address) not in answer.addresses:
            where = self._client_of(address).where
            problem = f"on {where} answers {answer.instance}, which does not know the address as its own"
            raise NotAskedError(address, problem)
        return self._placed(address, answer)

    def send_ruling(self, address: NetworkAddress, database: str, who: str, service: str) -> PermissionRuling | None:
        """Whether a database there lets a principal send to a service now; None where that cannot be asked."""
        try:
            rules = self._ask(address, lambda client: send_rules(client, database))
            return Grants(rules, is_default_deny=who != PUBLIC).send(who_is(who), service)
        except (NotAskedError, PrincipalError):
            return None

    def _ask(self, address: NetworkAddress, question: Callable[[AdminClient], _T]) -> _T:
        client = self._client_of(address)
        try:
            return question(client)
        except ProblemError as error:
            raise NotAskedError(address, f"{client.where} answers: {error}") from error
        except BrokerError as error:
            raise NotAskedError(address, str(error)) from error

    def _client_of(self, address: NetworkAddress) -> AdminClient:
        """
        Where the instance at this address is asked.

        Raises:
            NotAskedError: a token would go there in plain text.
        """
        if address in self._where:
            try:
                return AdminClient(self._where[address], timeout=TIMEOUT_SECONDS, credentials=self._credentials)
            except ValueError as error:
                raise NotAskedError(address, str(error)) from error
        port = ListenAddress(address.host, ADMIN_PORT)
        scheme = "http" if port.is_loopback else "https"
        known = ClientCredentials(authority=self._credentials.authority)
        return AdminClient(f"{scheme}://{port}", timeout=TIMEOUT_SECONDS, credentials=known)


def ask(client: AdminClient, request: ExplainRequest) -> ExplainAnswer:
    """Ask one instance about a message; raises as `_convert`, or ProblemError."""
    return _convert(client, client.request("POST", "/v1/explain", msgspec.to_builtins(request)), ExplainAnswer)


def ask_why(client: AdminClient, guid: UUID) -> WhyAnswer:
    """Ask one instance about a conversation; raises as `_convert`, or ProblemError."""
    return _convert(client, client.get(f"/v1/why/{guid}"), WhyAnswer)


def send_rules(client: AdminClient, database: str) -> list[PermissionRule]:
    """
    Ask one instance who may send to the services of a database.

    Raises:
        BrokerError: as `AdminClient.request`.
        PrincipalError: one of them is written as this version does not write it.
    """
    question = "SELECT grantee_name, state_desc, securable_name FROM sys.database_permissions"
    return [
        PermissionRule(Permission.SEND, securable, parse_principal(who), PermissionState(state))
        for who, state, securable in client.sql(question, database)["rows"]
    ]


def _convert(client: AdminClient, answer: Any, kind: type[_T]) -> _T:
    """
    An answer as a value.

    Raises:
        DaemonUnreachableError: it is of something else than a broker of this version.
    """
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise DaemonUnreachableError(str(client.where), f"its answer is not understood: {error}") from error


# --- a message ---


def follow(first: ExplainAnswer, ask: Asking) -> TracedRoute:
    """
    Follow a message from the instance that answered first.

    Args:
        first: The answer of that instance.
        ask: Gets the answer of the instance at an address; raises NotAskedError when it cannot.
    """
    hops = [first]

    def way(end: TraceEnd, sentence: str) -> TracedRoute:
        return TracedRoute(tuple(hops), end, sentence)

    while True:
        decision = hops[-1].explanation
        if decision.next_hop is None:
            return way(TraceEnd.DECIDED, _cut_off(hops) or f"{_path(hops)}: {decision.sentence}")
        if len(hops) > HOPS_MAX:
            return way(TraceEnd.TOO_FAR, f"{_path(hops)}: after {HOPS_MAX} hops a message is dropped (11285)")
        address = _next_hop(hops[-1])
        try:
            answer = ask(address, _as_it_arrives(hops[-1]))
        except NotAskedError as error:
            return way(TraceEnd.UNKNOWN, f"{_path(hops)} -> {address}: not known from there on: {error}")
        if any(_is_same_arrival(hop, answer) for hop in hops):
            path = _path([*hops, answer])
            return way(TraceEnd.LOOP, f"{path}: a loop, until the hops of the message are used up (11285)")
        hops.append(answer)


def _next_hop(answer: ExplainAnswer) -> NetworkAddress:
    address = parse_address(answer.explanation.next_hop or "")
    assert isinstance(address, NetworkAddress), "a next hop is not a keyword"
    return address


def _as_it_arrives(answer: ExplainAnswer) -> ExplainRequest:
    """The same message, at the next instance, which checks the permissions of the peer that brings it."""
    peer = PUBLIC if answer.principal is None else answer.principal or None
    return structs.replace(_question(answer), database=None, incoming=True, peer=peer)


def _is_same_arrival(one: ExplainAnswer, other: ExplainAnswer) -> bool:
    """Whether the message arrives at one instance twice; that it begins its way there is no arrival."""
    return one.broker_instance == other.broker_instance and one.explanation.passes[0].is_incoming


def _cut_off(hops: list[ExplainAnswer]) -> str:
    """The way up to the first next hop that is not reached, past which nothing gets; empty where none is."""
    for number, hop in enumerate(hops[:-1], 1):
        if is_cut_off(hop.explanation):
            return f"{_path(hops[:number])} -> {': '.join(next_hop_problem(hop.explanation) or ())}"
    return ""


def _path(hops: list[ExplainAnswer]) -> str:
    return " -> ".join(hop.instance for hop in hops)


# --- a plan ---


def follow_plan(
    arrivals: Iterable[ExplainAnswer], ask_here: Callable[[ExplainRequest], ExplainAnswer], ask_next: Asking
) -> Followed:
    """
    Follow messages after a plan.

    Args:
        arrivals: The answers of the planning instance, as after the script.
        ask_here: Gets its answer without the script.
        ask_next: Gets that of the instance at an address; raises NotAskedError when it cannot.
    """
    loops: list[RoutingLoop] = []
    unknown: dict[str, None] = {}
    for first in arrivals:
        way = follow(first, ask_next)
        if way.end in _GOES_ROUND:
            today = follow(ask_here(_question(first)), ask_next)
            loops.append(RoutingLoop(first.explanation.to_service, way.sentence, was_there=today.end in _GOES_ROUND))
        elif way.end is TraceEnd.UNKNOWN:
            unknown[way.sentence] = None
    return Followed(loops, list(unknown))


def _question(answer: ExplainAnswer) -> ExplainRequest:
    """The request of an answer."""
    decision = answer.explanation
    first = decision.passes[0]
    return ExplainRequest(
        decision.to_service,
        None if decision.to_broker_instance is None else UUID(decision.to_broker_instance),
        UUID(decision.conversation_id),
        database=None if first.is_incoming else first.table,
        incoming=first.is_incoming,
        from_target=decision.is_from_target,
    )


# --- a conversation ---


def trace(first: WhyAnswer, directory: Directory, options: str = "") -> Trace:
    """
    Everything that can be known of what `first` knows something of.

    Args:
        first: The answer of the instance that was asked first.
        directory: Asks the others.
        options: How the first instance was asked, as the options of `broker why`, each after a blank.
    """
    assert first.conversation_id is not None, "it is known there"
    chain = _Chain(first, UUID(first.conversation_id), directory)
    chain.run()
    findings = [structs.replace(one, remedy=directory.named(one.remedy)) for one in chain.findings()]
    # Of the most severe ones the last; before those that only a next message would meet.
    cause = max(reversed(findings), key=lambda one: (one.severity, one.next != FORECAST))
    is_held = any(side.held for side in first.sides)
    over = [one for one in findings if one.remedy == DEFINITIONS_CHANGED]
    if is_held and over and cause.cause in UNREAD:  # a sender does not wait for the reader of what has arrived
        cause = over[-1]
    if cause.remedy == DEFINITIONS_CHANGED:  # it is over: what is refused now comes first
        refused = (one for one in reversed(findings) if one.cause in _DROPS and one.severity == cause.severity)
        cause = next((one for one in refused if not one.remedy.startswith("nothing")), cause)
    least, others = min(cause.severity, Severity.WAITING), UNREAD - {cause.cause}
    if cause.remedy == DEFINITIONS_CHANGED and is_held:
        cause = structs.replace(cause, remedy=_SEND_AGAIN + options)
    symptom = next((one for one in findings if one.severity >= least and one.cause not in others), cause)
    cause = _of_both_sides(cause, findings)
    closed = {one.is_initiator for answer in chain.answers for one in answer.closed}
    if cause.cause == OVER and (len(chain.answers) > 1 or len(closed) > 1 or chain.heard):
        cause = symptom = structs.replace(cause, remedy="nothing has to be done: no side of the dialog is open")
    return Trace(
        id=first.id,
        conversation_id=first.conversation_id,
        cause=cause.cause,
        where=cause.where,
        symptom=symptom.symptom,
        why=f"{cause.where}: {cause.why}",
        next=cause.next,
        remedy=_ask_on(chain, cause, options, directory.given) or cause.remedy or "nothing has to be done",
        findings=findings,
        paths=list(chain.paths),
        not_asked=list(chain.not_asked),
        answers=chain.answers,
    )


def _of_both_sides(cause: WhyFinding, findings: Sequence[WhyFinding]) -> WhyFinding:
    """Where both sides have failed: the one whose Error message says why, with what is left to do at both."""
    if not is_failure(cause):
        return cause
    first, *others = sorted(filter(is_failure, findings), key=lambda one: one.cause == ERROR_RECEIVED)
    for one in others:
        first = structs.replace(first, remedy=joined(first.remedy, f"Then, {one.remedy}"))
    return first


def _ask_on(chain: _Chain, cause: WhyFinding, options: str, given: Mapping[NetworkAddress, Path | str]) -> str:
    """How the rest of the way is asked, where that may have the cause; otherwise ""."""
    has_copies = cause.cause == Disposition.ALREADY_HELD and chain.has_asked_for_copies(cause.instance)
    if has_copies or not chain.silent or cause.cause not in _GOES_ON_BEYOND:
        return ""
    unasked = sorted(chain.copies_of(cause.instance) - chain.heard)
    where: dict[str, Path | str] = dict.fromkeys(unasked, "http://HOST:PORT")
    where |= {str(address): at for address, at in given.items()}
    where |= dict.fromkeys(map(str, chain.silent), "http://HOST:PORT")
    admin = "".join(f" --admin {shlex.quote(f'{address}={at}')}" for address, at in where.items())
    ask = f"ask the rest of the way: broker why {chain.answers[0].id}{options}{admin} (or =PATH of its admin socket)"
    since = [side.held_since for side in chain.answers[0].sides if side.held_since is not None]
    is_lasting = bool(since) and (datetime.now(UTC) - min(since)).total_seconds() > LASTING_SECONDS
    is_trouble = cause.severity is Severity.TROUBLE or not cause.remedy
    return ask if is_lasting or is_trouble else f"nothing, unless it lasts: then {ask}"


class _Chain:
    """The answers so far, and the sentences about ways, each once."""

    def __init__(self, first: WhyAnswer, conversation: UUID, directory: Directory) -> None:
        self.answers = [first]
        self.paths: dict[str, None] = {}
        self.not_asked: dict[str, None] = {}
        self.silent: dict[NetworkAddress, None] = {}  # that could not be asked
        self.heard: set[str] = set()  # addresses that were asked
        self._is_accepted: dict[str, bool] = {}  # by instance, whether every next hop of its messages accepts them
        self._targets: dict[tuple[str, bool], _Target] = {}  # by instance and direction
        self._ways_out: dict[str, str] = {}  # by instance, how a target beyond it is taken out of several
        self._others: set[str] = set()  # other next hops than those taken, which may choose that target too
        self._conversation = conversation
        self._directory = directory
        self._asked = {first.broker_instance}
        self._stations: list[_Station] = [_Station(answer=first)]  # in the order of the way

    def run(self) -> None:
        """Follow the ways of every answer; those found on them are followed, too."""
        for answer in self.answers:  # grows while it is walked through
            if answer.sides or answer is self.answers[0]:  # a gateway's own path is known already
                for way in answer.ways:
                    self._follow(way)
        for address in self._directory.given:
            self._look_off_the_way(address)

    def copies_of(self, instance: str) -> set[str]:
        """The next hops to which this instance gave the last copies."""
        sides = (side for answer in self.answers if answer.instance == instance for side in answer.sides)
        return {sent_to(side.transmission_status) for side in sides} - {""}

    def has_asked_for_copies(self, instance: str) -> bool:
        """Whether those next hops are known, and have said whether they hold copies."""
        copies = self.copies_of(instance)
        return bool(copies) and copies <= self.heard

    def findings(self) -> list[WhyFinding]:
        """
        All findings in the order of the path; those of a path on which no message waits are not severe.

        Nothing gets past a next hop that is not reached, so routes and permissions beyond it are not judged yet.
        """
        is_waiting = any(one.held or any(side.held for side in one.sides) for one in self.answers)
        found: list[WhyFinding] = []
        for station in self._stations:
            is_beyond = any(is_cut_off(hop.explanation) for hop in station.before)
            if station.hop is not None and not is_beyond:
                of_hop = (self._addressed(station.hop, one) for one in self._of_hop(station.hop, station))
                of_way = [self._as_of_now(station.hop.instance, one) for one in (*station.loop, *of_hop)]
                found += of_way if is_waiting else map(_forecast, of_way)
            if station.answer is not None:
                of_answer = self._of_answer(station.answer, is_waiting=is_waiting)
                if is_beyond:
                    found += [_at_most(Severity.WAITING, one) for one in of_answer]
                    continue
                found += [*of_answer, *self._far_side_gone(station)]
                known = {one.cause for one in found if one.instance == station.answer.instance}
                ways = station.answer.ways if station.hop is None else [station.hop]
                waits_for = (*station.answer.drops, *_queues_off(station.answer, ways)) if is_waiting else ()
                found += [one for one in waits_for if one.cause not in known]
                refused = {one.cause for one in found if one.instance == station.answer.instance} & _REFUSED
                wanted = {way.explanation.to_broker_instance for way in ways} - {None}
                for one in station.answer.findings:
                    is_import = one.cause == IMPORTS_LOST and (is_waiting or NO_WAY_BACK in refused)
                    is_lost = one.cause == REPLACED and any(str(instance) in one.why for instance in wanted)
                    found += [one] if refused and (is_import or is_lost) else []
        found = [self._with_way_out(one) for one in found]
        return [one for one in found if one.cause != RECEIVED] or found  # said only where there is nothing else

    def _of_hop(self, hop: ExplainAnswer, station: _Station) -> Iterator[WhyFinding]:
        """Yield what an instance of the path makes of the message, where that is not delivered or sent on."""
        decision, before = hop.explanation, station.before
        known, service = self._dialog(is_initiator=not decision.is_from_target), decision.to_service
        # An instance that has the dialog does not ask its database for a permission.
        begins = station.answer is not None and not (station.answer.is_known or known.is_known)
        what = "answers and acknowledgements" if decision.is_from_target else "messages"
        symptom = f"{what} for {service} do not get past {hop.instance}"
        dialog = replace(known, near=decision.near_names, is_known=known.is_known or station.leads_on)
        way_back = f"{what} do not get back: " if decision.is_from_target else ""
        again = "the sender keeps it and sends it again until the lifetime of the dialog ends"
        if decision.outcome in {Outcome.DROPPED, Outcome.DELAYED, Outcome.HELD}:
            cause, why, remedy = dead_end(hop, dialog, () if station.leads_on else before)
            symptom = "its way leads in a circle" if cause == LOOP else symptom
            at_target = "" if known.is_known else station.at_target
            if decision.target_refusal and begins:
                at_target = run_at(hop.instance, decision.target_refusal)
            if at_target:  # first, as the dialog would fail without it
                remedy = f"{_of_sender(at_target, dialog)} And {remedy}"
                again += "; it fails (-8494) if its message arrives before the first statement has been run"
            yield _at(hop, cause, symptom, f"{way_back}{why}", again, remedy)
        elif not decision.is_service_there:
            remedy = remedy_of(
                Disposition.SERVICE_NOT_FOUND,
                instance=hop.instance,
                service=service,
                database=decision.database or "DATABASE",
                dialog=dialog,
                route=taken_route(before[-1]) if before and not decision.near_names else None,
            )
            yield _at(hop, Disposition.SERVICE_NOT_FOUND.value, symptom, decision.sentence, again, remedy)
        elif decision.target_refusal and begins:
            ends = "the dialog fails (-8494) when its message arrives"
            texts = decision.sentence, ends, run_at(hop.instance, decision.target_refusal)
            yield _at(hop, Disposition.NOT_PERMITTED, symptom, *(_of_sender(one, dialog) for one in texts))
        elif problem := next_hop_problem(decision):
            address, what = problem
            remedy, why = remedy_of_unreached(address, what, taken_route(hop), hop.instance), f"not reached: {what}"
            yield _at(hop, "next hop not reached", symptom, f"the next hop {address} is {why}", again, remedy)

    def _of_answer(self, answer: WhyAnswer, *, is_waiting: bool) -> Iterator[WhyFinding]:
        """
        The findings of an instance; a locked database is one only for what is sent or waits in its queues.

        Where a sender waits for acknowledgements, that they have no way back is the last one.
        """
        unread: set[str | None] = {side.database for side in answer.sides if side.ready}
        for one in answer.findings:
            if any(place.startswith(f"not in database {one.database}: ") for place in answer.looked_in):
                unread.add(one.database)  # which messages it has is not known
        for finding in sorted(answer.findings, key=lambda one: is_waiting and one.cause == NO_WAY_BACK):
            if finding.cause in {IMPORTS_LOST, REPLACED}:
                continue  # said where something is refused for want of it
            if finding.cause not in _NOT_STORING or is_waiting or finding.database in unread:
                yield self._as_of_now(answer.instance, self._named(answer, finding))

    def _far_side_gone(self, station: _Station) -> Iterator[WhyFinding]:
        """Yield that an open dialog has come to where its messages are delivered, and is not known there."""
        there, hop = station.answer, station.hop
        if there is None or hop is None or there.is_known:
            return
        decision, remedy = hop.explanation, ""
        if decision.other_instances and not any(map(other_candidates, station.before)):  # its database was made again
            dialog = self._dialog(is_initiator=not decision.is_from_target)
            remedy = dead_end(hop, dialog, station.before)[2]
        elif decision.database is None:
            return
        if any(place.startswith("not in database") for place in there.looked_in):
            return
        for answer in self.answers:
            for side in answer.sides:
                is_sender = side.is_initiator != decision.is_from_target and side.state == "CO"
                is_told = bool(remedy and side.held)  # as what the messages wait for
                if is_sender and not is_told and (side.receive_sequence or side.acknowledged_sequence):
                    yield far_side_gone(side, answer.spot(side.database), there.instance, remedy)

    def _dialog(self, *, is_initiator: bool) -> WaitingDialog:
        """The dialog as this side of it has it, which sends."""
        sides = ((side, answer.spot(side.database)) for answer in self.answers for side in answer.sides)
        senders = (waiting_dialog(*one) for one in sides if one[0].is_initiator == is_initiator)
        return next(senders, WaitingDialog(is_known=not is_initiator))

    def _named(self, answer: WhyAnswer, finding: WhyFinding) -> WhyFinding:
        """A dialog that the far database has failed, with the name of that database, which its way shows."""
        for side in answer.sides:
            if side.database != finding.database or finding.cause != cause_of_failure(side):
                continue
            far, spot = self._targets.get((answer.instance, side.is_initiator)), answer.spot(side.database)
            again = begin_again(side, spot)
            if far is None or finding.remedy == again:
                continue
            who = refused_sender(side.error_text) or side.principal or PUBLIC
            at = far.address if side.error_code == NO_PERMISSION else None
            ruling = at and self._directory.send_ruling(at, far.database, who, side.far_service)
            if ruling and ruling.is_permitted:
                return structs.replace(finding, why=f"{finding.why}; that is permitted now", remedy=again)
            if ruling and ruling.why not in side.error_text:
                finding = structs.replace(finding, why=f"{finding.why}; what refuses it now: {ruling.why}")
                refused = structs.replace(side, error_text=ruling.why)
                return structs.replace(finding, remedy=remedy_of_failed(refused, spot, far.instance, far.database))
            return structs.replace(finding, remedy=remedy_of_failed(side, spot, far.instance, far.database))
        return finding

    def _addressed(self, hop: ExplainAnswer, finding: WhyFinding) -> WhyFinding:
        """
        With what a missing route needs, as far as it is known: its address, and the other gateways that lack it.

        The address is that of the instance that has the service: one that --admin names, or a side of the dialog.
        """
        before, create, after = finding.remedy.partition("CREATE ROUTE ")
        if not create:
            return finding
        place, statement = before.rpartition(f"at {hop.instance}, ")[2], f"{create}{after.partition(';')[0]};"
        address, lacking = self._address_of(hop), []
        for given in self._directory.given:
            with contextlib.suppress(NotAskedError):
                there = self._directory.explain(given, structs.replace(_as_it_arrives(hop), peer=None))
                if there.explanation.database is not None and there.explanation.is_service_there:
                    address = address or str(given)
                elif there.is_forwarding and there.instance != hop.instance and not there.explanation.has_way:
                    lacking.append(there.instance)
        filled = statement.replace(ADDRESS_GAP, address or ADDRESS_GAP)
        before = before.replace("if the service is elsewhere, ", "", 1) if address else before
        others = "".join(f" And at {one}, {place}{filled}" for one in lacking)
        return structs.replace(finding, remedy=f"{before}{filled}{others}{after.partition(';')[2]}")

    def _address_of(self, hop: ExplainAnswer) -> str:
        """The address of the side that messages are for; empty where it is not known."""
        to = hop.explanation
        for answer in self.answers:
            sides = (one for one in answer.sides if one.is_initiator == to.is_from_target)
            if answer.addresses and any(one.service_name == to.to_service for one in sides):
                return answer.addresses[0]
        return ""

    def _with_way_out(self, finding: WhyFinding) -> WhyFinding:
        """What is not reached, and is one of several targets, can be taken out."""
        way_out = self._ways_out.get(finding.instance) if finding.cause in _NOT_REACHED else None
        if not way_out:
            return finding
        unasked = " and ".join(sorted(self._others - self.heard))
        first = unasked and f"ask {unasked} as well (--admin), because a gateway that is left out sends on; only then, "
        return structs.replace(finding, remedy=joined(finding.remedy, f"If it does not return soon, {first}{way_out}"))

    def _as_of_now(self, instance: str, finding: WhyFinding) -> WhyFinding:
        """A refusal by a next hop that would accept the message now is history."""
        is_refused = REFUSED in finding.why or ("FATAL" in finding.why and MAY_NOT_CONNECT in finding.why)
        is_held = finding.cause == Disposition.ALREADY_HELD
        if is_held and any(answer.held for answer in self.answers):
            return finding
        is_accepted, is_gone = self._is_accepted.get(instance), is_held and self.has_asked_for_copies(instance)
        if not is_refused or not (is_accepted or is_gone):
            return finding
        now = "the next hop would accept it now" if is_accepted else "that next hop has no copy any longer"
        return structs.replace(
            finding,
            severity=Severity.WAITING,
            why=f"it is sent again, and {now}; before that, {finding.why}",
            remedy=f"nothing, or send it again at once: at {instance}, broker dialogs retry",
        )

    def _follow(self, start: ExplainAnswer) -> None:
        way = follow(start, self._directory.explain)
        sentence, hops = way.sentence, way.hops
        for number, (before, hop) in enumerate(zip(way.hops, way.hops[1:], strict=False), 1):
            is_good = hop.explanation.has_way and bool(hop.explanation.permissions)  # those of an unknown peer are not
            self._is_accepted[before.instance] = is_good and self._is_accepted.get(before.instance, True)
            address = _next_hop(before)
            permitted = self._permitted(before, hop, address)
            may_connect = hop is permitted or hop.explanation.permissions[0].is_permitted
            leads_on = may_connect and permitted.explanation.has_way
            at_target = ""
            if permitted is not hop:  # the target is known though nothing gets there
                hops = (*way.hops[:number], *follow(permitted, self._directory.explain).hops)
                if len(hops) > number + 1:
                    target = _next_hop(hops[-2])
                    open_ = self._permitted(hops[-2], hops[-1], target).explanation
                    far = self._with_target_refusal(hops[-1], open_, target)
                    at_target = run_at(far.instance, far.explanation.target_refusal)
            judged = self._with_target_refusal(hop, permitted.explanation, address)
            sentence = sentence.replace(hop.explanation.sentence, judged.explanation.sentence)
            self._stations.append(
                _Station(judged, self._why(hop, address), way.hops[:number], leads_on, at_target=at_target)
            )
        self.paths[sentence] = None
        last, end = way.hops[-1].explanation, hops[-1].explanation
        if end.database is not None:
            there = _next_hop(hops[-2]) if len(hops) > 1 else None
            self._targets[start.instance, not end.is_from_target] = _Target(hops[-1].instance, end.database, there)
        for number, hop in enumerate(way.hops):
            instance = instance_of_several(hop, is_reached=number < len(way.hops) - 1)
            if instance is not None:
                is_unsent = any(side.held for answer in self.answers for side in answer.sides)
                dialog = self._dialog(is_initiator=not last.is_from_target) if is_unsent else WaitingDialog()
                way_out = _way_out(self._choosers(way.hops[number:], instance), dialog)
                self._ways_out |= dict.fromkeys((later.instance for later in way.hops[number:]), way_out)
                self._others |= {address for one in way.hops[: number + 1] for address in other_candidates(one)}
                break
        if way.end is TraceEnd.UNKNOWN:
            self.not_asked[way.sentence] = None
            self.silent[_next_hop(way.hops[-1])] = None
        elif way.end is not TraceEnd.DECIDED:
            self._stations[-1].loop.append(_loop(way.hops[-1], way.sentence))

    def _look_off_the_way(self, address: NetworkAddress) -> None:
        """An instance off the way may have a copy that went there before routes changed, or the only side."""
        try:
            answer = self._directory.why(address, self._conversation)
        except NotAskedError:
            return
        self.heard.add(str(address))
        is_far_side = answer.is_known and not any(one.sides for one in self.answers)
        if (answer.held or is_far_side) and answer.broker_instance not in self._asked:
            self._asked.add(answer.broker_instance)
            self.answers.append(answer)
            most = Severity.TROUBLE if is_far_side else Severity.WAITING
            findings = [_at_most(most, one) for one in answer.findings]
            self._stations.insert(1, _Station(answer=structs.replace(answer, findings=findings)))

    def _choosers(self, hops: Sequence[ExplainAnswer], instance: str) -> Iterator[TakenRoute]:
        """Yield the routes to a broker instance where it is chosen among several, here and at others that are given."""
        asked = {hop.broker_instance: hop for hop in hops}
        for address in self._directory.given:
            with contextlib.suppress(NotAskedError):
                other = self._directory.explain(address, _as_it_arrives(hops[0]))
                asked.setdefault(other.broker_instance, other)
        for hop in asked.values():
            every = routes_of_service(hop)
            routes = [one for one in every if one.broker_instance == instance]
            for route in routes if len(routes) < len(every) else ():
                yield TakenRoute(route.name, hop.instance, hop.explanation.passes[-1].table)

    def _permitted(self, before: ExplainAnswer, hop: ExplainAnswer, address: NetworkAddress) -> ExplainAnswer:
        """The decision of an instance for a peer that may connect and send, as far as that can be asked."""
        if hop.explanation.disposition == Disposition.NOT_PERMITTED:
            with contextlib.suppress(NotAskedError):
                return self._directory.explain(address, structs.replace(_as_it_arrives(before), peer=None))
        return hop

    def _with_target_refusal(self, hop: ExplainAnswer, open_: Explanation, address: NetworkAddress) -> ExplainAnswer:
        """The decision, with the GRANT that the target's database lacks for this sender."""
        senders = (one for answer in self.answers for one in answer.sides if one.is_initiator)
        sender, decision = next(senders, None), hop.explanation
        if sender is None or open_.database is None or open_.is_from_target:
            return hop
        who = sender.principal or PUBLIC
        ruling = self._directory.send_ruling(address, open_.database, who, open_.to_service)
        if ruling is None or ruling.is_permitted:
            return hop
        refusal = how_to_permit(ruling, open_.database)
        sentence = decision.sentence if decision.database is None else failing(decision.sentence, ruling)
        return structs.replace(hop, explanation=structs.replace(decision, target_refusal=refusal, sentence=sentence))

    def _why(self, hop: ExplainAnswer, address: NetworkAddress) -> WhyAnswer | None:
        """The answer of an instance of the path; None when it is known already, or the instance cannot be asked."""
        if hop.broker_instance in self._asked:
            return None
        self._asked.add(hop.broker_instance)
        try:
            answer = self._directory.why(address, self._conversation)
        except NotAskedError as error:
            self.not_asked[str(error)] = None
            self.silent[address] = None
            return None
        self.heard.add(str(address))
        self.answers.append(answer)
        return answer


class _Target(NamedTuple):
    """The far database of a dialog; no address where messages do not leave the instance."""

    instance: str
    database: str
    address: NetworkAddress | None


@dataclass(slots=True)
class _Station:
    """
    An instance along a path.

    Attributes:
        hop: Its decision; None for the first.
        answer: Its knowledge; None when that is not new.
        before: The decisions of the instances before it.
        leads_on: Whether its routes lead on, whatever it permits.
        loop: The finding that the way goes round.
        at_target: The statement that the target's database lacks as well, where that is farther on than a refusal.
    """

    hop: ExplainAnswer | None = None
    answer: WhyAnswer | None = None
    before: tuple[ExplainAnswer, ...] = ()
    leads_on: bool = True
    loop: list[WhyFinding] = field(default_factory=list)
    at_target: str = ""


def _of_sender(text: str, dialog: WaitingDialog) -> str:
    """A sentence about a GRANT that the target's database lacks, with the principal of the sender."""
    return text.replace(" TO [PRINCIPAL]", f" TO {render_name(dialog.principal)}")


def _forecast(finding: WhyFinding) -> WhyFinding:
    """As it is for a way that no message waits for."""
    return structs.replace(_at_most(Severity.FINE, finding), next=FORECAST)


def _at_most(severity: Severity, finding: WhyFinding) -> WhyFinding:
    return structs.replace(finding, severity=min(severity, finding.severity))


def _way_out(routes: Iterable[TakenRoute], dialog: WaitingDialog) -> str:
    """How a target is taken out, with the statements for each instance."""
    drops: dict[tuple[str, str], list[str]] = {}
    for route in routes:
        drops.setdefault((route.instance, route.table), []).append(f"DROP ROUTE {render_name(route.name)};")
    if not drops:
        return ""
    steps = (
        to_run(" ".join(some), database=table, instance=at, is_scripted=False) for (at, table), some in drops.items()
    )
    ended = f"{dialog.again}, as it has answered this one (what it has not acknowledged is lost); for others, "
    begin = f"{ended if dialog.is_known else ''}take it out: remove its routes from the scripts, and then, "
    reloads = " and ".join(f"at {at}, broker reload" for at in dict.fromkeys(at for at, _ in drops))
    end = (
        f" Then {reloads}. Keep it stopped for a minute (dialog.time_to_live of the senders): a message of which a"
        " gateway has a copy may be processed twice, and so may one that it has stored already, unless the service has"
        " EXCLUSIVE_TARGET = ON."
    )
    return begin + " And ".join(steps) + end


def _queues_off(answer: WhyAnswer, ways: Iterable[ExplainAnswer]) -> Iterator[WhyFinding]:
    """Yield findings about services to which these ways deliver here, and whose queues are off."""
    for way in ways:
        decision = way.explanation
        for one in answer.queues_off:
            if (one.database, one.service_name) == (decision.database, decision.to_service):
                spot = answer.spot(one.database)
                yield queue_off_finding(spot, one.queue_name, f"messages for {one.service_name} are not stored")


def _at(hop: ExplainAnswer, cause: str, symptom: str, *chain: str) -> WhyFinding:
    return WhyFinding(hop.instance, None, cause, Severity.TROUBLE, symptom, *chain)


def _loop(hop: ExplainAnswer, sentence: str) -> WhyFinding:
    service, route = hop.explanation.to_service, taken_route(hop)
    remedy = remedy_of(Disposition.HOPS_EXHAUSTED, instance=hop.instance, service=service)
    remedy = remedy if route is None else remedy_of_loop(route, service)
    then = "each copy is dropped when its hops are used up, and the sender sends it again"
    return _at(hop, LOOP, "its way leads in a circle", sentence, then, remedy)
