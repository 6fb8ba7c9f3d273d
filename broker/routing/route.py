"""
A route, and every rule about what a route may say.

`RouteProperties` is what a statement says, as text and numbers; `Route` is what a table holds; `RouteRow` is what is
stored. `create_route` and `alter_route` lead from the first to the second by the same rules: those of each property,
then those of the whole. A broken rule is a `PropertyError` with the original's message number and the names of the
properties it is about; it has no position in the text; the caller, which has the statement, adds it.

Three shapes of route pass the rules: full (service and broker instance, mirror optional), by name only, and last
resort (neither). No clock is read: a LIFETIME becomes an instant with the `now` it is given.

Source: Service Broker documentation, "CREATE ROUTE", "ALTER ROUTE", "sys.routes"; Database Engine events and errors
8412, 8413, 9659 .. 9662, 9743 .. 9747.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, TypeVar
from uuid import UUID

from msgspec import Meta, Struct
from msgspec.structs import force_setattr, replace

from broker.errors import StatementError
from broker.protocol.layout import NAME_MAX_BYTES
from broker.routing.address import LOCAL, TRANSPORT, Keyword, NetworkAddress, parse_address

# A live route to this service makes matching ask it for missing routes.
BROKER_CONFIGURATION = "SQL/ServiceBroker/BrokerConfiguration"
# The service in whose name a database asks.
SERVICE_BROKER = "http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker"

PROPERTY_MAX_CHARACTERS = 256  # what the columns of sys.routes hold
LIFETIME_RANGE = (1, 2**31 - 1)  # seconds; the column is a signed 32-bit integer, and 0 would be born expired
WEIGHT_RANGE = (1, 1000)  # our extension; wide enough for any real ratio of machines
DEFAULT_WEIGHT = 1

Identity: TypeAlias = tuple[UUID | None, str | None, NetworkAddress | Keyword, NetworkAddress | None]

_LATEST = 253_402_300_799.0  # the end of the year 9999, the last that Python knows
_GUID = re.compile(r"(\{)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(?(1)\})", re.ASCII | re.IGNORECASE)


class PropertyError(StatementError):
    """
    A property that breaks a rule.

    Attributes:
        properties: Are names as in the statement (`ADDRESS`), the one to blame first.
    """

    properties: tuple[str, ...] = ()


class RouteProperties(Struct, frozen=True):
    """
    The properties after WITH in CREATE ROUTE or ALTER ROUTE, unchecked; None where the statement does not name one.

    Attributes:
        lifetime: Seconds.
        broker_instance, address, mirror_address: As written.
    """

    service_name: str | None = None
    broker_instance: str | None = None
    lifetime: int | None = None
    address: str | None = None
    mirror_address: str | None = None
    weight: int | None = None


class MirroredPair(Struct, frozen=True):
    """Two addresses of which one is the principal for a broker instance of a service; the original asks per pair."""

    remote_service_name: str
    broker_instance: UUID
    address: NetworkAddress
    mirror_address: NetworkAddress

    def __str__(self) -> str:
        return f"{self.address} or {self.mirror_address}"


class Route(Struct, frozen=True):
    """
    One row of a route table.

    Attributes:
        remote_service_name: None = any service, compared byte for byte.
        broker_instance: None = any.
        lifetime: The UTC instant of expiry, None = never.
        weight: 1 .. 1000; the two texts are the addresses as the statement spelt them (keywords in upper case), the
            normal form when nothing else is given.
    """

    name: str
    address: NetworkAddress | Keyword
    remote_service_name: str | None = None
    broker_instance: UUID | None = None
    lifetime: datetime | None = None
    mirror_address: NetworkAddress | None = None
    weight: int = DEFAULT_WEIGHT
    address_text: str = ""
    mirror_address_text: str | None = None

    def __post_init__(self) -> None:
        """Fill in the texts that were left out."""
        if not self.address_text:
            force_setattr(self, "address_text", str(self.address))
        if self.mirror_address_text is None and self.mirror_address is not None:
            force_setattr(self, "mirror_address_text", str(self.mirror_address))

    @property
    def identity(self) -> Identity:
        """Return the properties that two routes must share to count as one when choosing (R1.5)."""
        return (self.broker_instance, self.remote_service_name, self.address, self.mirror_address)

    @property
    def addresses(self) -> list[NetworkAddress]:
        """The network addresses that it names: none, one, or those of a mirrored pair."""
        return [one for one in (self.address, self.mirror_address) if isinstance(one, NetworkAddress)]

    @property
    def pair(self) -> MirroredPair | None:
        """The mirrored pair that the route leads to; None when it names no mirror, or no broker instance to ask for."""
        service, instance = self.remote_service_name, self.broker_instance
        if self.mirror_address is None or service is None or instance is None:
            return None
        # fewer addresses, or equal ones: another program has stored the row
        return None if len(set(self.addresses)) < 2 else MirroredPair(service, instance, *self.addresses)


# The first route of every new database and of msdb (R1.3).
AUTO_CREATED_LOCAL = Route("AutoCreatedLocal", LOCAL)

address_of = lru_cache(maxsize=4096)(parse_address)

_Instant = TypeVar("_Instant", float, datetime)


def is_live(lifetime: _Instant | None, now: _Instant) -> bool:
    """Whether a route with this lifetime takes part in matching now; both UTC (R1.4)."""
    return lifetime is None or now < lifetime


class RouteRow(Struct, array_like=True, frozen=True, gc=False):
    """A route as it is stored; the fields are the columns, and `lifetime` UTC seconds."""

    name: str
    remote_service_name: str | None
    broker_instance: Annotated[bytes, Meta(min_length=16, max_length=16)] | None
    lifetime: Annotated[float, Meta(ge=0.0, le=_LATEST)] | None
    address: str
    mirror_address: str | None
    weight: Annotated[int, Meta(ge=WEIGHT_RANGE[0], le=WEIGHT_RANGE[1])]

    @classmethod
    def of(cls, route: Route) -> RouteRow:
        """A route as it is stored."""
        return cls(
            route.name,
            route.remote_service_name,
            None if route.broker_instance is None else route.broker_instance.bytes,
            None if route.lifetime is None else route.lifetime.timestamp(),
            route.address_text,
            route.mirror_address_text,
            route.weight,
        )

    def route_to(self, service: str | None) -> Route:
        """
        The route that was stored, to a service that the row itself may leave out; it was checked on its way in.

        Raises:
            ValueError: another program has written something that is not an address.
        """
        mirror_address = None if self.mirror_address is None else address_of(self.mirror_address)
        if isinstance(mirror_address, Keyword):
            problem = f"{self.mirror_address!r} is not a mirror address"
            raise ValueError(problem)  # noqa: TRY004 - the text is wrong, not its type
        return Route(
            self.name,
            address_of(self.address),
            service,
            None if self.broker_instance is None else UUID(bytes=self.broker_instance),
            None if self.lifetime is None else datetime.fromtimestamp(self.lifetime, UTC),
            mirror_address,
            self.weight,
            self.address,
            self.mirror_address,
        )

    @property
    def has_addresses(self) -> bool:
        """Whether the addresses, which another program may have written, are valid."""
        try:
            address_of(self.address)
            return self.mirror_address is None or isinstance(address_of(self.mirror_address), NetworkAddress)
        except ValueError:
            return False


def create_route(name: str, properties: RouteProperties, *, now: datetime | None = None) -> Route:
    """
    The route that CREATE ROUTE makes at this UTC instant; without an instant it has no lifetime.

    Raises:
        PropertyError:
            102 no ADDRESS; 1080 WEIGHT out of range; 8412 a service name that does not fit the wire;
            8413 a broker instance that is not a GUID, is the zero GUID, or is given with the configuration service;
            9659 empty; 9660 over 256 characters; 9661 a mirror without both service name and broker instance;
            9662 a broker instance without service name; 9743 LOCAL or TRANSPORT with or as a mirror;
            9744 not an address; 9745 TRANSPORT with a service name; 9746 LIFETIME out of range;
            9747 address and mirror are the same.
    """
    if properties.address is None:
        raise PropertyError(102, "a route needs ADDRESS", properties=("ADDRESS",))
    return _checked(Route(name, **_fields(properties, now)))


def alter_route(route: Route, properties: RouteProperties, *, now: datetime) -> Route:
    """
    The route after ALTER ROUTE: only what is named changes, and the whole must still be a legal route.

    Raises:
        PropertyError: as `create_route`; it may name a property that the statement did not.
    """
    return _checked(replace(route, **_fields(properties, now)))


# --- each property by itself ---


def _fields(properties: RouteProperties, now: datetime | None) -> dict[str, Any]:
    """The fields of a route that these properties name, each held against its rules."""
    fields: dict[str, Any] = {}
    if properties.service_name is not None:
        fields["remote_service_name"] = _service_name(properties.service_name)
    if properties.broker_instance is not None:
        fields["broker_instance"] = _broker_instance(properties.broker_instance)
    if properties.address is not None:
        address = fields["address"] = _address("ADDRESS", properties.address)
        fields["address_text"] = str(address) if isinstance(address, Keyword) else properties.address
    if properties.mirror_address is not None:
        fields["mirror_address"] = _mirror_address(properties.mirror_address)
        fields["mirror_address_text"] = properties.mirror_address
    if properties.weight is not None:
        fields["weight"] = _weight(properties.weight)
    if properties.lifetime is not None:
        fields["lifetime"] = _expiry(properties.lifetime, now)
    return fields


def _check_text(name: str, value: str) -> None:
    if not value:
        raise PropertyError(9659, f"{name} must not be empty", properties=(name,))
    if len(value) > PROPERTY_MAX_CHARACTERS:
        problem = f"{name} has {len(value)} characters; at most {PROPERTY_MAX_CHARACTERS} are allowed"
        raise PropertyError(9660, problem, properties=(name,))


def _service_name(value: str) -> str:
    _check_text("SERVICE_NAME", value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        problem = "SERVICE_NAME holds half of a surrogate pair and cannot be written as UTF-8"
        raise PropertyError(8412, problem, properties=("SERVICE_NAME",)) from None
    if size > NAME_MAX_BYTES:
        problem = f"SERVICE_NAME has {size} bytes of UTF-8; at most {NAME_MAX_BYTES} fit into a message"
        raise PropertyError(8412, problem, properties=("SERVICE_NAME",))
    return value


def _broker_instance(value: str) -> UUID:
    _check_text("BROKER_INSTANCE", value)
    if _GUID.fullmatch(value) is None:
        problem = f"BROKER_INSTANCE {value!r} is not a GUID such as '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11'"
        raise PropertyError(8413, problem, properties=("BROKER_INSTANCE",))
    instance = UUID(value)
    if not instance.int:
        problem = "BROKER_INSTANCE is the zero GUID, which means 'not specified' and matches nothing"
        raise PropertyError(8413, problem, properties=("BROKER_INSTANCE",))
    return instance


def _address(name: str, value: str) -> NetworkAddress | Keyword:
    _check_text(name, value)
    try:
        return address_of(value)
    except ValueError as error:
        raise PropertyError(9744, f"{name} is not a valid address: {error}", properties=(name,)) from None


def _mirror_address(value: str) -> NetworkAddress:
    address = _address("MIRROR_ADDRESS", value)
    if isinstance(address, Keyword):
        problem = f"MIRROR_ADDRESS must be a network address, not {address}"
        raise PropertyError(9743, problem, properties=("MIRROR_ADDRESS",))
    return address


def _weight(value: int) -> int:
    low, high = WEIGHT_RANGE
    if not low <= value <= high:
        raise PropertyError(1080, f"WEIGHT {value} is not between {low} and {high}", properties=("WEIGHT",))
    return value


def _expiry(lifetime: int, now: datetime | None) -> datetime | None:
    """The instant at which the route expires, when one can be known."""
    low, high = LIFETIME_RANGE
    if not low <= lifetime <= high:
        problem = f"LIFETIME {lifetime} is not between {low} and {high} seconds"
        raise PropertyError(9746, problem, properties=("LIFETIME",))
    return None if now is None else now + timedelta(seconds=lifetime)


# --- their combinations ---


def _checked(route: Route) -> Route:
    """The same route, when what it says together is legal."""
    if route.broker_instance is not None and route.remote_service_name is None:
        raise PropertyError(9662, "BROKER_INSTANCE needs a SERVICE_NAME", properties=("BROKER_INSTANCE",))
    if route.broker_instance is not None and route.remote_service_name == BROKER_CONFIGURATION:
        problem = f"a route to {BROKER_CONFIGURATION} must not name a BROKER_INSTANCE"
        raise PropertyError(8413, problem, properties=("BROKER_INSTANCE", "SERVICE_NAME"))
    if route.address == TRANSPORT and route.remote_service_name is not None:
        problem = "ADDRESS 'TRANSPORT' cannot be given with SERVICE_NAME: every service name carries its own address"
        raise PropertyError(9745, problem, properties=("ADDRESS", "SERVICE_NAME"))
    if route.mirror_address is None:
        return route
    if isinstance(route.address, Keyword):
        problem = f"a mirrored route needs a network address as ADDRESS, not {route.address}"
        raise PropertyError(9743, problem, properties=("ADDRESS", "MIRROR_ADDRESS"))
    if route.remote_service_name is None or route.broker_instance is None:
        raise PropertyError(
            9661, "MIRROR_ADDRESS needs SERVICE_NAME and BROKER_INSTANCE", properties=("MIRROR_ADDRESS",)
        )
    if route.address == route.mirror_address:
        problem = f"ADDRESS and MIRROR_ADDRESS are the same, {route.address}"
        raise PropertyError(9747, problem, properties=("MIRROR_ADDRESS", "ADDRESS"))
    return route
