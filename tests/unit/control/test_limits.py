"""What peers may take: as the links are told, and what leaves next to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.config.consistency import contradictions
from broker.config.load import load_settings
from broker.config.settings import Settings, with_pool_share
from broker.config.toml import dotted
from broker.daemon.reload import peer_limits, timeouts_of
from broker.net.quotas import PeerLimits, Timeouts


def settings_with(limits: dict[str, Any], **endpoint: Any) -> Settings:
    return Settings.read({"limits": limits, "endpoint": endpoint})


def test_defaults_bound_connections_and_handshakes_and_nothing_else() -> None:
    expected = PeerLimits(connections=10_000, connections_per_peer=1000, reserved_connections=100, handshakes=256)

    assert expected == peer_limits(Settings())
    assert not peer_limits(Settings()).are_paced


@pytest.mark.parametrize(
    ("limits", "authentication", "share"),
    [
        ({}, "certificate", 50),
        ({}, "none", 0),
        ({"pool_share": 0}, "certificate", 0),
        ({"pool_share": 20}, "certificate", 20),
        ({"pool_share": 20}, "none", 20),
    ],
)
def test_peer_that_proves_who_it_is_has_half_of_the_pool_unless_another_share_is_configured(
    limits: dict[str, Any], authentication: str, share: int
) -> None:
    settings = with_pool_share(settings_with(limits, authentication=authentication))

    assert share == peer_limits(settings).pool_share


def test_every_limit_reaches_the_links() -> None:
    told = {
        "connections": 50,
        "connections_per_peer": 2,
        "reserved_connections": 10,
        "handshakes": 16,
        "bytes_per_second": 1 << 20,
        "messages_per_second": 1000,
        "pool_share": 30,
    }

    assert PeerLimits(**told) == peer_limits(settings_with({**told, "bytes_per_second": "1MiB"}))


def test_loaded_settings_have_the_share_that_goes_with_their_authentication(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        '[endpoint]\nencryption = "required"\nauthentication = "certificate"\n'
        'certificate = "a"\nprivate_key = "b"\ntrust = ["c"]\n'
    )

    assert 50 == load_settings(file, environ={}).limits.pool_share
    assert 0 == load_settings(None, environ={}).limits.pool_share


def test_times_are_those_of_the_endpoint() -> None:
    settings = settings_with({}, handshake_timeout="3s", connect_timeout="4s", backpressure="1s")

    assert Timeouts(handshake=3.0, connect=4.0, backpressure=1.0) == timeouts_of(settings)


@pytest.mark.parametrize(
    ("limits", "endpoint", "expected"),
    [
        ({"connections": 100}, {}, ["limits.reserved_connections"]),
        ({"connections": 101}, {}, []),
        ({"connections": 0}, {}, []),
        ({"bytes_per_second": "63KiB"}, {}, ["limits.bytes_per_second"]),
        ({"bytes_per_second": "64KiB"}, {}, []),
        ({"messages_per_second": 99}, {}, ["limits.messages_per_second"]),
        ({"messages_per_second": 100}, {}, []),
        ({"pool_share": 1}, {"message_forward_size": "64MiB"}, ["limits.pool_share"]),
        ({"pool_share": 2}, {"message_forward_size": "64MiB"}, []),
        ({}, {"message_forward_size": "1MiB", "authentication": "certificate"}, []),
    ],
)
def test_limit_that_leaves_next_to_nothing_is_a_contradiction(
    limits: dict[str, Any], endpoint: dict[str, Any], expected: list[str]
) -> None:
    found = contradictions(with_pool_share(settings_with(limits, **endpoint)))

    assert expected == [dotted(one.path) for one in found if one.path[0] == "limits"]
