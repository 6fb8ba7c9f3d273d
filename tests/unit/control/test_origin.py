"""Every key in force, its value as one writes it, and where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.config.load import InForce, in_force, written
from broker.config.settings import Settings
from broker.config.values import ANY_NAME, settings_of

TEXT = """\
[instance]
name = "é"
[endpoint]
max_hops = 4
listen = []
[databases."Orders 1"]
path = "orders.db"
role_command = ["/bin/role", "--password", "geheim"]
mirroring = "command"
[admin.roles]
"user:0" = "viewer"
"""
ENVIRON = {"BROKER_ENDPOINT__HEARTBEAT": "90s", "BROKER_LOG_LEVEL": "debug"}


@pytest.fixture
def shown(load: Any) -> dict[str, InForce]:
    return {one.key: one for one in in_force(load(TEXT, ENVIRON, {"endpoint.max_frame": "131072"}))}


@pytest.mark.parametrize(
    ("key", "text", "origin"),
    [
        ("endpoint.max_hops", "4", "broker.toml:4:12"),
        ("endpoint.listen", "[]", "broker.toml:5:10"),
        ("endpoint.heartbeat", '"90s"', "BROKER_ENDPOINT__HEARTBEAT"),
        ("observe.log_level", '"debug"', "BROKER_LOG_LEVEL"),
        ("endpoint.max_frame", '"128KiB"', "flag"),
        ("endpoint.message_forward_size", '"64MiB"', "default"),
        ("endpoint.message_forwarding", "false", "default"),
        ("endpoint.certificate", '""', "default"),
        ("admin.listen", '""', "default"),
        ("observe.listen", '"127.0.0.1:9423"', "default"),
        ("journal.sample", "1.0", "default"),
        ("limits.bytes_per_second", '"0"', "default"),
        ("instance.name", '"é"', "broker.toml:2:8"),
        ("admin.roles", '{"user:0" = "viewer"}', "broker.toml:10:1"),
        ('databases."Orders 1".broker_instance', "made once", "default"),
        ('databases."Orders 1".mirroring', '"command"', "broker.toml:9:13"),
    ],
)
def test_key_is_shown_as_one_writes_it(
    shown: dict[str, InForce], tmp_path: Path, key: str, text: str, origin: str
) -> None:
    one = shown[key]

    assert (text, origin) == (one.written, one.origin.replace(f"{tmp_path}/", ""))


def test_paths_are_those_that_the_program_uses(shown: dict[str, InForce]) -> None:
    assert '"/var/lib/broker/orders.db"' == shown['databases."Orders 1".path'].written


def test_arguments_of_a_program_are_masked(shown: dict[str, InForce]) -> None:
    assert '["/bin/role", "***", "***"]' == shown['databases."Orders 1".role_command'].written
    assert "geheim" not in str(shown)


def test_every_key_is_shown_once(load: Any) -> None:
    text = "[databases.a]\npath = 'a'\n[databases.b]\npath = 'b'\n"

    keys = [one.key for one in in_force(load(text))]

    count = sum(2 if ANY_NAME in one.path else 1 for one in settings_of(Settings))
    assert (count, count) == (len(keys), len(set(keys)))


def test_what_is_shown_can_be_written_into_a_file_and_means_the_same(load: Any) -> None:
    text = f'{TEXT}socket_group = "root"\n'.replace('"--password", "geheim"', "").replace("[admin.roles]", "[admin]")
    first = load(text.replace('"user:0" = "viewer"', 'roles = {"user:0" = "viewer"}'), ENVIRON)

    lines = [f"{one.key} = {one.written}" for one in in_force(first) if one.value is not None]

    assert first == load("\n".join(lines))


@pytest.mark.parametrize(
    ("value", "text"), [("a\tb", '"a\\tb"'), ("\u202e", '"\\u202e"'), (["a", 1, True], '["a", 1, true]'), (0.5, "0.5")]
)
def test_value_is_written_as_toml(value: Any, text: str) -> None:
    assert text == written(value)
