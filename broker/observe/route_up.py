"""
Which routes can be used, for the metric `broker_route_up`.

There may be a million routes, while states belong to addresses and a label takes 500 values. So the routes are walked
once for every change of a table, what is left of them by the bound on labels is kept, and a scrape looks at that alone.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import datetime

from broker.control.catalog import Rows
from broker.observe.label import LabelCap, Labels
from broker.routing.address import NetworkAddress

METRIC = "broker_route_up"


class RouteUp:
    """What is remembered of the tables; changed by one thread, the one that has the cap."""

    def __init__(self, cap: LabelCap) -> None:
        self._cap = cap
        self._rows: tuple[Rows, ...] = ()
        self._expiry: datetime | None = None
        self._addresses: dict[Labels, set[NetworkAddress]] = {}

    def samples(
        self, rows: tuple[Rows, ...], down: AbstractSet[NetworkAddress], *, now: datetime
    ) -> dict[Labels, float]:
        """
        Name and address of every live route with 1, or with 0 when its address is down; labels within their bound.

        Args:
            rows: The catalogs of all databases.
            down: The addresses that are not reached.
            now: UTC.

        Cost: O(values of the labels); O(routes) after a change of routes.
        """
        is_old = len(rows) != len(self._rows) or any(new is not old for new, old in zip(rows, self._rows, strict=True))
        if is_old or (self._expiry is not None and now >= self._expiry):
            self._walk(rows, now)
        return {labels: float(addresses.isdisjoint(down)) for labels, addresses in self._addresses.items()}

    def _walk(self, rows: tuple[Rows, ...], now: datetime) -> None:
        self._rows, self._expiry, self._addresses = rows, None, {}
        live = (route for one in rows for _, route in one.routes.values() if route.is_live(now))
        for route in live:
            if route.lifetime is not None:
                self._expiry = min(self._expiry or route.lifetime, route.lifetime)
            for address in (route.address, route.mirror_address):
                if isinstance(address, NetworkAddress):
                    labels = self._cap.cap(METRIC, (route.name, str(address)))
                    self._addresses.setdefault(labels, set()).add(address)
