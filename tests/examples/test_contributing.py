"""What CONTRIBUTING.md and contributors/adding.md name is there: files, make targets, names in modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = "\n".join(
    (ROOT / page).read_text(encoding="utf-8") for page in ("CONTRIBUTING.md", "docs/contributors/adding.md")
)
PATHS = sorted(set(re.findall(r"`((?:broker|tests|docs|examples|deploy|config|\.ci)/[\w/.-]*[\w/])`", PAGE)))
PLACEHOLDERS = {"broker/x/y.py", "tests/unit/x/test_y.py"}
NAMES = {
    "broker/observe/metrics.py": ["MetricDefinition", "METRICS", "Scrape"],
    "broker/observe/views.py": ["MemoryView", "SNAPSHOT_VIEWS", "MEMORY_VIEWS", "GUID_COLUMNS", "INSTANT_COLUMNS"],
    "broker/store/sqlite/views.py": ["FileView", "FILE_VIEWS"],
    "broker/observe/status_rendering.py": ["_KIND_NAMES"],
    "broker/catalog/handlers.py": ["carry_out"],
    "broker/admin/auth.py": ["_OF_OPERATOR"],
    "broker/protocol/layout.py": ["Kind"],
    "broker/protocol/frame.py": ["LinkMessage", "KIND_OF", "_GUID_FIELDS"],
    "broker/protocol/decoder.py": ["_LINK_LENGTHS"],
    "broker/protocol/link_state.py": ["TRANSITIONS", "_follow"],
}


def test_files_and_targets_that_are_named_are_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", PAGE, re.MULTILINE))

    assert [] == [path for path in PATHS if path not in PLACEHOLDERS and not (ROOT / path).exists()]
    assert len(named) > 10
    assert set() == named - targets


@pytest.mark.parametrize(("path", "names"), NAMES.items())
def test_names_it_sends_the_reader_to_are_in_their_modules(path: str, names: list[str]) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")

    assert [] == [name for name in names if name not in text or name not in PAGE]
