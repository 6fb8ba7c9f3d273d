"""Instances that could be partners: their files, as `broker certs` makes them, and their configuration."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.security.certificate_files import Pair, store_files
from broker.security.issue import CertificateSubject, Validity, issue_database, issue_endpoint
from examples.demo.topology import render_sections

DIRECTORIES = ("tls/peers", "dialog/peers", "scripts.d")


def settings_of(name: str, directory: Path) -> dict[str, dict[str, Any]]:
    """
    What an instance needs to have partners, by section; its database is called as the instance is.

    Makes the certificates: `tls/NAME.pem`, also among the peers, and `dialog/NAME.dialog.pem`.
    """
    for one in DIRECTORIES:
        (directory / one).mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    year = Validity(now - timedelta(hours=1), now + timedelta(days=365))
    endpoint, database = (
        Pair(directory / f"tls/{name}.pem", directory / f"tls/{name}.key"),
        dialog_pair(name, directory),
    )
    files = endpoint.files(issue_endpoint(CertificateSubject(name, ("127.0.0.1",)), year, None))
    files |= database.files(issue_database(CertificateSubject(name), year, None))
    files[directory / f"tls/peers/{name}.pem"] = files[endpoint.certificate]
    store_files(files, is_replacing=False)
    return {
        "endpoint": {
            "encryption": "required",
            "authentication": "certificate",
            "certificate": str(endpoint.certificate),
            "private_key": str(endpoint.private_key),
            "peers": ["tls/peers/*.pem"],
        },
        f"databases.{name}": {
            "path": f"{name}.db",
            "scripts": ["scripts.d/*.sql"],
            "certificate": str(database.certificate),
            "private_key": str(database.private_key),
            "peers": ["dialog/peers/*.pem"],
        },
    }


def dialog_pair(name: str, directory: Path) -> Pair:
    """Where the certificates of the database are."""
    return Pair(directory / f"dialog/{name}.dialog.pem", directory / f"dialog/{name}.dialog.key")


def configured(directory: Path, sections: dict[str, dict[str, Any]]) -> Settings:
    instance = {"name": directory.name, "state_dir": "."}
    (directory / "broker.toml").write_text(render_sections({"instance": instance} | sections))
    return load_settings(directory / "broker.toml", environ={})


def instance(directory: Path, **changes: dict[str, Any]) -> Settings:
    """An instance called as its directory, as is its database; sections of its settings may be changed."""
    name = directory.name
    sections = settings_of(name, directory)
    for section, values in changes.items():
        sections[f"databases.{name}" if section == "database" else section] |= values
    return configured(directory, sections)
