"""Where a set of settings came from, so that it can be read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """
    What `load_settings` was given.

    Shape: `path` absolute, None = no file; `environ` only what is about settings; `overrides` by dotted key.
    """

    path: Path | None
    environ: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How people call it."""
        return "the environment" if self.path is None else str(self.path)
