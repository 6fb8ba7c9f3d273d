"""One thing found about settings that are each allowed by themselves."""

from __future__ import annotations

from typing import NamedTuple

from broker.control.place import KeyPath


class SettingFinding(NamedTuple):
    """One thing found; `path` is the key to change, `also` the other keys it depends on."""

    path: KeyPath
    problem: str
    hint: str
    also: tuple[KeyPath, ...] = ()
