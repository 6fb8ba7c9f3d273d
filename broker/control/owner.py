"""
What a running instance has already, so that a check beside it does not call its own ports and files taken.

An instance is asked on the admin socket of the very configuration that is checked, and answers with the settings that
it runs by. What it says to have is its own only when it runs from the same state directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from broker.control.listen import ListenAddress, clash, parse_listen


@dataclass(frozen=True, slots=True)
class Owner:
    """
    An instance that runs.

    Shape: `state_dir` None for nobody; `ports` where it listens; `files` of its databases, msdb left out.
    """

    state_dir: Path | None = None
    ports: tuple[ListenAddress, ...] = ()
    files: frozenset[Path] = frozenset()

    def has_port(self, address: ListenAddress) -> bool:
        """Whether it is this instance that listens where nobody else can any more."""
        return any(clash(address, one) for one in self.ports)

    def has_file(self, path: Path) -> bool:
        """Whether it is this instance that has a database open."""
        return path in self.files or (self.state_dir is not None and path == self.state_dir / "msdb.db")


NOBODY = Owner()


def owner_from(values: Mapping[str, object], *, state_dir: Path) -> Owner:
    """
    The instance whose settings these are, by key; nobody when it runs from another state directory.

    Shape: `values` as `in_force` gives them.
    """
    if values.get("instance.state_dir") != str(state_dir):
        return NOBODY
    ports = [*_texts(values.get("endpoint.listen")), *_texts(values.get("admin.listen"))]
    ports += _texts(values.get("observe.listen"))
    files = (value for key, value in values.items() if key.startswith("databases.") and key.endswith(".path"))
    return Owner(state_dir, tuple(map(parse_listen, ports)), frozenset(Path(str(file)) for file in files))


def _texts(value: object) -> list[str]:
    """The addresses in a value: a list, one, or none."""
    found = value if isinstance(value, list) else [value]
    return [text for text in found if isinstance(text, str) and text]
