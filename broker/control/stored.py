"""
Routes and permissions as they are found in a file that others may write as well.

What this program stores has passed `check_route`. A row that another hand has put there may hold anything; one that is
no route is left out with a warning, and neither stops the instance nor reaches the pass.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from broker.routing.route import WEIGHT_RANGE, Route, RouteRow, has_addresses, route_of
from broker.security.grants import PermissionRule
from broker.security.principal import PRINCIPAL_MAX
from broker.store.permission import permissions

CHUNK_ROWS = 1000  # looked at together
_LATEST = 253_402_300_799.0  # the end of the year 9999, the last that Python knows

_Instance: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Instant: TypeAlias = Annotated[float, Meta(ge=0.0, le=_LATEST)]
_Weight: TypeAlias = Annotated[int, Meta(ge=WEIGHT_RANGE[0], le=WEIGHT_RANGE[1])]
_Row: TypeAlias = tuple[str, str | None, _Instance | None, _Instant | None, str, str | None, _Weight]


def sound_rows(rows: Iterable[RouteRow], *, database: str) -> Iterator[RouteRow]:
    """
    The rows that are routes, in their order.

    Cost: well below a microsecond for each, as long as the addresses are few.
    """
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK_ROWS)):
        has_types = _is(chunk, list[_Row])
        for row in chunk:
            if (has_types or _is(row, _Row)) and has_addresses(row):
                yield row
            else:
                import structlog  # noqa: PLC0415 - slow to import: see broker.cli.group

                log = structlog.get_logger(__name__)
                log.warning("stored route ignored", database=database, route=str(row[0]), address=str(row[4]))


def sound_permissions(db: sqlite3.Connection) -> tuple[PermissionRule, ...]:
    """The rules that are stored, with a warning about each principal that is none."""
    rules, unreadable = permissions(db)
    for principal in unreadable:
        import structlog  # noqa: PLC0415 - slow to import: see broker.cli.group

        log = structlog.get_logger(__name__)
        log.warning("stored principal cannot be read", principal=principal[:PRINCIPAL_MAX])
    return rules


def stored_route(row: RouteRow | None) -> Route | None:
    """The route of a row; None when there is no row, or none that is a route."""
    return route_of(row) if row is not None and _is(row, _Row) and has_addresses(row) else None


def _is(value: Any, shape: Any) -> bool:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True
