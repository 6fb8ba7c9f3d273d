"""What the routing decision is told: about the frame, and about this instance. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from broker.wire.layout import NO_GUID


class RoutingFacts(Struct, frozen=True):
    """
    What a frame, or a conversation about to send one, says about where it wants to go.

    Shape: GUIDs are 16 bytes; `to_broker_instance` zero = open; `database` is the broker instance of the database
    in which the conversation sends, None when the frame arrived from outside.
    """

    to_service: str
    to_broker_instance: bytes
    conversation_id: bytes
    is_from_target: bool = False
    database: bytes | None = None

    @property
    def is_open(self) -> bool:
        """Whether any instance of the service will do."""
        return self.to_broker_instance == NO_GUID

    @property
    def is_incoming(self) -> bool:
        """Whether the frame arrived from outside, so that msdb's routes hold (R1.1)."""
        return self.database is None


class Hosted(Struct, frozen=True):
    """
    The databases of this instance and their services. Make one with `hosted`.

    Shape: `services_of` broker instance -> its service names; `databases_with` service name -> the broker instances
    that have it, sorted, so that a choice among them is stable; `mirrors` broker instances that live here and have
    their principal elsewhere.
    """

    services_of: Mapping[bytes, frozenset[str]] = field(default_factory=dict)
    databases_with: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    mirrors: frozenset[bytes] = frozenset()


def hosted(databases: Mapping[bytes, Iterable[str]], *, mirrors: Iterable[bytes] = ()) -> Hosted:
    """Index broker instances and the services each of them has, beside those that are mirrors."""
    services_of = {instance: frozenset(services) for instance, services in databases.items()}
    databases_with: dict[str, list[bytes]] = {}
    for instance in sorted(services_of):
        for service in services_of[instance]:
            databases_with.setdefault(service, []).append(instance)
    return Hosted(
        services_of,
        {service: tuple(instances) for service, instances in databases_with.items()},
        frozenset(mirrors),
    )
