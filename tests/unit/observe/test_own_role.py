"""What an instance is for its databases is told in the words of the original."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.observe.view_rows import role_rows
from broker.observe.views import DATABASE_MIRRORING, MEMORY_VIEWS
from broker.routing.mirrored import MirrorRole, OwnRoleStatus


def row(**values: Any) -> dict[str, Any]:
    given = {"broker_instance": b"i" * 16, "role": MirrorRole.PRINCIPAL, "epoch": 3, "since": 0.0, "source": "lock"}
    (found,) = role_rows({"orders": OwnRoleStatus(**{**given, **values})})
    return dict(zip(MEMORY_VIEWS[DATABASE_MIRRORING], found, strict=True))


@pytest.mark.parametrize(
    ("values", "state", "role", "partner"),
    [
        ({}, (4, "SYNCHRONIZED"), (1, "PRINCIPAL"), None),
        ({"principal": "us"}, (4, "SYNCHRONIZED"), (1, "PRINCIPAL"), None),
        ({"role": MirrorRole.MIRROR, "principal": "them"}, (4, "SYNCHRONIZED"), (2, "MIRROR"), "them"),
        ({"role": MirrorRole.MIRROR, "is_resting": True, "problem": "x"}, (3, "PENDING_FAILOVER"), (2, "MIRROR"), None),
        ({"role": MirrorRole.MIRROR, "problem": "x"}, (0, "SUSPENDED"), (2, "MIRROR"), None),
        ({"source": "off"}, (None, None), (None, None), None),
    ],
)
def test_state_role_and_partner_have_the_words_of_the_original(
    values: dict[str, Any], state: tuple[Any, Any], role: tuple[Any, Any], partner: str | None
) -> None:
    told = row(**values)

    assert state == (told["mirroring_state"], told["mirroring_state_desc"])
    assert role == (told["mirroring_role"], told["mirroring_role_desc"])
    assert partner == told["mirroring_partner_name"]


def test_what_is_not_known_is_null_and_the_rest_is_told() -> None:
    told = row(broker_instance=None)

    assert (None, None, None) == (told["mirroring_guid"], told["mirroring_failover_lsn"], told["problem"])
    assert ("orders", 3, "lock") == (told["database_name"], told["mirroring_role_sequence"], told["role_source"])
    assert datetime(1970, 1, 1, tzinfo=UTC) == told["role_since"]
