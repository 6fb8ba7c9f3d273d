"""Where a set of settings came from, so that it can be read again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_NOTHING: Mapping[str, str] = MappingProxyType({})


class SettingsSource(NamedTuple):
    """
    What `load_settings` was given.

    Shape: `path` absolute, None = no file; `environ` only what is about settings; `overrides` by dotted key.
    """

    path: Path | None
    environ: Mapping[str, str] = _NOTHING
    overrides: Mapping[str, object] = _NOTHING

    @property
    def name(self) -> str:
        """How people call it."""
        return "the environment" if self.path is None else str(self.path)
