"""
What a running instance has already, so that a check beside it does not call its own ports and files taken.

An instance is asked on the admin socket of the very configuration that is checked, and answers with the settings that
it runs by. What it says to have is its own only when it runs from the same state directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from broker.control.listen import ListenAddress, clash, parse_listen


class RunningInstance(Struct, frozen=True):
    """
    An instance that runs.

    Shape: `state_dir` None for nobody; `ports` where it listens; `files` of its databases, msdb included, as `real`
    spells them; `is_unknown` when nobody was asked, so that nothing is said to be taken by others.
    """

    state_dir: Path | None = None
    ports: tuple[ListenAddress, ...] = ()
    files: frozenset[str] = frozenset()
    is_unknown: bool = False

    def has_port(self, address: ListenAddress) -> bool:
        """Whether it is this instance that listens where nobody else can any more."""
        return self.is_unknown or any(clash(address, one) for one in self.ports)

    def has_file(self, path: Path) -> bool:
        """Whether it is this instance that has a database open."""
        return self.is_unknown or real(path) in self.files


NOBODY = RunningInstance()
UNASKED = RunningInstance(is_unknown=True)


def real(path: str | Path) -> str:
    """The one spelling of a path, whichever links and directories it was reached by."""
    return os.path.realpath(path)


def owner_from(values: Mapping[str, object], *, state_dir: Path) -> RunningInstance:
    """
    The instance whose settings these are, by key; nobody when it runs from another state directory.

    Shape: `values` as `in_force` gives them.
    """
    if real(str(values.get("instance.state_dir"))) != real(state_dir):
        return NOBODY
    ports = [*_texts(values.get("endpoint.listen")), *_texts(values.get("admin.listen"))]
    ports += _texts(values.get("observe.listen"))
    files = [str(value) for key, value in values.items() if key.startswith("databases.") and key.endswith(".path")]
    return RunningInstance(
        state_dir, tuple(map(parse_listen, ports)), frozenset(map(real, [*files, str(state_dir / "msdb.db")]))
    )


def _texts(value: object) -> list[str]:
    """The addresses in a value: a list, one, or none."""
    found = value if isinstance(value, list) else [value]
    return [text for text in found if isinstance(text, str) and text]
