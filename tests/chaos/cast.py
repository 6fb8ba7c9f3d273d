"""Who is there in a fault run: hosts, databases and services, and what is special about some of them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

INITIATORS = ("initiator-1", "initiator-2")
BILLING = "billing"
STOCK = ("stock-1", "stock-2")  # one database, a mirrored pair
COMMAND, LOCK = "command", "lock"  # who decides about its roles: `mirroring`
PARCELS = ("parcel-1", "parcel-2")  # two databases of one service, among which dialogs are balanced
SEALED = (INITIATORS[0], BILLING)  # whose databases have certificates: dialogs between them are sealed
READER = PARCELS[1]  # whose messages are given to a reader (`broker.reader`)
QUEUE = "Inbox"


@dataclass(frozen=True)
class Home:
    """
    A database.

    Shape: `name`, of its file too; `service`, which others may have as well; `hosts` where it lives, two of a mirrored
    pair.
    """

    name: str
    service: str
    hosts: tuple[str, ...]
    instance: str = field(default_factory=lambda: str(uuid.uuid4()))


def make_initiators() -> list[Home]:
    """Databases that begin dialogs."""
    return [Home(f"orders-{number}", f"//chaos/Orders-{number}", (host,)) for number, host in enumerate(INITIATORS, 1)]


def make_targets() -> list[Home]:
    """Databases that answer."""
    parcels = [Home(host, "//chaos/Parcel", (host,)) for host in PARCELS]
    return [Home("billing", "//chaos/Billing", (BILLING,)), Home("stock", "//chaos/Stock", STOCK), *parcels]
