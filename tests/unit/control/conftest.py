"""What tests of the configuration share: a file written, loaded, and the lines of its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.errors import SettingsError

Load: TypeAlias = Callable[..., Settings]
Report: TypeAlias = Callable[..., list[str]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Writes a text to a file, loads it with the environment and the flags given."""

    def loading(text: str, environ: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> Settings:
        path = tmp_path / "broker.toml"
        path.write_bytes(text.encode())
        return load_settings(path, environ=environ or {}, overrides=flags or {})

    return loading


@pytest.fixture
def report(load: Load, tmp_path: Path) -> Report:
    """The lines about a text that does not load, without the directory of the file."""

    def reporting(
        text: str, environ: dict[str, str] | None = None, flags: dict[str, object] | None = None
    ) -> list[str]:
        with pytest.raises(SettingsError) as caught:
            load(text, environ, flags)
        return "\n".join(map(str, caught.value.errors)).replace(f"{tmp_path}/", "").splitlines()

    return reporting
