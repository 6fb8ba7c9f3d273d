"""
Routes to give out, from SRV records of the DNS.

The host is what the service name begins with as an address would (`//host/..`, `tcp://host:port/..`, `http://host/..`),
or the whole name where that is a host name; one without a dot is completed by the domain that was configured. Asked is
for `_broker._tcp.<host>`. Of the records with the lowest priority one is chosen by weight, by a hash of the service
name: two routes without a broker instance to different hosts would be two targets for one dialog. The route lives as
long as the records do.

Source: RFC 2782, "A DNS RR for specifying the location of services".
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address

from broker.ddl.statements import CreateRoute
from broker.dialog.route_requests import Inquiry
from broker.errors import ConversationError
from broker.routing.decide import score
from broker.routing.route import RouteProperties

NO_ROUTE = 9750  # the original's message for a service without a route
PREFIX = "_broker._tcp"
LIFETIME_RANGE = (30, 86_400)  # seconds; a TTL of 0 must not become a request a second, nor one of a week a stale route
LOOKUP_SECONDS = 5.0  # for one answer, all servers and repetitions together
NAME_CHARACTERS = 100  # of the service name in the name of its route

_AUTHORITY = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//(?:[^/?#@]*@)?(\[[^\]]*\]|[^/?#:]+)", re.ASCII | re.IGNORECASE)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SrvRecord:
    """One record. Shape: `target` without the dot at its end, empty for "this service is not offered"."""

    priority: int
    weight: int
    port: int
    target: str


Lookup = Callable[[str], tuple[list[SrvRecord], int]]
"""The SRV records of a name and their TTL in seconds; raises LookupError with what the DNS said instead."""


class SrvRoutes:
    """Asks the DNS. Shape: `domain` what completes a host without a dot, None = it is not asked for."""

    def __init__(self, lookup: Lookup, *, domain: str | None = None) -> None:
        self._lookup = lookup
        self._domain = domain

    def find(self, inquiry: Inquiry) -> list[CreateRoute]:
        """
        The one route to the service.

        Raises:
            ConversationError: 9750, and why the DNS gives none.
        """
        name = record_name(inquiry.service_name, domain=self._domain)
        if name is None:
            raise ConversationError(NO_ROUTE, f"the name {inquiry.service_name!r} holds no host to ask the DNS for")
        try:
            records, ttl = self._lookup(name)
        except LookupError as error:
            raise ConversationError(NO_ROUTE, f"no SRV record of {name}: {error}") from error
        record = choose_record(records, inquiry.service_name)
        if record is None:
            raise ConversationError(NO_ROUTE, f"{name} says that the service is not offered")
        low, high = LIFETIME_RANGE
        properties = RouteProperties(
            service_name=inquiry.service_name,
            lifetime=min(max(ttl, low), high),
            address=f"tcp://{record.target}:{record.port}",
        )
        return [CreateRoute(route_name(inquiry.service_name), properties)]


def record_name(service_name: str, *, domain: str | None) -> str | None:
    """The name whose SRV records tell where a service is; None when its name holds no host."""
    authority = _AUTHORITY.match(service_name)
    host = authority[1] if authority is not None else service_name
    if _HOST.fullmatch(host) is None or _is_address(host):
        return None
    host = host.removesuffix(".")
    if "." not in host:
        if domain is None:
            return None
        host = f"{host}.{domain.strip('.')}"
    return f"{PREFIX}.{host.lower()}"


def choose_record(records: list[SrvRecord], service_name: str) -> SrvRecord | None:
    """
    One of the records with the lowest priority, always the same for one service name while the records are the same.

    Over many services, each is chosen as often as its weight says; weight 0 only beside other zeros.
    """
    offered = [record for record in records if record.target and record.port]
    if not offered:
        return None
    lowest = min(record.priority for record in offered)
    best = [record for record in offered if record.priority == lowest]
    if any(record.weight for record in best):
        best = [record for record in best if record.weight]
    key = sha256(service_name.encode()).digest()[:16]

    def rank(record: SrvRecord) -> tuple[float, str, int]:
        target = f"{record.target.lower()}:{record.port}".encode()
        return -score(key, target, weight=max(1, record.weight)), record.target, record.port

    return min(best, key=rank)


def route_name(service_name: str) -> str:
    """A name for the route to a service: readable, and of its own for each."""
    return f"dns {service_name[:NAME_CHARACTERS]} {sha256(service_name.encode()).hexdigest()[:12]}"


def dns_lookup(nameserver: tuple[str, int] | None = None) -> Lookup:
    """
    Looking up in the real DNS.

    Args:
        nameserver: Address and port of the one to ask; None = those of the system.

    Raises:
        LookupError: the system names no server to ask.
    """
    from dns.exception import DNSException  # noqa: PLC0415 - only --srv needs dnspython
    from dns.resolver import Resolver  # noqa: PLC0415

    try:
        resolver = Resolver(configure=nameserver is None)
    except DNSException as error:
        raise LookupError(str(error)) from error
    if nameserver is not None:
        resolver.nameservers, resolver.port = [nameserver[0]], nameserver[1]

    def lookup(name: str) -> tuple[list[SrvRecord], int]:
        try:
            answer = resolver.resolve(f"{name}.", "SRV", lifetime=LOOKUP_SECONDS)
        except DNSException as error:
            raise LookupError(str(error)) from error
        assert answer.rrset is not None  # resolve raises NoAnswer instead
        records = [
            SrvRecord(one.priority, one.weight, one.port, one.target.to_text(omit_final_dot=True).strip("."))
            for one in answer
        ]
        return records, answer.rrset.ttl

    return lookup


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
