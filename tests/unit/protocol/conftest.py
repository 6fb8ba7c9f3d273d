"""The golden byte vectors: worked out from the layout by hand, never by the code under test."""

import re
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def golden() -> dict[str, bytes]:
    """Whole frames of docs/protocol.md by the name of their kind, and of what it shows where there are several."""
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^#### ([^\n]+)\n\n```text\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    return {name: bytes.fromhex(digits) for name, digits in blocks}
