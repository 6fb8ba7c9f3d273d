"""The golden byte vectors: worked out from the layout by hand, never by the code under test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def golden() -> dict[str, bytes]:
    """Whole frames by the name of their kind, and what it shows where there are several of a kind."""
    text = Path(__file__).with_name("golden.json").read_text(encoding="utf-8")
    return {name: bytes.fromhex(digits) for name, digits in json.loads(text).items()}
