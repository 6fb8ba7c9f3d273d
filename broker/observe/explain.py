"""
Explanation of a routing decision: the question, and the answer of one instance.

An instance that runs, or the one that a configuration describes, becomes an `InstanceView`, which holds what a question
needs; the answer is then the same function of view and question, so that both use the same words. Nothing is sent, and
an instance that runs is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated
from uuid import UUID, uuid4

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from broker.catalog.catalog import MSDB
from broker.catalog.dry_run import dry_run
from broker.catalog.handlers import grants_of
from broker.config.settings import EndpointSettings, Settings
from broker.config.values import ListenAddress
from broker.conversation.frames import Contact
from broker.errors import BadRequestError, SettingsError, UnknownNameError
from broker.net.certificates import holders
from broker.net.listener import own_addresses
from broker.observe.database_stats import DatabaseName, find_conversation
from broker.observe.instance import Running
from broker.observe.views import find_name
from broker.protocol.layout import NAME_MAX_BYTES, NO_GUID, show_guid
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, RoutingFacts
from broker.routing.explain import DisplayNames, Explanation, explain, with_permissions, with_target
from broker.routing.route import MirroredPair
from broker.routing.table import RouteTable, build_table
from broker.security.grants import Grants
from broker.security.identity import load_pem, who_of
from broker.security.principal import NOBODY, PrincipalError, Who, who_is


class ExplainRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A message whose route is asked for; nothing is sent."""

    to: Annotated[str | None, Meta(description="The service; left out: that of the conversation.")] = None
    broker_instance: Annotated[
        UUID | None, Meta(description="The one database that shall get it; left out: any, or the conversation's.")
    ] = None
    conversation: Annotated[
        UUID | None,
        Meta(description="Its id, or without `to` the handle or id of one that lives here; left out: one is drawn."),
    ] = None
    database: DatabaseName = None
    incoming: Annotated[bool, Meta(description="It comes from outside; the same as database msdb.")] = False
    from_target: Annotated[bool, Meta(description="It is an answer of the target; counts with `to` only.")] = False
    peer: Annotated[
        str | None,
        Meta(description="The peer that sends it: a principal as in GRANT, without *. Then it arrives from outside."),
    ] = None
    current_database: Annotated[
        bool, Meta(description="The named database is the one in which it begins, as 'CURRENT DATABASE' says.")
    ] = False


class ExplainAnswer(msgspec.Struct, frozen=True):
    """The decision of one instance about a message, and its reasons."""

    instance: Annotated[str, Meta(description="The name of the instance that decides.")]
    broker_instance: Annotated[str | None, Meta(description="Its identity; null when it has never run.")]
    addresses: Annotated[list[str], Meta(description="Those that are known to lead to it.")]
    is_conversation_drawn: Annotated[bool, Meta(description="Whether the question named none.")]
    explanation: Explanation
    principal: Annotated[
        str | None, Meta(description="As whom its peers know it; null without a certificate, empty if not known.")
    ] = None
    is_forwarding: Annotated[bool, Meta(description="Whether it passes on messages of other instances.")] = False


class SendingDatabase(Struct, frozen=True):
    """A database that messages are sent from; `broker_instance` has 16 bytes, and `path` may be no file yet."""

    broker_instance: bytes
    table: RouteTable
    path: Path
    grants: Grants = field(default_factory=Grants)


class InstanceView(Struct, frozen=True):
    """
    An instance as the input of a routing question.

    Attributes:
        broker_instance: 16 bytes, None when the instance has never run.
        surroundings: The routing context, which decides about frames that arrive.
        homes: Its user databases by name.
        grants: The grants in msdb.
        config_option: Names its configuration in commands, after a blank; empty where it has none.
        certified: Returns what is known of the certificates of its peers, which may have more names than the one asked.
        principal: The principal under which its peers know it; None without a certificate, empty where not known.
    """

    name: str
    broker_instance: bytes | None
    surroundings: RoutingContext
    homes: Mapping[str, SendingDatabase]
    problem_of: Callable[[NetworkAddress], str] = lambda _: ""
    pair_told: Callable[[MirroredPair], str] = lambda _: ""
    grants: Grants = field(default_factory=Grants)
    principal: str | None = None
    certified: Callable[[], Iterable[Who]] = tuple
    config_option: str = ""


def running_place(instance: Running) -> InstanceView:
    """Return a running instance as it is now. Loop-only, and so are its functions for health, problems and pairs."""
    homes = {
        name: SendingDatabase(
            endpoint.broker_instance,
            endpoint.transmitter.table,
            endpoint.path,
            grants_of(instance.settings, instance.catalog.databases[name].rows.permissions, name),
        )
        for name, endpoint in instance.endpoints.items()
    }
    here, own = instance.forwarder.routing_context, instance.peers.handshaker.security.own
    return InstanceView(
        instance.name,
        instance.broker_instance,
        here,
        homes,
        instance.peers.table.problem_of,
        lambda pair: instance.mirrors.trouble_of(pair).problem,
        grants_of(instance.settings, instance.catalog.msdb.rows.permissions),
        None if own is None else own.who.name,
        partial(_certified, instance),
        instance.settings.config_option,
    )


def _certified(instance: Running) -> Iterator[Who]:
    """The peers that are connected, then those whose certificates are named. Loop-only."""
    connected = (link.transport.identity for link in instance.peers.links.values())
    for one in chain(connected, instance.peers.handshaker.security.trusted):
        if one is not None:
            yield one.who


def frozen_place(instance: Running) -> InstanceView:
    """Return a copy of a running instance as it is now, for use in another thread. Loop-only."""
    place, peers = running_place(instance), instance.peers
    health = {address: peers.table.health_of(address) for address in peers.table.known_addresses}
    problems = {address: peers.table.problem_of(address) for address in health}
    told = {pair: place.pair_told(pair) for pair in instance.mirrors.in_use}
    here = replace(place.surroundings, health_of=lambda address: health.get(address, AddressHealth.UNTRIED))
    return replace(
        place,
        surroundings=here,
        problem_of=lambda address: problems.get(address, ""),
        pair_told=lambda pair: told.get(pair, ""),
        certified=tuple,
    )


def configured_place(settings: Settings, *, now: datetime) -> InstanceView:
    """
    Return the instance that would start with these settings at this UTC instant: no address has been tried yet.

    Raises:
        SettingsError: its scripts have mistakes, so that it would not start.
    """
    run = dry_run(settings, now=now)
    if run.errors:
        raise SettingsError(run.errors)
    tables = {name: build_table(one.routes.values(), now=now) for name, one in run.databases.items()}
    own = {address for listen in settings.endpoint.listen if listen.port for address in _addresses_of(listen)}
    here = RoutingContext(
        tables[MSDB],
        run.hosted(),
        lambda _: AddressHealth.UNTRIED,
        settings.endpoint.message_forwarding,
        msdb=tables[MSDB],
        own=own | set(settings.endpoint.advertise),
    )
    homes = {
        database.name: SendingDatabase(
            database.broker_instance,
            tables[database.name],
            settings.databases[database.name].path,
            grants_of(settings, database.rows.permissions, database.name),
        )
        for database in run.users
    }
    instance = run.msdb.broker_instance if run.msdb.is_identified else None
    grants = grants_of(settings, run.msdb.rows.permissions)
    principal = _configured_principal(settings.endpoint)
    return InstanceView(
        settings.instance.name,
        instance,
        here,
        homes,
        grants=grants,
        principal=principal,
        certified=partial(holders, settings.endpoint.peers),
        config_option=settings.config_option,
    )


def _configured_principal(endpoint: EndpointSettings) -> str | None:
    """Return the principal of the configured certificate; empty where the file cannot be read here."""
    if endpoint.certificate is None or endpoint.encryption == "disabled":
        return None
    try:
        return who_of(load_pem(endpoint.certificate.read_bytes())[0]).name
    except (OSError, ValueError):
        return ""


def find_contact(place: InstanceView, request: ExplainRequest) -> Contact:
    """
    Find the conversation that a question is about. Blocking.

    Raises:
        BadRequestError: the question names neither a service nor a conversation.
        UnknownNameError: 911, no such database; 8426, no database has the conversation.
    """
    if request.conversation is None:
        raise BadRequestError("name the service that a message is for, or a conversation that lives here")
    name = None if request.database is None else _home_name(place, request.database)
    homes = place.homes if name is None or name == MSDB else {name: place.homes[name]}
    found = (find_conversation(home.path, request.conversation) for home in homes.values())
    contact = next((one for one in found if one is not None), None)
    if contact is None:
        problem = (
            f"no database here has the conversation {show_guid(request.conversation)}; name the service that it is with"
        )
        raise UnknownNameError(8426, problem)
    return contact


def answer(place: InstanceView, request: ExplainRequest, contact: Contact | None = None) -> ExplainAnswer:
    """
    Return the routing decision for a message, and its reasons.

    Args:
        place: The instance that decides.
        request: The question.
        contact: The conversation, when the question is about one.

    Raises:
        BadRequestError: parts of the question contradict each other, or no message can have such a service name.
        UnknownNameError: 911, no such database.

    Cost: that of one decision, and of describing a bounded number of routes.
    """
    facts, table = _facts(place, request, contact)
    databases = {home.broker_instance: name for name, home in place.homes.items()}
    names = DisplayNames(databases, place.problem_of, place.pair_told)
    explanation = explain(facts, replace(place.surroundings, table=table), names)
    target = place.homes.get(explanation.database or "")
    if target is not None and facts.is_incoming and not facts.is_from_target:
        explanation = with_target(explanation, target.grants)
    if request.peer is not None:
        explanation = with_permissions(explanation, _who(place, request.peer), place.grants)
    return ExplainAnswer(
        instance=place.name,
        broker_instance=None if place.broker_instance is None else show_guid(place.broker_instance),
        addresses=sorted(map(str, place.surroundings.own)),
        is_conversation_drawn=request.conversation is None,
        explanation=explanation,
        principal=place.principal,
        is_forwarding=place.surroundings.is_forwarding,
    )


def _who(place: InstanceView, peer: str) -> Who:
    """
    Return the identity of a peer there, with all names of its certificate if that is known here.

    Without authentication all peers have the same one.
    """
    try:
        asked = who_is(peer)
    except PrincipalError as error:
        raise BadRequestError(str(error)) from None
    known = next((who for who in place.certified() if who.name == asked.name), asked)
    return known if place.grants.is_default_deny else NOBODY


def _facts(place: InstanceView, request: ExplainRequest, contact: Contact | None) -> tuple[RoutingFacts, RouteTable]:
    """Return the facts that routing decides by, and the table that it searches (R1.1)."""
    home = _home(place, request, contact)
    sender = None if home is None else home.broker_instance
    table = place.surroundings.msdb if home is None else home.table
    named = None if request.broker_instance is None else request.broker_instance.bytes
    if request.current_database:
        if named is not None or sender is None:
            raise BadRequestError("'CURRENT DATABASE' is the broker instance of a message that begins in a database")
        named = sender
    if contact is not None:
        facts = contact.facts()
        return replace(facts, to_broker_instance=named or facts.to_broker_instance, database=sender), table
    assert request.to is not None, "a question without a service comes with its conversation"
    if not 1 <= len(request.to.encode("utf-8", "replace")) <= NAME_MAX_BYTES:
        raise BadRequestError(f"the name of a service has 1 to {NAME_MAX_BYTES} bytes")
    conversation = (request.conversation or uuid4()).bytes
    return RoutingFacts(request.to, named or NO_GUID, conversation, request.from_target, sender), table


def _home(place: InstanceView, request: ExplainRequest, contact: Contact | None) -> SendingDatabase | None:
    """Find the database that the message is sent from; None when it arrives from outside."""
    name = None if request.database is None else _home_name(place, request.database)
    is_incoming = request.incoming or request.peer is not None
    if is_incoming and name not in {None, MSDB}:
        raise BadRequestError("a message begins in a database or comes from outside: leave out one of the two")
    if is_incoming or name == MSDB:
        return None
    if contact is not None:
        return next(home for home in place.homes.values() if home.broker_instance == contact.broker_instance)
    if name is None:
        return next(iter(place.homes.values())) if len(place.homes) == 1 else None
    return place.homes[name]


def _home_name(place: InstanceView, name: str) -> str:
    """Return the name of the requested database, in the spelling of the configuration."""
    known = [MSDB, *place.homes]
    found = find_name(name, known)
    if found is None:
        raise UnknownNameError(911, f"the database {name!r} does not exist here; there are: {', '.join(sorted(known))}")
    return found


def _addresses_of(listen: ListenAddress) -> set[NetworkAddress]:
    """Return the addresses that lead to a listener of the configuration, without asking a resolver."""
    try:
        return own_addresses("127.0.0.1" if listen.host == "localhost" else listen.host, listen.port)
    except ValueError:
        return {NetworkAddress(listen.host, listen.port)}
