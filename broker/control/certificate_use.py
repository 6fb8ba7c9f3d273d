"""Which settings of a configuration name which certificate files."""

from __future__ import annotations

import glob
from pathlib import Path

from broker.control.config import Settings


def certificate_uses(settings: Settings) -> dict[Path, tuple[str, ...]]:
    """
    The files that exist or are named by a plain path, each with the settings that use it.

    Shape: absolute paths, in the order of the settings; keys as one writes them, `databases.billing.peers`.
    """
    endpoint = settings.endpoint
    found: dict[Path, list[str]] = {}
    if endpoint.certificate is not None:
        found.setdefault(endpoint.certificate, []).append("endpoint.certificate")
    for key in ("trust", "peers"):
        for path in trusted_files(getattr(endpoint, key)):
            found.setdefault(path, []).append(f"endpoint.{key}")
    if settings.admin.certificate is not None:
        found.setdefault(settings.admin.certificate, []).append("admin.certificate")
    for key in ("trust", "peers"):
        for path in trusted_files(getattr(settings.admin, key)):
            found.setdefault(path, []).append(f"admin.{key}")
    for name, database in settings.databases.items():
        if database.certificate is not None:
            found.setdefault(database.certificate, []).append(f"databases.{name}.certificate")
        for path in trusted_files(database.peers):
            found.setdefault(path, []).append(f"databases.{name}.peers")
    return {path: tuple(keys) for path, keys in found.items()}


def trusted_files(patterns: tuple[str, ...]) -> list[Path]:
    """The files of absolute paths and patterns, each once, in their order; a plain path also when nothing is there."""
    found: list[Path] = []
    for pattern in patterns:
        matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - patterns are absolute
        if not matches and not glob.has_magic(pattern):
            matches = [pattern]
        found += map(Path, matches)
    return list(dict.fromkeys(found))
