"""Whose connection it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.net.quotas import host_of, peer_of
from broker.net.tls import identify
from tests.support.certificates import make


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("tcp://10.0.0.1:4022", "10.0.0.1"),
        ("tcp://[fe80::1]:4022", "fe80::1"),
        ("tcp://name.example:1", "name.example"),
    ],
)
def test_host_is_what_stands_before_the_port(address: str, host: str) -> None:
    assert host == host_of(address)


def test_peer_is_its_principal_where_it_has_proved_one_else_its_host() -> None:
    identity = identify(make("orders").der)
    proved: Any = SimpleNamespace(transport=SimpleNamespace(identity=identity), address="tcp://10.0.0.1:1")
    unproved: Any = SimpleNamespace(transport=SimpleNamespace(identity=None), address="tcp://10.0.0.1:1")

    assert ("CN=orders", "10.0.0.1") == (peer_of(proved), peer_of(unproved))
