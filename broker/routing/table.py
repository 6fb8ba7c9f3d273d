"""
A route table as matching needs it: every question is one dictionary look-up, never a scan (R1.7).

A table holds all routes of one database (or of msdb), packed: the routes of one service are one `bytes` object, or one
for each broker instance when they are many. So a million routes take some 300 bytes each, none of which the garbage
collector ever visits, and what a decision needs is unpacked when it is asked for; the pass caches decisions, so that is
rare. The routes of one service and broker instance are in the order of their names.

A table never changes. A change of routes makes a new one that shares all it can, and so does the passing of
`next_expiry`, as a table is for one instant and finds live routes only (R1.4). Then one reference is replaced (R1.6),
and readers never lock. The big mapping is shared by all copies, with the changes in a small dictionary over it
(`Layered`): with a million routes a change takes 10 us; copying the mapping would take 20 ms, on the loop.

A table knows the services in which it differs from the one it was made from (`differing`), so that only decisions about
these are made again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from broker.routing.address import NetworkAddress
from broker.routing.route import Route, RouteRow, address_of, is_live

FOLD_FRACTION = 8  # changes are folded in when they are more than this part of the whole
FOLD_MIN = 64  # below it folding gains nothing
SMALL = 4  # routes of a service that are packed together; more are packed by broker instance
FEW = 64  # instants of expiry that are inserted and removed one by one; with more all are sorted again
K = TypeVar("K")
V = TypeVar("V")
_ANY = b""  # the key of "any broker instance" in a large group
_NEVER_ASKED = datetime.min.replace(tzinfo=UTC)  # the instant of a table without routes
_Expiry: TypeAlias = tuple[float, str]
"""UTC seconds, and the service name of the route, "" if it has none."""
_instant = itemgetter(0)


class RouteChange(NamedTuple):
    """The change of one route: made (`old` None), dropped (`new` None) or altered."""

    old: Route | None
    new: Route | None


class RouteTable:
    """
    The routes of one database at one instant. Make one with `build_table`.

    Attributes:
        count: All routes, expired ones included.
        now: The UTC instant at which its routes are live or expired.
        next_expiry: The UTC instant at which that is out of date, None = never.
    """

    __slots__ = ("_expiries", "_groups", "_now", "count", "next_expiry", "now")

    def __init__(
        self,
        groups: Layered[str | None, _Group] | None = None,
        expiries: list[_Expiry] | None = None,
        *,
        count: int = 0,
        now: datetime = _NEVER_ASKED,
    ) -> None:
        self._groups = Layered({}) if groups is None else groups
        self._expiries = [] if expiries is None else expiries  # sorted, of all routes that expire or have expired
        self._now = now.timestamp()
        self.count = count
        self.now = now
        after = self._expired_by(self._now)
        self.next_expiry = (
            datetime.fromtimestamp(self._expiries[after][0], UTC) if after < len(self._expiries) else None
        )

    # --- for matching ---

    def routes(self, service: str | None, instance: bytes | None = None) -> tuple[Route, ...]:
        """The live routes with exactly this service name and broker instance; None = those that leave it open."""
        rows = self._rows(service, instance)
        return tuple([row.route_to(service) for row in rows if is_live(row.lifetime, self._now)])

    def lone(self, service: str) -> Route | None:
        """The only route to a service, when it is live and names neither a broker instance nor a mirror."""
        group = self._groups.get(service)
        rows = _unpack(group) if isinstance(group, bytes) else []
        if len(rows) != 1 or not is_live(rows[0].lifetime, self._now):
            return None
        route = rows[0].route_to(service)
        return route if route.broker_instance is None and route.mirror_address is None else None

    def instances(self, service: str) -> dict[bytes, int]:
        """The broker instances that have live routes to a service, each with the weight of its heaviest."""
        weights: dict[bytes, int] = {}
        for row in self._all_rows(service):
            instance = row.broker_instance
            if instance is not None and is_live(row.lifetime, self._now):
                weights[instance] = max(row.weight, weights.get(instance, 0))
        return weights

    def differing(self, before: RouteTable) -> AbstractSet[str | None] | None:
        """
        The service names whose live routes may be others than before, None among them for routes that name none.

        Args:
            before: A table that this one was made from, by `at` or by one `changed` and `at`; of any other table it is
                not known, and None is returned.
        """
        services = self._groups.differing(before._groups)
        if services is None:
            return None
        first, last = sorted((self._expired_by(before._now), self._expired_by(self._now)))
        return {*services, *(service or None for _, service in self._expiries[first:last])}

    # --- for views ---

    def all_routes(self, service: str | None) -> Iterator[Route]:
        """The routes with exactly this service name, expired ones included, whatever broker instance they name."""
        return (row.route_to(service) for row in self._all_rows(service))

    def addresses(self, most: int) -> set[NetworkAddress]:
        """The network addresses that the first so many routes name. Cost: some 0.5 us a route."""
        rows = (row for service in self.services() for row in self._all_rows(service))
        texts = {text for row in islice(rows, most) for text in (row.address, row.mirror_address)}
        return {one for one in map(address_of, texts - {None}) if isinstance(one, NetworkAddress)}

    def services(self) -> Iterator[str | None]:
        """Every service name that a route has; None for the routes that name none."""
        return (service for service, _ in self._groups)

    def __iter__(self) -> Iterator[Route]:
        """All routes, expired ones included."""
        for service in self.services():
            yield from self.all_routes(service)

    # --- the next table ---

    def at(self, now: datetime) -> RouteTable:
        """This table at another instant."""
        return RouteTable(self._groups, self._expiries, count=self.count, now=now)

    def changed(self, changes: Iterable[RouteChange]) -> RouteTable:
        """
        The table after these changes, in their order.

        Cost: the changes, and the routes that share their service and broker instance.
        """
        count = self.count
        gone: dict[str | None, dict[bytes | None, set[str]]] = {}
        come: dict[str | None, dict[bytes | None, dict[str, RouteRow]]] = {}
        ended: list[_Expiry] = []
        begun: list[_Expiry] = []
        for old, new in changes:
            if old is not None:
                was = RouteRow.of(old)
                if was.lifetime is not None:
                    ended.append((was.lifetime, old.remote_service_name or ""))
                gone.setdefault(old.remote_service_name, {}).setdefault(was.broker_instance, set()).add(was.name)
                come.get(old.remote_service_name, {}).get(was.broker_instance, {}).pop(was.name, None)
                count -= 1
            if new is not None:
                row = RouteRow.of(new)
                come.setdefault(new.remote_service_name, {}).setdefault(row.broker_instance, {})[row.name] = row
                count += 1
                if row.lifetime is not None:
                    begun.append((row.lifetime, new.remote_service_name or ""))
        groups = {
            service: self._changed_group(service, gone.get(service, {}), come.get(service, {}))
            for service in gone.keys() | come.keys()
        }
        return RouteTable(self._groups.changed(groups), self._changed_expiries(ended, begun), count=count, now=self.now)

    def _rows(self, service: str | None, instance: bytes | None) -> list[RouteRow]:
        group = self._groups.get(service)
        if group is None:
            return []
        if isinstance(group, bytes):
            return [row for row in _unpack(group) if row.broker_instance == instance]
        packed = group.get(_ANY if instance is None else instance)
        return [] if packed is None else _unpack(packed)

    def _all_rows(self, service: str | None) -> Iterator[RouteRow]:
        group = self._groups.get(service)
        if isinstance(group, bytes):
            yield from _unpack(group)
        elif group is not None:
            for _, packed in group:
                yield from _unpack(packed)

    def _changed_group(
        self,
        service: str | None,
        gone: dict[bytes | None, set[str]],
        come: dict[bytes | None, dict[str, RouteRow]],
    ) -> _Group | None:
        """The routes of one service after a change; None when there are none left."""

        def changed(instance: bytes | None) -> list[RouteRow]:
            without = gone.get(instance, set()) | come.get(instance, {}).keys()
            kept = [row for row in self._rows(service, instance) if row.name not in without]
            return [*kept, *come.get(instance, {}).values()]

        group = self._groups.get(service)
        if isinstance(group, Layered):
            touched = gone.keys() | come.keys()
            group = group.changed({instance or _ANY: _pack(changed(instance)) for instance in touched})
            return None if next(iter(group), None) is None else group
        others = {row.broker_instance for row in self._all_rows(service)}
        return _group([row for instance in others | gone.keys() | come.keys() for row in changed(instance)])

    def _changed_expiries(self, ended: list[_Expiry], begun: list[_Expiry]) -> list[_Expiry]:
        """The instants of expiry after a change; an `ended` one that another program stored more exactly stays."""
        if not ended and not begun:
            return self._expiries
        if len(ended) + len(begun) > FEW:
            counted = Counter(self._expiries)
            counted.update(begun)
            counted.subtract(ended)
            return sorted(counted.elements())
        expiries = self._expiries.copy()
        for expiry in begun:
            insort(expiries, expiry)
        for expiry in ended:
            at = bisect_left(expiries, expiry)
            if expiries[at : at + 1] == [expiry]:
                del expiries[at]
        return expiries

    def _expired_by(self, now: float) -> int:
        """How many of the instants of expiry are not after this one."""
        return bisect_right(self._expiries, now, key=_instant)


def build_table(routes: Iterable[Route], *, now: datetime) -> RouteTable:
    """The table of these routes at this UTC instant."""
    return table_of_rows(sorted(map(RouteRow.of, routes), key=_by_service), now=now)


def table_of_rows(rows: Iterable[RouteRow], *, now: datetime) -> RouteTable:
    """
    The table of routes as they are stored; those of one service are adjacent.

    Cost: O(number of routes), and of memory not much beyond the table itself.
    """
    groups: dict[str | None, _Group] = {}
    expiries: list[_Expiry] = []
    count = 0
    for service, some in groupby(rows, key=attrgetter("remote_service_name")):
        same = list(some)
        assert service not in groups, f"the routes to {service!r} do not stand together"
        count += len(same)
        expiries.extend((row.lifetime, service or "") for row in same if row.lifetime is not None)
        group = _group(same)
        assert group is not None
        groups[service] = group
    return RouteTable(Layered(groups), sorted(expiries), count=count, now=now)


def _group(rows: list[RouteRow]) -> _Group | None:
    """The routes of one service."""
    if len(rows) <= SMALL:
        return _pack(rows)
    by_instance: dict[bytes, list[RouteRow]] = {}
    for row in rows:
        by_instance.setdefault(row.broker_instance or _ANY, []).append(row)
    return Layered({instance: _encoded(some) for instance, some in by_instance.items()})


def _pack(rows: list[RouteRow]) -> bytes | None:
    return _encoded(rows) if rows else None


def _encoded(rows: list[RouteRow]) -> bytes:
    """Routes in the order of their names, without the name of their service."""
    return _encode([replace(row, remote_service_name=None) for row in sorted(rows, key=attrgetter("name"))])


def _by_service(row: RouteRow) -> tuple[bool, str]:
    return row.remote_service_name is not None, row.remote_service_name or ""


_encode = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[RouteRow]).decode


class Layered(Generic[K, V]):
    """
    An immutable mapping; a changed copy costs as much as the number of changes.

    Cost: `get` two searches at most; `changed` the changes so far, and once in a while the whole.
    """

    __slots__ = ("_base", "_changed", "_changes", "_origin", "_version")

    def __init__(
        self,
        base: dict[K, V],
        changes: dict[K, V | None] | None = None,
        *,
        origin: object = None,
        changed: AbstractSet[K] = frozenset(),
    ) -> None:
        self._base = base
        self._changes = changes or {}
        self._version = object()  # identifies this one without keeping it alive
        self._origin = origin  # the `_version` of the one that this was made from, by a change of these keys
        self._changed = changed

    def get(self, key: K) -> V | None:
        """The value of a key, None when there is none."""
        if self._changes and key in self._changes:
            return self._changes[key]
        return self._base.get(key)

    def changed(self, changes: Mapping[K, V | None]) -> Layered[K, V]:
        """A copy in which these keys have these values, and those with None are gone."""
        merged = {**self._changes, **changes}
        base = self._base
        if len(merged) > max(FOLD_MIN, len(base) // FOLD_FRACTION):
            base = {key: value for key, value in {**base, **merged}.items() if value is not None}
            merged = {}
        return Layered(base, merged, origin=self._version, changed=frozenset(changes))

    def differing(self, before: Layered[K, V]) -> AbstractSet[K] | None:
        """The keys that may have other values than before; None, not known, unless one `changed` made this of it."""
        if self is before:
            return frozenset()
        return self._changed if self._origin is before._version else None

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Every key with its value."""
        for key, value in self._base.items():
            if key not in self._changes:
                yield key, value
        for key, changed in self._changes.items():
            if changed is not None:
                yield key, changed


_Group: TypeAlias = bytes | Layered[bytes, bytes]
