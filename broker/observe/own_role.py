"""
Rows of `sys.database_mirroring`: what this instance is for each of its databases.

States and roles have the original's numbers and words where it has them. There is nothing between two copies to keep
in step, so a database with a partner is `SYNCHRONIZED`, `PENDING_FAILOVER` while it is left to the partner, and
`SUSPENDED` while something keeps this instance from its role.

Source: Service Broker's product documentation, "sys.database_mirroring".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from uuid import UUID

from broker.control.own_standing import OwnRoleStatus
from broker.observe.view import DATABASE_MIRRORING, make_row
from broker.routing.mirrored import MirrorRole

_ROLES = {MirrorRole.PRINCIPAL: (1, "PRINCIPAL"), MirrorRole.MIRROR: (2, "MIRROR")}
_SUSPENDED, _PENDING_FAILOVER, _SYNCHRONIZED = (0, "SUSPENDED"), (3, "PENDING_FAILOVER"), (4, "SYNCHRONIZED")


def role_rows(standings: Mapping[str, OwnRoleStatus]) -> Iterator[tuple[object, ...]]:
    """One row for each database; NULL state and role where `mirroring` is off, as in the original."""
    for name, standing in standings.items():
        is_mirrored = standing.source != "off"
        state, role = _state(standing) if is_mirrored else (None, None), _ROLES[standing.role]
        partner = standing.principal if standing.role is MirrorRole.MIRROR else ""
        yield make_row(
            DATABASE_MIRRORING,
            mirroring_guid=None if standing.broker_instance is None else UUID(bytes=standing.broker_instance),
            mirroring_state=state[0],
            mirroring_state_desc=state[1],
            mirroring_role=role[0] if is_mirrored else None,
            mirroring_role_desc=role[1] if is_mirrored else None,
            mirroring_role_sequence=standing.epoch,
            mirroring_partner_name=partner or None,
            database_name=name,
            role_since=datetime.fromtimestamp(standing.since, UTC),
            role_source=standing.source,
            problem=standing.problem or None,
        )


def _state(standing: OwnRoleStatus) -> tuple[int, str]:
    if standing.is_resting:
        return _PENDING_FAILOVER
    return _SUSPENDED if standing.problem else _SYNCHRONIZED
