"""
Who is there in a fault run, and what its daemons are told: settings, scripts, and certificates for sealed dialogs.

Such certificates are made and renewed with `broker certs`, and handed to the other side as a file. Shape of their
directory: `NAME.dialog.pem` and `NAME.dialog.key` of each, and `peers-of-NAME` with what it knows.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.conversation.message_types import DEFAULT
from tests.chaos.talk import LEVELS
from tests.support.loopback import instance_route, service

if TYPE_CHECKING:
    from tests.chaos.fleet import Fleet

INITIATORS = ("initiator-1", "initiator-2")
BILLING = "billing"
STOCK = ("stock-1", "stock-2")  # one database, a mirrored pair
COMMAND, LOCK = "command", "lock"  # who decides about its roles: `mirroring`
PARCELS = ("parcel-1", "parcel-2")  # two databases of one service, among which dialogs are balanced
SEALED = (INITIATORS[0], BILLING)  # whose databases have certificates: dialogs between them are sealed
READER = PARCELS[1]  # whose messages are given to a reader (`broker.reader`)
QUEUE = "Inbox"


@dataclass(frozen=True)
class Home:
    """
    A database.

    Shape: `name`, of its file too; `service`, which others may have as well; `hosts` where it lives, two of a mirrored
    pair.
    """

    name: str
    service: str
    hosts: tuple[str, ...]
    instance: str = field(default_factory=lambda: str(uuid.uuid4()))


def make_initiators() -> list[Home]:
    """Databases that begin dialogs."""
    return [Home(f"orders-{number}", f"//chaos/Orders-{number}", (host,)) for number, host in enumerate(INITIATORS, 1)]


def make_targets() -> list[Home]:
    """Databases that answer."""
    parcels = [Home(host, "//chaos/Parcel", (host,)) for host in PARCELS]
    return [Home("billing", "//chaos/Billing", (BILLING,)), Home("stock", "//chaos/Stock", STOCK), *parcels]


ROOT = Path(__file__).parents[2]
SECONDS = 120.0  # for a command, on a busy machine


class Sealing:
    """
    Args:
        directory: Of the files, to be made.
        names: Of the databases that know each other.
    """

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self._directory = directory
        self._names = names
        for name in names:
            self._peers_of(name).mkdir(parents=True)
            self._certs("issue", "--database", name, "--out", str(directory))
        for name in names:
            self._hand_out(name, self._certificate(name))

    def settings(self, name: str) -> dict[str, Any]:
        """Of `[databases.NAME]`; nothing for a database that is not among them."""
        if name not in self._names:
            return {}
        certificate = self._certificate(name)
        return {
            "certificate": str(certificate),
            "private_key": str(certificate.with_suffix(".key")),
            "peers": [str(self._peers_of(name) / "*.pem")],
        }

    def bindings(self, name: str, services: dict[str, str]) -> list[str]:
        """Statements by which a database seals what it sends to these services; `services` by database."""
        if name not in self._names:
            return []
        return [
            f"CREATE REMOTE SERVICE BINDING [{far}] TO SERVICE '{service}' WITH USER = [{far}];"
            for far, service in services.items()
            if far in self._names
        ]

    def prepare(self) -> None:
        """New keys, both those that sign and those to seal to; the others know them from now on beside the old ones."""
        for name in self._names:
            certificate = self._certificate(name)
            self._certs("renew", str(certificate), "--signing", "--prepare")
            self._hand_out(name, certificate.with_name(f"{name}.dialog.trust.pem"))

    def renew(self) -> None:
        """The new keys are used from now on."""
        for name in self._names:
            self._certs("renew", str(self._certificate(name)), "--signing")

    def _certificate(self, name: str) -> Path:
        return self._directory / f"{name}.dialog.pem"

    def _peers_of(self, name: str) -> Path:
        return self._directory / f"peers-of-{name}"

    def _hand_out(self, name: str, source: Path) -> None:
        for other in self._names:
            if other != name:
                fresh = self._peers_of(other) / f"{name}.fresh"
                fresh.write_bytes(source.read_bytes())
                fresh.replace(fresh.with_suffix(".pem"))

    def _certs(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "broker", "certs", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, f"broker certs {' '.join(arguments)}: {done.stdout}{done.stderr}"


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
            service(home.service),
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
    addresses = [fleet.address(name, next_hop) for next_hop in next_hops]
    return instance_route(f"{far.name} by {by}" if by else far.name, far.service, far.instance, *addresses)
