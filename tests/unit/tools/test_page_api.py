"""The page of the Python API has every public name, as its docstring and signature have it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import broker
import broker.aio

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*broker.__all__, *(f"aio.{name}" for name in broker.aio.__all__)])
def test_every_public_name_has_a_heading(name: str) -> None:
    assert f"\n### broker.{name}\n" in PAGE


def test_each_number_leads_to_its_page() -> None:
    numbers = re.findall(r"\| `ConversationError` \[(\d+)\]\(errors/(\d+)\.md\) \| \w", PAGE)

    assert len(numbers) > 30
    assert all(shown == linked and (DOCS / "errors" / f"{linked}.md").exists() for shown, linked in numbers)
    assert numbers.count(("8426", "8426")) > 5


@pytest.mark.parametrize(
    "part",
    [
        '    contract: str = "DEFAULT",\n',
        "    lifetime: float | timedelta = timedelta(days=7),\n",
        "\nawait broker.run_readers(\n",
        "\nasync with broker.serve(",
        "| `conversation_handle` | <code>uuid.UUID</code> | ",
        "\n#### Dialog.send\n",
        "| `StoreBusyError` | the database stayed locked |",
    ],
)
def test_page_has(part: str) -> None:
    assert part in PAGE
