"""Roles as PROBE_REPLY spells them."""

from __future__ import annotations

import pytest

from broker.mirror.role import EPOCH_MAX, Role


@pytest.mark.parametrize("role", Role)
def test_role_is_known_by_its_text(role: Role) -> None:
    assert role is Role.of(role.value)


@pytest.mark.parametrize("text", ["", "Principal", "primary", "principal ", "\x00"])
def test_text_that_names_no_role_is_unknown(text: str) -> None:
    assert Role.UNKNOWN is Role.of(text)


def test_every_epoch_fits_into_a_database() -> None:
    assert 63 == EPOCH_MAX.bit_length()
