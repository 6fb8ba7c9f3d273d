"""Settings that contradict each other, and settings that are allowed but inadvisable."""

import tomllib
from typing import Any

import pytest

from broker.config.consistency import FRAME_OVERHEAD_BYTES, contradictions, unwise_settings
from broker.config.settings import Settings
from broker.config.toml import dotted

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
QUIET: dict[str, Any] = {"endpoint": {"listen": ["127.0.0.1:4022"], "message_forwarding": True}}


def _settings(*layers: dict[str, Any]) -> Settings:
    merged: dict[str, Any] = {}
    for layer in layers:
        for section, values in layer.items():
            merged[section] = {**merged.get(section, {}), **values}
    return Settings.read(merged)


# A text, and the beginning of the one finding about it.
CONTRADICTIONS = {
    'endpoint.listen = ["a:1", "b:1", "a:1"]': 'endpoint.listen[2]: "a:1" is taken by endpoint.listen[0] = "a:1"',
    'admin.listen = "127.0.0.1:9423"': 'observe.listen: "127.0.0.1:9423" is taken by admin.listen = "127.0.0.1:9423"',
    'databases.MSDB.path = "/a"': "databases.MSDB: is the name of the instance's own",
    'databases."a\\nb".path = "/a"': 'databases."a\\nb": is not a name for a database',
    'databases.a.path = "/x/a"\ndatabases.b.path = "/x/y/../a"': 'databases.b.path: "/x/y/../a" is also the file',
    (
        f'databases.a = {{path = "/a", broker_instance = "{GUID}"}}\n'
        f'databases.b = {{path = "/b", broker_instance = "{GUID}"}}'
    ): "databases.b.broker_instance: error 9772: databases.a has the same broker_instance",
    f'admin.socket = "/{"é" * 54}"': f'admin.socket: "/{"é" * 54}" is 109 bytes long',
    "limits.connections = 100": "limits.reserved_connections: 100 of limits.connections = 100 leave no room for",
    'limits.bytes_per_second = "63KiB"': "limits.bytes_per_second: is below 64KiB: one read may bring more than that",
    "limits.messages_per_second = 99": "limits.messages_per_second: is below 100: one read may bring more than that",
    "limits.pool_share = 1": "limits.pool_share: 1 percent of message_forward_size are 671088 bytes, which cannot",
    "tracing.enabled = true": "tracing.enabled: needs a journal, of whose records spans are made",
    'journal.keep_size = "1MiB"': "journal.keep_size: keeps less than one file of file_size = 64MiB",
    'admin.listen = "0.0.0.0:9422"': 'admin.listen: "0.0.0.0:9422" can be reached from other machines, and there',
    'admin.certificate = "a.pem"': "admin.certificate: is set, and there is no private_key",
    'admin.private_key = "a.key"': "admin.private_key: is set, and there is no certificate",
    'admin.trust = ["ca.pem"]': "admin.trust: clients show certificates over TLS only",
    "endpoint.max_frame = 68044": "dialog.fragment_size: a fragment of 64KiB and its header do not fit",
    'dialog.resend_first = "65s"': "dialog.resend_first: 65s is above resend_cap = 64s",
    'endpoint.max_frame = "2MiB"\nendpoint.message_forward_size = "1MiB"': "endpoint.message_forward_size: 1MiB",
    'endpoint = {message_forward_size = "4MiB", message_forward_share = 24}': (
        "endpoint.message_forward_share: 24 percent of message_forward_size are 1006632 bytes, which cannot hold"
    ),
}


@pytest.mark.parametrize(("text", "expected"), CONTRADICTIONS.items())
def test_contradiction_is_found(text: str, expected: str) -> None:
    [found] = contradictions(Settings.read(tomllib.loads(text)))

    assert f"{dotted(found.path)}: {found.problem}".startswith(expected)


TLS: dict[str, Any] = {"encryption": "required", "certificate": "/a.pem", "private_key": "/a.key"}
# What just fits; what TLS needs and what needs it; the one source of a role.
KEYS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"admin": {"socket": "/" + "x" * 106}}, []),
    ({"endpoint": {"max_frame": (64 << 10) + FRAME_OVERHEAD_BYTES}}, []),
    ({"dialog": {"resend_first": "64s"}}, []),
    ({"endpoint": {"max_frame": "1MiB", "message_forward_size": "4MiB", "message_forward_share": 25}}, []),
    ({"endpoint": {"listen": []}, "observe": {"listen": ""}}, []),
    ({"limits": {"connections": 101}}, []),
    ({"limits": {"connections": 0, "bytes_per_second": "64KiB", "messages_per_second": 100, "pool_share": 2}}, []),
    ({"tracing": {"enabled": True}, "journal": {"directory": "/flows"}}, []),
    ({"endpoint": {"authentication": "certificate"}}, ["endpoint.authentication"]),
    ({"endpoint": {"encryption": "required"}}, ["endpoint.encryption", "endpoint.encryption"]),
    ({"endpoint": {"encryption": "supported", "certificate": "/a.pem"}}, ["endpoint.encryption"]),
    ({"endpoint": TLS}, []),
    ({"endpoint": TLS | {"authentication": "certificate"}}, ["endpoint.authentication"]),
    ({"endpoint": TLS | {"authentication": "certificate", "trust": ["/ca.pem"]}}, []),
    ({"endpoint": TLS | {"authentication": "certificate", "peers": ["/peer.pem"]}}, []),
    *(
        ({"databases": {"a": {"path": "/a", **role}}}, [f"databases.a.{key}"] if key else [])
        for role, key in (
            ({"mirroring": "lock"}, ""),
            ({"mirroring": "command"}, "mirroring"),
            ({"mirroring": "command", "role_command": ["role"]}, ""),
            ({"role_command": ["role"]}, "role_command"),
            ({"mirroring": "lock", "role_command": ["role"]}, "role_command"),
            ({"role_interval": "20s"}, "role_timeout"),
            ({"role_interval": "20s", "role_timeout": "20s"}, "role_timeout"),
            ({"role_interval": "20s", "role_timeout": "21s"}, ""),
        )
    ),
]


@pytest.mark.parametrize(("data", "keys"), KEYS)
def test_contradictions_are_of_these_keys(data: dict[str, Any], keys: list[str]) -> None:
    assert keys == [dotted(finding.path) for finding in contradictions(_settings(data))]


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        ({"endpoint": {"message_forwarding": False}}, ["endpoint.message_forwarding"]),
        ({"endpoint": {"listen": ["0.0.0.0:1"]}}, ["endpoint.listen[0]"]),
        ({"endpoint": {"advertise": ["tcp://a", "tcp://0.0.0.0"]}}, ["endpoint.advertise[1]"]),
        ({"endpoint": {"heartbeat": "3s"}}, ["endpoint.handshake_timeout"]),
        ({"dialog": {"time_to_live": "65s"}}, ["dialog.time_to_live"]),
        ({"dialog": {"hop_limit": 17}, "databases": {"a": {"path": "/a"}}}, ["dialog.hop_limit"]),
        ({"endpoint": {"max_frame": (64 << 10) + FRAME_OVERHEAD_BYTES}}, ["dialog.fragment_size"]),
        ({"drain": {"announce": "25s"}}, ["drain.announce"]),
        ({"admin": {"roles": {"user:root": "viewer"}}}, ['admin.roles."user:root"']),
        ({"admin": {"roles": {"certificate:CN=a": "viewer"}}}, ['admin.roles."certificate:CN=a"']),
        ({"admin": {"certificate": "a.pem", "private_key": "a.key"}}, ["admin.certificate"]),
        ({"admin": {"listen": "127.0.0.1:0"}}, ["admin.loopback_role"]),
        # What may well be meant.
        ({}, []),
        ({"endpoint": {"message_forwarding": False}, "databases": {"a": {"path": "/a"}}}, []),
        ({"endpoint": {"max_hops": 4}}, []),  # a gateway that begins no dialog
        ({"drain": {"announce": "5s", "timeout": "0s"}}, []),
        ({"admin": {"listen": "127.0.0.1:0", "loopback_role": "admin"}}, []),
    ],
)
def test_what_is_legal_but_unwise_is_found(data: dict[str, Any], keys: list[str]) -> None:
    found = unwise_settings(_settings(QUIET, data))

    assert keys == [dotted(one.path) for one in found]


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ({}, ["accepts messages from every peer, unencrypted"]),
        (TLS, ["without a certificate"]),
        (TLS | {"encryption": "supported"}, ["accepts messages in plain text as well"]),
        (TLS | {"authentication": "certificate", "trust": ["/ca.pem"]}, []),
        (
            TLS | {"encryption": "supported", "authentication": "certificate", "trust": ["/ca.pem"]},
            ["in plain text as well", "peers that use plain text show no certificate"],
        ),
        (TLS | {"trust": ["/ca.pem"]}, ["without a certificate", "is not used"]),
        (TLS | {"encryption": "disabled"}, ["unencrypted", "is not used", "is not used"]),
    ],
)
def test_endpoint_that_strangers_reach_is_unwise_as_far_as_it_is_open(
    endpoint: dict[str, Any], words: list[str]
) -> None:
    open_endpoint = {"listen": ["0.0.0.0:4022"], "message_forwarding": True}

    findings = unwise_settings(_settings({"endpoint": open_endpoint | endpoint}))

    assert len(words) == len(findings)
    for finding, word in zip(findings, words, strict=True):
        assert word in finding.problem
