"""
Which routes can be used, for the metric `broker_route_up`.

There may be a million routes, while states belong to addresses and a label takes 500 values. So of every table the
first `ROUTES_MAX` routes are walked, once for every change of the table; what is left of them by the bound on labels is
kept, and a scrape looks at that alone. Of a larger table the other routes are in the views, not in this metric.
"""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from datetime import datetime
from itertools import islice

from broker.observe.label import LabelCap, Labels
from broker.routing.address import NetworkAddress
from broker.routing.table import RouteTable

METRIC = "broker_route_up"
ROUTES_MAX = 10_000  # of a table; walking them takes some 0.2 s of a core, and a million would take 20 s
SLICE_ROUTES = 50  # 1 ms: for as long as that the loop may have to wait for the interpreter's lock ...
PAUSE_SECONDS = 0.001  # ... which it has to itself in between


class RouteUp:
    """What is remembered of the tables; changed by one thread, the one that has the cap."""

    def __init__(self, cap: LabelCap) -> None:
        self._cap = cap
        self._tables: tuple[RouteTable, ...] = ()
        self._expiry: datetime | None = None
        self._addresses: dict[Labels, set[NetworkAddress]] = {}

    def samples(
        self, tables: tuple[RouteTable, ...], down: AbstractSet[NetworkAddress], *, now: datetime
    ) -> dict[Labels, float]:
        """
        Name and address of every live route with 1, or with 0 when its address is down; labels within their bound.

        Args:
            tables: Of all databases.
            down: The addresses that are not reached.
            now: UTC.

        Cost: O(values of the labels); after a change of routes the walk.
        """
        is_old = len(tables) != len(self._tables) or any(
            new is not old for new, old in zip(tables, self._tables, strict=True)
        )
        if is_old or (self._expiry is not None and now >= self._expiry):
            self._walk(tables, now)
        return {labels: float(addresses.isdisjoint(down)) for labels, addresses in self._addresses.items()}

    def _walk(self, tables: tuple[RouteTable, ...], now: datetime) -> None:
        self._tables, self._expiry, self._addresses = tables, None, {}
        live = (route for table in tables for route in islice(table, ROUTES_MAX) if route.is_live(now))
        for number, route in enumerate(live, 1):
            if number % SLICE_ROUTES == 0:
                time.sleep(PAUSE_SECONDS)
            if route.lifetime is not None:
                self._expiry = min(self._expiry or route.lifetime, route.lifetime)
            for address in (route.address, route.mirror_address):
                if isinstance(address, NetworkAddress):
                    labels = self._cap.cap(METRIC, (route.name, str(address)))
                    self._addresses.setdefault(labels, set()).add(address)
