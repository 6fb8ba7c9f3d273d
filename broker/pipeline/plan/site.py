"""
The instances of a history, as they were and as they would be: scripts, together with what the history shows.

A script tells routes, and the services that it makes. It does not tell which broker instance a database has, which
services are in databases that no script made, or whether an instance forwards; the history does: whoever sent lives
there, whatever was delivered found its service, whatever went through was forwarded. What is neither scripted nor seen
does not exist.

- A database of the scripts has the broker instance it is given; else that which has sent or taken messages of one of
  its services; else the only one that has sent, when it is the only database; else one that is made up.
- An instance forwards unless its history shows that it refused to (9792) and never did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from broker.pipeline.plan.script import MSDB, Scripted, ScriptedDatabase
from broker.routing.address import NetworkAddress
from broker.routing.facts import hosted
from broker.routing.journey import Site
from broker.routing.table import RouteTable, build_table


@dataclass(slots=True)
class Shown:
    """
    What the history shows of one instance. Changed by `gather` alone.

    Shape: `services` by broker instance of those that sent or were named when something was delivered; `anywhere`
    services that took what named no broker instance; `is_forwarding` None when nothing tells.
    """

    services: dict[bytes, set[str]] = field(default_factory=dict)
    anywhere: set[str] = field(default_factory=set)
    is_forwarding: bool | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """
    What is asked about.

    Shape: by instance its site before and after, the same instances in both; `names` of databases by broker instance;
    `addresses` the instances that they lead to, also those of which nothing else is known.
    """

    before: Mapping[str, Site]
    after: Mapping[str, Site]
    names: Mapping[bytes, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)

    def named(self, database: bytes) -> str:
        """A database as people call it."""
        return self.names.get(database) or str(UUID(bytes=database))


def gather(clues: Iterable[Any]) -> dict[str, Shown]:
    """What rows of `plan_key.clues` show, by instance."""
    shown: dict[str, Shown] = {}
    for row in clues:
        if row["instance"] is None:
            continue
        one = shown.setdefault(row["instance"], Shown())
        if row["forwarded"]:
            one.is_forwarding = True
        elif row["refused"] and one.is_forwarding is None:
            one.is_forwarding = False
        if row["database"] is not None:
            one.services.setdefault(bytes(row["database"]), set()).update(filter(None, [row["service"]]))
        elif row["service"] is not None:
            one.anywhere.add(row["service"])
    return shown


def change_of(
    before: Mapping[str, Scripted],
    after: Mapping[str, Scripted],
    shown: Mapping[str, Shown],
    *,
    now: datetime,
    addresses: Mapping[NetworkAddress, str],
    given: Mapping[str, UUID],
) -> Change:
    """
    The instances of two sets of scripts.

    Args:
        before: By instance; those that only one of the two has stay as they are.
        after: Likewise.
        shown: By instance.
        now: UTC instant at which routes live or have expired.
        addresses: Which instance each leads to.
        given: Broker instances of databases, by name.
    """
    sites: tuple[dict[str, Site], dict[str, Site]] = ({}, {})
    names: dict[bytes, str] = {}
    for instance in before.keys() | after.keys():
        pair = before.get(instance) or after[instance], after.get(instance) or before[instance]
        own = frozenset(address for address, name in addresses.items() if name == instance)
        seen = shown.get(instance, Shown())
        known = _identified(instance, pair[0], pair[1], seen, given)
        names |= {guid: name for name, guid in known.items()}
        for side, scripted in zip(sites, pair, strict=True):
            side[instance] = _site(instance, scripted, seen, known, own, now)
    return Change(*sites, names, {str(address): name for address, name in addresses.items()})


def _identified(
    instance: str, before: Scripted, after: Scripted, shown: Shown, given: Mapping[str, UUID]
) -> dict[str, bytes]:
    """The broker instance of each database but msdb."""
    users = sorted((before.databases.keys() | after.databases.keys()) - {MSDB})
    known = {name: given[name].bytes for name in users if name in given}
    nothing = ScriptedDatabase()
    for name in users:
        services = before.databases.get(name, nothing).services | after.databases.get(name, nothing).services
        services |= after.databases.get(name, nothing).dropped
        having = [guid for guid, some in shown.services.items() if some & services and guid not in known.values()]
        if name not in known and len(having) == 1:
            known[name] = having[0]
    left = [guid for guid in shown.services if guid not in known.values()]
    unnamed = [name for name in users if name not in known]
    if len(left) == len(unnamed) == 1:
        known[unnamed[0]] = left[0]
    return {name: known.get(name, uuid5(NAMESPACE_URL, f"{instance}/{name}").bytes) for name in users}


def _site(  # noqa: PLR0917 - all different
    instance: str,
    scripted: Scripted,
    shown: Shown,
    known: Mapping[str, bytes],
    own: frozenset[NetworkAddress],
    now: datetime,
) -> Site:
    services = {guid: set(some) for guid, some in shown.services.items()}
    tables: dict[bytes, RouteTable] = {}
    dropped: set[str] = set()
    for name, database in scripted.databases.items():
        if name != MSDB:
            guid = known[name]
            tables[guid] = build_table(database.routes.values(), now=now)
            services[guid] = (services.get(guid, set()) - database.dropped) | database.services
            dropped |= database.dropped
    if homeless := shown.anywhere - dropped - set().union(*services.values()):
        services[uuid5(NAMESPACE_URL, instance).bytes] = homeless
    return Site(
        instance,
        own,
        build_table(scripted.databases[MSDB].routes.values(), now=now),
        tables,
        hosted(services),
        is_forwarding=shown.is_forwarding is not False,
    )
