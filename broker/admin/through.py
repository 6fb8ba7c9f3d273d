"""
Following a message from instance to instance: each is asked what it would do with what the one before sends on.

Nothing is sent but the questions. Of several addresses the one that would be used now is followed. What arrives at an
instance is decided by its msdb, so an instance at which the message arrives for a second time does again what it did
the first time: a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from broker.admin.client import NO_CREDENTIALS, AdminClient, ClientCredentials, ProblemError
from broker.admin.explain_message import ExplainAnswer, ExplainRequest
from broker.control.listen import ListenAddress
from broker.errors import BrokerError, DaemonUnreachableError
from broker.routing.address import NetworkAddress, parse_address

ADMIN_PORT = 9422  # the documented one; where an instance is asked when nobody says where else
HOPS_MAX = 255  # what the wire can count
TIMEOUT_SECONDS = 10.0  # for an instance that may be far, or not there at all


class TraceEnd(StrEnum):
    """Why no further instance was asked."""

    DECIDED = "decided"  # the last one delivers, holds, delays or drops it
    LOOP = "loop"
    UNKNOWN = "unknown"  # nobody at the next address could be asked
    TOO_FAR = "too far"


class TracedRoute(msgspec.Struct, frozen=True):
    """The way of a message, as far as it is known."""

    hops: Annotated[tuple[ExplainAnswer, ...], Meta(description="One answer for each instance, in order.")]
    end: TraceEnd
    sentence: str

    @property
    def arrives(self) -> bool:
        """Whether the way is good as far as it is known; False when it leads nowhere, or on for ever."""
        return self.end in {TraceEnd.DECIDED, TraceEnd.UNKNOWN} and self.hops[-1].explanation.has_way


Asking = Callable[[NetworkAddress, ExplainRequest], ExplainAnswer]


class NotAskedError(BrokerError):
    """The instance behind an address could not be asked."""

    address: NetworkAddress
    problem: str

    def __str__(self) -> str:
        return f"{self.problem}; say where to ask with --admin {self.address}=http://HOST:PORT or =PATH of its socket"


def follow(first: ExplainAnswer, ask: Asking) -> TracedRoute:
    """
    The way of a message from the instance that answered first.

    Args:
        first: What that instance would do.
        ask: Gets the answer of the instance at an address; raises NotAskedError when it cannot.
    """
    hops = [first]
    while True:
        told = hops[-1].explanation
        if told.next_hop is None:
            return TracedRoute(tuple(hops), TraceEnd.DECIDED, f"{_path(hops)}: {told.sentence}")
        if len(hops) > HOPS_MAX:
            return TracedRoute(
                tuple(hops), TraceEnd.TOO_FAR, f"{_path(hops)}: after {HOPS_MAX} hops a message is dropped (11285)"
            )
        address = parse_address(told.next_hop)
        assert isinstance(address, NetworkAddress), "a next hop is no keyword"
        try:
            answer = ask(address, _as_it_arrives(hops[-1]))
        except NotAskedError as error:
            return TracedRoute(
                tuple(hops), TraceEnd.UNKNOWN, f"{_path(hops)} -> {address}: not known from there on: {error}"
            )
        if any(_is_same_arrival(hop, answer) for hop in hops):
            loop = f"{_path([*hops, answer])}: a loop, until the hops of the message are used up (11285)"
            return TracedRoute(tuple(hops), TraceEnd.LOOP, loop)
        hops.append(answer)


class Directory:
    """
    Asks the instance at an address; one that could not be asked is not asked again.

    Args:
        where: URL or socket file of the admin API by address of the instance. An address that is not in it is asked
            on its own host's documented port, over TLS unless that is loopback, and whoever answers there must know
            the address as its own.
        credentials: What is shown to the instances in `where`; to others no token is shown.
    """

    def __init__(
        self, where: Mapping[NetworkAddress, Path | str], *, credentials: ClientCredentials = NO_CREDENTIALS
    ) -> None:
        self._where = where
        self._credentials = credentials
        self._silent: dict[NetworkAddress, NotAskedError] = {}

    def __call__(self, address: NetworkAddress, request: ExplainRequest) -> ExplainAnswer:
        """
        What the instance at this address would do.

        Raises:
            NotAskedError: nobody answers there, refuses to, or it is another instance that does.
        """
        if address in self._silent:
            raise self._silent[address]
        try:
            return self._ask(address, request)
        except NotAskedError as error:
            self._silent[address] = error
            raise

    def client_of(self, address: NetworkAddress) -> AdminClient:
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
        host = f"[{address.host}]" if ":" in address.host else address.host
        scheme = "http" if ListenAddress(address.host, 0).is_loopback else "https"
        known = ClientCredentials(authority=self._credentials.authority)
        return AdminClient(f"{scheme}://{host}:{ADMIN_PORT}", timeout=TIMEOUT_SECONDS, credentials=known)

    def _ask(self, address: NetworkAddress, request: ExplainRequest) -> ExplainAnswer:
        client = self.client_of(address)
        try:
            answer = ask(client, request)
        except ProblemError as error:
            raise NotAskedError(address, f"{client.where} answers: {error}") from error
        except BrokerError as error:
            raise NotAskedError(address, str(error)) from error
        if address not in self._where and str(address) not in answer.addresses:
            problem = f"on {client.where} answers {answer.instance}, which does not know the address as its own"
            raise NotAskedError(address, problem)
        return answer


def ask(client: AdminClient, request: ExplainRequest) -> ExplainAnswer:
    """
    The answer of one instance.

    Raises:
        DaemonUnreachableError: nobody answers, or something else than a broker of this version.
        ProblemError: it refused.
    """
    answer = client.request("POST", "/v1/explain", msgspec.to_builtins(request))
    try:
        return msgspec.convert(answer, ExplainAnswer)
    except msgspec.ValidationError as error:
        raise DaemonUnreachableError(str(client.where), f"its answer is not understood: {error}") from error


def _as_it_arrives(answer: ExplainAnswer) -> ExplainRequest:
    """The same message, at the next instance."""
    told = answer.explanation
    return ExplainRequest(
        to=told.to_service,
        broker_instance=None if told.to_broker_instance is None else UUID(told.to_broker_instance),
        conversation=UUID(told.conversation_id),
        incoming=True,
        from_target=told.is_from_target,
        peer=answer.principal,
    )


def _is_same_arrival(one: ExplainAnswer, other: ExplainAnswer) -> bool:
    """Whether the message arrives at one instance twice; that it begins its way there is no arrival."""
    return one.broker_instance == other.broker_instance and one.explanation.passes[0].is_incoming


def _path(hops: list[ExplainAnswer]) -> str:
    return " -> ".join(hop.instance for hop in hops)
