"""What the daemons of a fault run are told: their settings, and the scripts of their databases and of msdb."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.conversation.message_types import DEFAULT
from tests.chaos.cast import QUEUE, Home
from tests.chaos.talk import LEVELS

if TYPE_CHECKING:
    from tests.chaos.fleet import Fleet

PORT, OBSERVE_PORT = 4022, 9423
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "endpoint": {
        "encryption": "required",
        "authentication": "certificate",
        "heartbeat": "500ms",
        "connect_timeout": "1s",
        "handshake_timeout": "2s",
    },
    "dialog": {"resend_first": "300ms", "resend_cap": "2s", "time_to_live": "10s"},
    "drain": {"announce": "0s", "timeout": "5s"},
    "journal": {"file_age": "10s", "keep_age": "1h", "keep_size": "256MiB"},
}
GRANTS = ("GRANT CONNECT ON ENDPOINT::[*] TO public;", "GRANT SEND ON SERVICE::[*] TO public;")


PRIORITIES = [
    f"CREATE BROKER PRIORITY [{contract}] FOR CONVERSATION"
    f" SET (CONTRACT_NAME = [{contract}], PRIORITY_LEVEL = {level});"
    for contract, level in LEVELS.items()
    if contract != DEFAULT
]


def sections(fleet: Fleet, name: str) -> dict[str, dict[str, Any]]:
    """The configuration of a daemon."""
    host = fleet.network.hosts[name]
    made = {section: dict(values) for section, values in SETTINGS.items()}
    made["instance"] = {"state_dir": str(host.directory)}
    made["endpoint"] |= {
        "listen": [f"{host.address}:{PORT}"],
        "message_forwarding": name in fleet.gateways,
        "certificate": str(fleet.tls / f"{name}.pem"),
        "private_key": str(fleet.tls / f"{name}.key"),
        "trust": [str(fleet.tls / "trust.pem")],
    }
    made["observe"] = {"listen": f"{host.address}:{OBSERVE_PORT}"}
    made["journal"]["directory"] = str(journal_of(fleet, name))
    made["admin"] = {"socket": str(fleet.directory / "daemons" / name / "admin.sock")}
    made["routes"] = {"files": ["msdb*.sql"]}
    for home in fleet.homes_of(name):
        values = {"path": str(fleet.file(home, name)), "scripts": [f"{home.name}*.sql"]}
        values["broker_instance"] = home.instance
        made[f"databases.{home.name}"] = values | fleet.sealing.settings(home.name)
        if len(home.hosts) > 1 and fleet.has_lock:
            made[f"databases.{home.name}"] |= {"mirroring": "lock"}
        elif len(home.hosts) > 1:
            role = {"mirroring": "command", "role_command": ["cat", str(fleet.role_file(name))]}
            made[f"databases.{home.name}"] |= role | {"role_interval": "200ms", "role_timeout": "6s"}
    return made


def journal_of(fleet: Fleet, name: str) -> Path:
    """The directory of a daemon's journal, which outlives its host."""
    return fleet.directory / "journals" / name


def write_scripts(fleet: Fleet, name: str) -> None:
    """The statements of a daemon, into its directory."""
    directory = fleet.daemons[name].directory
    ways = [route(fleet, name, home) for home in fleet.homes] if name in fleet.gateways else []
    lines = [*GRANTS, *(["DROP ROUTE AutoCreatedLocal;"] if ways else []), *ways]
    (directory / "msdb.sql").write_text("\n".join(lines), encoding="utf-8")
    for home in fleet.homes_of(name):
        far = fleet.targets if home in fleet.initiators else fleet.initiators
        lines = [
            f"CREATE QUEUE {QUEUE};\nCREATE SERVICE [{home.service}] ON QUEUE {QUEUE};",
            f"GRANT SEND ON SERVICE::[{home.service}] TO public;",
            *PRIORITIES,
            *(route(fleet, name, one, by=gateway) for one in far for gateway in fleet.gateways),
        ]
        if home in fleet.initiators:
            lines += fleet.sealing.bindings(home.name, {one.name: one.service for one in fleet.targets})
        (directory / f"{home.name}.sql").write_text("\n".join(lines), encoding="utf-8")


def route(fleet: Fleet, name: str, far: Home, *, by: str = "") -> str:
    """The statement that makes a route of one host to a database: by a gateway, or of a gateway straight to it."""
    next_hops = [by] if by else far.hosts
    words = zip(("ADDRESS", "MIRROR_ADDRESS"), next_hops, strict=False)
    addresses = ", ".join(f"{word} = '{fleet.address(name, next_hop)}'" for word, next_hop in words)
    title = f"{far.name} by {by}" if by else far.name
    return (
        f"CREATE ROUTE [{title}] WITH SERVICE_NAME = '{far.service}', BROKER_INSTANCE = '{far.instance}', {addresses};"
    )
