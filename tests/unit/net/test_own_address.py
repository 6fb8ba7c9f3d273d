"""What leads to a port here, and what may lead elsewhere."""

from __future__ import annotations

import socket

import pytest

from broker.net.listener import own_addresses

HERE = {"127.0.0.1", "localhost", socket.gethostname().lower()}


@pytest.mark.parametrize(
    ("host", "hosts"),
    [
        ("127.0.0.1", {"127.0.0.1", "localhost"}),
        ("::1", {"::1", "localhost"}),
        ("0.0.0.0", HERE),
        ("::", {*HERE, "::1"}),
        ("192.0.2.1", {"192.0.2.1"}),
    ],
)
def test_a_port_is_reached_by_every_name_of_this_machine(host: str, hosts: set[str]) -> None:
    assert {(one, 4022) for one in hosts} == {(one.host, one.port) for one in own_addresses(host, 4022)}
