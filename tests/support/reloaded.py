"""An instance whose configuration changes: a file of sections, written anew with other values."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.catalog.reload import ReloadAnswer
from broker.config.load import load_settings
from broker.daemon.instance import Instance
from examples.demo.topology import render_sections
from tests.support.certificates import make
from tests.support.identities import issue

Sections = Mapping[str, Mapping[str, Any]]


def render(sections: Sections) -> str:
    """As TOML. A value of None leaves the key out."""
    kept = {
        section: {key: value for key, value in keys.items() if value is not None} for section, keys in sections.items()
    }
    return render_sections(kept)


def merged(base: Sections, change: Sections) -> Sections:
    """The sections with other values."""
    return {name: {**base.get(name, {}), **change.get(name, {})} for name in {**base, **change}}


@dataclass
class File:
    """A configuration file. Shape: `base` what stands in it unless something else is said."""

    path: Path
    base: Sections

    def write(self, change: Sections | None = None) -> None:
        """Write it, whole at once."""
        aside = self.path.with_suffix(".new")
        aside.write_text(render(merged(self.base, change or {})))
        aside.replace(self.path)

    async def reload(self, instance: Instance, change: Sections | None = None) -> ReloadAnswer:
        """Write it, and have an instance read it again."""
        self.write(change)
        return await read_again(instance)

    def settings(self) -> Any:
        """As a daemon loads it."""
        return load_settings(self.path, environ={})


async def read_again(instance: Instance, **how: bool) -> ReloadAnswer:
    """As after a signal."""
    return await instance.reloads.reload(instance.admin.signalled(), **how)


def plain(directory: Path, **more: Mapping[str, Any]) -> File:
    """A gateway that speaks plain text on a port of its own."""
    base: dict[str, dict[str, Any]] = {
        "instance": {"name": "near", "state_dir": str(directory / "state")},
        "endpoint": {"listen": ["127.0.0.1:0"], "encryption": "disabled"},
        "observe": {"listen": "127.0.0.1:0"},
    }
    file = File(directory / "broker.toml", merged(base, more))
    file.write()
    return file


def everything(directory: Path) -> File:
    """An instance that has one of everything: certificates, databases, a journal, an admin port with TLS."""
    for name in ("one", "two", "admin"):
        make(name, "127.0.0.1", "localhost").store(directory, name)
    for name in ("orders", "billing", "other"):
        issued = issue(name)
        (directory / f"{name}-db.pem").write_bytes(issued.certificate_pem)
        (directory / f"{name}-db.key").write_bytes(issued.key_pem)
        (directory / f"{name}-db.key").chmod(0o600)
    (directory / "one.sql").write_text("CREATE ROUTE one WITH ADDRESS = 'tcp://127.0.0.1:9', SERVICE_NAME = '//one';")
    (directory / "two.sql").write_text("CREATE ROUTE two WITH ADDRESS = 'tcp://127.0.0.1:9', SERVICE_NAME = '//two';")
    (directory / "queue.sql").write_text("CREATE QUEUE q; CREATE SERVICE [//orders] ON QUEUE q;")
    tls = {"certificate": str(directory / "one.pem"), "private_key": str(directory / "one.key")}
    return plain(
        directory,
        endpoint={"encryption": "required", "authentication": "certificate", "trust": [tls["certificate"]], **tls},
        routes={"files": [str(directory / "one.sql")]},
        admin={
            "listen": "127.0.0.1:0",
            "certificate": str(directory / "admin.pem"),
            "private_key": str(directory / "admin.key"),
            "trust": [str(directory / "one.pem")],
            "roles": {f"user:{os.getuid()}": "viewer"},
        },
        journal={"directory": str(directory / "flows")},
        **{
            "databases.orders": {
                "path": "orders.db",
                "certificate": str(directory / "orders-db.pem"),
                "private_key": str(directory / "orders-db.key"),
                "peers": [str(directory / "billing-db.pem")],
            },
            "databases.shared": {"path": "shared.db", "mirroring": "command", "role_command": ["echo", "mirror"]},
        },
    )
