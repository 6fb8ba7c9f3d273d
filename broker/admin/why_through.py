"""
The whole chain: what every instance says that a conversation touched, as far as they can be asked.

From each side that is found the way of its messages is followed as `broker explain --through` does, and each instance
on it is asked what it knows of the conversation. A side that is found there has a way of its own, so from the target
the sender is found, and the other way round. Nothing is sent but the questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Protocol
from uuid import UUID

import msgspec
from msgspec import Meta

from broker.admin.client import AdminClient
from broker.admin.explain_message import ExplainAnswer, ExplainRequest
from broker.admin.through import Directory, NotAskedError, TraceEnd, follow
from broker.admin.why import Severity, WhyAnswer, WhyFinding
from broker.admin.why_remedy import remedy_of
from broker.errors import BrokerError, DaemonUnreachableError
from broker.flow import Disposition
from broker.routing.address import NetworkAddress, parse_address
from broker.routing.explain import Explanation, Outcome

# Drops that no routing decision foretells: those of a gateway on the way, which tells only how many there were.
_UNFORESEEN = (
    Disposition.HOPS_EXHAUSTED,
    Disposition.POOL_LIMIT,
    Disposition.EXPIRED_HERE,
    Disposition.LIFETIME_EXCEEDED,
    Disposition.FRAME_TOO_LARGE,
    Disposition.STORE_BUSY,
    Disposition.STORE_FAILED,
)


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
    answers: Annotated[list[WhyAnswer], Meta(description="What each instance answered.")]


class WhyClient(Protocol):
    """Asks the instances at addresses."""

    def __call__(self, address: NetworkAddress, request: ExplainRequest) -> ExplainAnswer:
        """What the instance there would do; raises NotAskedError."""

    def why(self, address: NetworkAddress, conversation: UUID) -> WhyAnswer:
        """What it knows of a conversation; raises NotAskedError."""


class WhyDirectory(Directory):
    """The instances at addresses, asked for both."""

    def why(self, address: NetworkAddress, conversation: UUID) -> WhyAnswer:
        """
        What the instance at this address knows; it has been asked where a message would go before.

        Raises:
            NotAskedError: it does not answer any more, or not like this version.
        """
        try:
            return ask_why(self.client_of(address), conversation)
        except BrokerError as error:
            raise NotAskedError(address, str(error)) from error


def ask_why(client: AdminClient, guid: UUID) -> WhyAnswer:
    """
    What one instance knows.

    Raises:
        DaemonUnreachableError: nobody answers, or something else than a broker of this version.
        ProblemError: it refused.
    """
    answer = client.get(f"/v1/why/{guid}")
    try:
        return msgspec.convert(answer, WhyAnswer)
    except msgspec.ValidationError as error:
        raise DaemonUnreachableError(str(client.where), f"its answer is not understood: {error}") from error


def trace(first: WhyAnswer, ask: WhyClient) -> Trace:
    """
    Everything that can be known of what `first` knows something of.

    Args:
        first: The answer of the instance that was asked first.
        ask: Asks the others.
    """
    assert first.conversation_id is not None, "it is known there"
    chain = _Chain(first, UUID(first.conversation_id), ask)
    chain.run()
    findings = chain.findings()
    cause = _cause(findings)
    symptom = next((one for one in findings if one.severity >= min(cause.severity, Severity.WAITING)), cause)
    return Trace(
        id=first.id,
        conversation_id=first.conversation_id,
        cause=cause.cause,
        where=_where(cause),
        symptom=symptom.symptom,
        why=f"{_where(cause)}: {cause.why}",
        next=cause.next,
        remedy=cause.remedy or "nothing has to be done",
        findings=findings,
        paths=list(chain.paths),
        not_asked=list(chain.not_asked),
        answers=chain.answers,
    )


class _Chain:
    """The answers so far. Shape: `paths` and `not_asked` each sentence once."""

    def __init__(self, first: WhyAnswer, conversation: UUID, ask: WhyClient) -> None:
        self.answers = [first]
        self.paths: dict[str, None] = {}
        self.not_asked: dict[str, None] = {}
        self._conversation = conversation
        self._ask = ask
        self._asked = {first.broker_instance}
        self._stations: list[_Station] = [_Station(told=first)]  # in the order of the way

    def run(self) -> None:
        """Follow the ways of every answer; those found on them are followed, too."""
        for answer in self.answers:  # grows while it is walked through
            if answer.sides or answer is self.answers[0]:  # what a gateway would say of its own way is known already
                for way in answer.ways:
                    self._follow(way)

    def findings(self) -> list[WhyFinding]:
        """Everything that was found, in the order of the way; a way that nothing waits for is no trouble."""
        is_waiting = any(side.held for answer in self.answers for side in answer.sides)
        is_waiting = is_waiting or any(answer.held for answer in self.answers)
        found: list[WhyFinding] = []
        for station in self._stations:
            if station.hop is not None:
                dropped = station.told.dropped if station.told is not None and is_waiting else {}
                of_way = [*station.loop, *hop_findings(station.hop, dropped)]
                found += of_way if is_waiting else [_quiet(one) for one in of_way]
            found += [] if station.told is None else station.told.findings
        return found

    def _follow(self, start: ExplainAnswer) -> None:
        way = follow(start, self._ask)
        self.paths[way.sentence] = None
        for before, hop in zip(way.hops, way.hops[1:], strict=False):
            address = parse_address(before.explanation.next_hop or "")
            assert isinstance(address, NetworkAddress), "a next hop is no keyword"
            self._stations.append(_Station(hop, self._why(hop, address)))
        if way.end is TraceEnd.UNKNOWN:
            self.not_asked[way.sentence] = None
        elif way.end is not TraceEnd.DECIDED:
            self._stations[-1].loop.append(_loop(way.hops[-1], way.sentence))

    def _why(self, hop: ExplainAnswer, address: NetworkAddress) -> WhyAnswer | None:
        """What an instance on the way knows; None when it has told that already, or cannot be asked."""
        if hop.broker_instance in self._asked:
            return None
        self._asked.add(hop.broker_instance)
        try:
            told = self._ask.why(address, self._conversation)
        except NotAskedError as error:
            self.not_asked[str(error)] = None
            return None
        self.answers.append(told)
        return told


@dataclass(slots=True)
class _Station:
    """An instance on a way. Shape: `hop` None for the one that was asked first; `told` None when nothing is new."""

    hop: ExplainAnswer | None = None
    told: WhyAnswer | None = None
    loop: list[WhyFinding] = field(default_factory=list)


def hop_findings(hop: ExplainAnswer, dropped: Mapping[str, int]) -> Iterator[WhyFinding]:
    """What an instance on the way would do with the message, and what it has dropped so far, by reason."""
    decision = hop.explanation
    service = decision.to_service
    table = decision.passes[-1].table
    symptom = f"what comes to {hop.instance} for {service} does not get on"
    again = "the sender keeps it and sends it again until the lifetime of the dialog ends"
    if decision.outcome in {Outcome.DROPPED, Outcome.DELAYED, Outcome.HELD}:
        remedy = remedy_of(decision.disposition, instance=hop.instance, service=service, table=table)
        yield _at(hop, decision.disposition, symptom, decision.sentence, again, remedy)
    elif not decision.is_service_there:
        remedy = remedy_of(Disposition.SERVICE_NOT_FOUND, instance=hop.instance, service=service)
        yield _at(hop, Disposition.SERVICE_NOT_FOUND.value, symptom, decision.sentence, again, remedy)
    elif problem := _problem(decision):
        address, what = problem
        remedy = f"start the instance at {address}, open the way to it, or correct the route to it at {hop.instance}"
        yield _at(hop, "next hop not reached", symptom, f"the next hop {address} is not reached: {what}", again, remedy)
    for reason in _UNFORESEEN:
        count = dropped.get(reason, 0)
        if count:
            frames = "1 frame of any dialog was" if count == 1 else f"{count:,} frames of any dialog were"
            why = f"{frames} dropped here since the start: {reason} ({reason.number})"
            remedy = remedy_of(reason, instance=hop.instance, service=service)
            yield msgspec.structs.replace(
                _at(hop, reason.value, symptom, why, again, remedy), severity=Severity.WAITING
            )


def _at(hop: ExplainAnswer, cause: str, symptom: str, *chain: str) -> WhyFinding:
    return WhyFinding(hop.instance, None, cause, Severity.TROUBLE, symptom, *chain)


def _quiet(finding: WhyFinding) -> WhyFinding:
    return msgspec.structs.replace(finding, severity=Severity.FINE)


def _loop(hop: ExplainAnswer, sentence: str) -> WhyFinding:
    remedy = remedy_of(Disposition.HOPS_EXHAUSTED, instance=hop.instance, service=hop.explanation.to_service)
    then = "each copy is dropped when its hops are used up, and the sender sends it again"
    return _at(hop, "loop", "its way leads in a circle", sentence, then, remedy)


def _problem(decision: Explanation) -> tuple[str, str] | None:
    for candidate in decision.passes[-1].candidates[:1]:
        if candidate.problem:
            return candidate.address, candidate.problem
    return None


def _cause(findings: list[WhyFinding]) -> WhyFinding:
    """Of the weightiest the one that is farthest on the way."""
    weightiest = max(one.severity for one in findings)
    return [one for one in findings if one.severity == weightiest][-1]


def _where(finding: WhyFinding) -> str:
    return finding.instance if finding.database is None else f"{finding.instance}, database {finding.database}"
