"""Roles as PROBE_REPLY spells them."""

from __future__ import annotations

import pytest

from broker.routing.mirrored import EPOCH_MAX, MirrorRole


@pytest.mark.parametrize("role", MirrorRole)
def test_role_is_known_by_its_text(role: MirrorRole) -> None:
    assert role is MirrorRole.of(role.value)


@pytest.mark.parametrize("text", ["", "Principal", "primary", "principal ", "\x00"])
def test_text_that_names_no_role_is_unknown(text: str) -> None:
    assert MirrorRole.UNKNOWN is MirrorRole.of(text)


def test_every_epoch_fits_into_a_database() -> None:
    assert 63 == EPOCH_MAX.bit_length()
