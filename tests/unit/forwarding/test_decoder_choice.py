"""A decoder by name, the fastest where the name says nothing."""

from __future__ import annotations

import pytest

from broker.forwarding.kernels import DECODERS, make_decoder


@pytest.mark.parametrize("name", DECODERS)
def test_name_decides(name: str) -> None:
    assert name == make_decoder(name).name


def test_without_a_name_it_is_the_fastest() -> None:
    assert next(iter(DECODERS)) == make_decoder().name == make_decoder("none of them").name
