"""
Certificates of the databases whose dialogs are sealed, as an operator has them: made and renewed with `broker certs`,
and handed to the other side as a file.

Shape of the directory: `NAME.dialog.pem` and `NAME.dialog.key` of each, and `peers-of-NAME` with what it knows.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
